"""Around the commit: planted bumps are found where they are, and every sum equals a plain loop's."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.events import MEASURES, EventRow, EventSums, measure_events, summarise_events

PROMPT = 3


def run_of(commit: list[int | None], *, steps: int, sample: int = 0) -> Canvases:
    """A diffusion run: the generated positions get their token at these steps, None: never."""
    known = np.array([-1] * PROMPT + [steps + 9 if one is None else one for one in commit])
    masked = np.arange(steps)[:, None] <= known
    return Canvases(
        sample=sample,
        prompt_length=PROMPT,
        ids=np.where(masked, 99, np.arange(len(known))),
        masked=masked,
        committed=np.arange(steps)[:, None] == known,
        confidence=np.full(masked.shape, np.nan, np.float32),
        blocks=np.full((steps, 2), -1),
    )


def autoregressive(*, length: int) -> Canvases:
    steps, place = np.arange(length)[:, None], np.arange(PROMPT + length)
    there = place < PROMPT + steps
    return Canvases(
        sample=0,
        prompt_length=PROMPT,
        ids=np.where(there, place, -1),
        masked=np.zeros(there.shape, bool),
        committed=place == PROMPT + steps,
        confidence=np.full(there.shape, np.nan, np.float32),
        blocks=np.full((length, 2), -1),
    )


def layer_of(share: np.ndarray, *, steps: np.ndarray | None = None, heads: int = 2, viewers: int = 50) -> LayerArrays:
    """Fair shares [step, key], the same in every head."""
    one = np.ones((len(share), 1, share.shape[1]), np.float32)
    return LayerArrays(
        layer=0,
        steps=np.arange(len(share)) if steps is None else steps,
        heads=np.arange(heads),
        received=np.repeat(share[:, None].astype(np.float32), heads, axis=1),
        expected=one,
        viewers=one * viewers,
    )


def rows_of(rows: list[EventRow], measure: str = "fair_share") -> dict[int, EventRow]:
    return {row.offset: row for row in rows if row.measure == measure}


def bump(canvases: Canvases, *, offset: int, height: float) -> np.ndarray:
    """Fair share 1 everywhere, `height` at this offset from each commit."""
    share = np.ones(canvases.masked.shape)
    for step, key in np.argwhere(canvases.committed):
        if 0 <= step + offset < len(share):
            share[step + offset, key] = height
    return share


EARLY_AND_LATE = [10, 11, 12, 13, 0, 1, 30, 31]


@pytest.mark.parametrize("offset", [-3, 0, 1, 4])
def test_a_bump_is_found_at_its_offset(offset: int) -> None:
    canvases = run_of(EARLY_AND_LATE, steps=40)
    share = bump(canvases, offset=offset, height=5.0)
    layer = layer_of(share)
    rows = summarise_events([measure_events(layer, layer.received > 4, canvases=canvases)])
    shares, rates = rows_of(rows), rows_of(rows, "sink_rate")
    assert sorted(shares) == list(range(-5, 6))
    for at, row in shares.items():
        high = at == offset
        assert row.value == pytest.approx(5.0 if high else 1.0)
        assert row.control == pytest.approx(1.0)
        assert row.difference == pytest.approx(4.0 if high else 0.0)
        assert rates[at].value == pytest.approx(float(high)) and rates[at].control == 0.0
        assert row.low is None and row.difference_low is None and row.samples == 1  # one sample: no interval


@pytest.mark.parametrize("every", [1, 2])
def test_offset_zero_is_the_last_step_as_a_mask(every: int) -> None:
    """High while masked, low once revealed: 0 belongs to the mask, 1 to the token. The control is in the same state."""
    canvases = run_of(EARLY_AND_LATE, steps=40)
    stored = np.arange(0, 40, every)
    layer = layer_of(np.where(canvases.masked, 6.0, 2.0)[stored], steps=stored)
    rows = rows_of(summarise_events([measure_events(layer, np.zeros(layer.received.shape, bool), canvases=canvases)]))
    assert sorted(rows) == list(range(-5, 6))
    for offset, row in rows.items():
        assert row.value == row.control == (6.0 if offset <= 0 else 2.0)
    assert rows[0].events == 8 // every and rows[1].events == 8 // every  # half of the commits are at even steps


def test_what_all_positions_do_at_a_step_drops_out() -> None:
    canvases = run_of(EARLY_AND_LATE, steps=40)
    share = bump(canvases, offset=1, height=3.0)
    drift = np.linspace(0, 10, 40)[:, None]
    none = np.zeros((40, 2, 11), bool)
    plain, drifting = (
        rows_of(summarise_events([measure_events(layer_of(values), none, canvases=canvases)]))
        for values in (share, share + drift)
    )
    for offset, row in plain.items():
        assert drifting[offset].difference == pytest.approx(row.difference, abs=1e-5)
    assert drifting[1].value > plain[1].value + 1


def test_outside_the_run_and_without_a_control() -> None:
    """Commits at 0 and 2 of 4 steps: never more than 5 steps apart, so there is no control, and few offsets."""
    canvases = run_of([0, 2], steps=4)
    rows = rows_of(
        summarise_events([measure_events(layer_of(np.ones((4, 5))), np.zeros((4, 2, 5), bool), canvases=canvases)])
    )
    assert {offset: row.events for offset, row in rows.items()} == {-2: 1, -1: 1, 0: 2, 1: 2, 2: 1, 3: 1}
    assert all(row.controlled == 0 and row.control is None and row.difference is None for row in rows.values())


def test_a_position_that_is_never_committed_is_a_control_and_no_event() -> None:
    canvases = run_of([3, None], steps=8)
    share = np.ones((8, 5))
    share[:, 4] = 7.0
    rows = rows_of(summarise_events([measure_events(layer_of(share), np.zeros((8, 2, 5), bool), canvases=canvases)]))
    assert rows[0].events == 1 and rows[0].control == pytest.approx(7.0)
    assert rows[1].control is None  # the other one is still masked


def test_prompt_positions_are_neither() -> None:
    canvases = run_of([3, 20], steps=30)
    share = np.ones((30, 5))
    share[:, :PROMPT] = 100.0
    rows = rows_of(summarise_events([measure_events(layer_of(share), np.zeros((30, 2, 5), bool), canvases=canvases)]))
    assert all(row.value == pytest.approx(1.0) and row.control in (None, pytest.approx(1.0)) for row in rows.values())


def test_autoregressive_offsets_begin_at_one() -> None:
    canvases = autoregressive(length=20)
    share = np.where(canvases.ids >= 0, 1.0, np.nan)
    for step in range(1, 20):
        share[step, PROMPT + step - 1] = 4.0  # the newest token, at its first appearance
    layer = layer_of(share)
    rows = summarise_events([measure_events(layer, layer.received > 3, canvases=canvases)])
    shares = rows_of(rows)
    assert sorted(shares) == [1, 2, 3, 4, 5]
    assert shares[1].value == pytest.approx(4.0) and shares[1].difference == pytest.approx(3.0)
    assert shares[2].value == pytest.approx(1.0) and shares[2].events == 18
    assert rows_of(rows, "sink_rate")[1].value == 1.0


def test_a_key_with_too_few_viewers_has_a_share_and_no_rate() -> None:
    canvases = run_of(EARLY_AND_LATE, steps=40)
    layer = layer_of(np.ones((40, 11)), viewers=7)
    sinks = np.ones((40, 2, 11), bool)
    rows = summarise_events([measure_events(layer, sinks, canvases=canvases)])
    assert rows_of(rows) and not rows_of(rows, "sink_rate")
    rows = summarise_events([measure_events(layer, sinks, canvases=canvases, min_viewers=7)])
    assert rows_of(rows, "sink_rate")[0].value == 1.0


def oracle(
    layer: LayerArrays, sinks: np.ndarray, canvases: Canvases, window: int
) -> dict[tuple[str, int], list[tuple[float, float | None]]]:
    """Measure and offset to (value, control) of every event, by plain loops."""
    found: dict[tuple[str, int], list[tuple[float, float | None]]] = {}
    steps = layer.steps.tolist()
    keys = range(canvases.prompt_length, canvases.ids.shape[1])
    commits = {key: np.flatnonzero(canvases.committed[:, key]) for key in keys}

    def read(measure: str, step: int, key: int) -> float | None:
        row, values = steps.index(step), []
        if canvases.ids[step, key] < 0:
            return None
        for head in range(len(layer.heads)):
            share = float(layer.fair_share[row, head, key])
            if measure == "fair_share" and not np.isnan(share):
                values.append(share)
            if measure == "sink_rate" and not np.isnan(share) and layer.viewers[row, 0, key] >= 8:
                values.append(float(sinks[row, head, key]))
        return float(np.mean(values)) if values else None

    for key in keys:
        for offset in range(-window, window + 1):
            if not len(commits[key]) or commits[key][0] + offset not in steps:
                continue
            step = int(commits[key][0]) + offset
            for measure in MEASURES:
                value = read(measure, step, key)
                if value is None:
                    continue
                others = [
                    read(measure, step, other)
                    for other in keys
                    if canvases.masked[step, other] == canvases.masked[step, key]
                    and (not len(commits[other]) or abs(step - commits[other][0]) > window)
                ]
                seen = [one for one in others if one is not None]
                found.setdefault((measure, offset), []).append((value, float(np.mean(seen)) if seen else None))
    return found


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_sums_equal_a_plain_loop(data: st.DataObject) -> None:
    steps = data.draw(st.integers(2, 14))
    commit = data.draw(st.lists(st.one_of(st.none(), st.integers(0, steps - 1)), min_size=1, max_size=7))
    causal = data.draw(st.booleans())
    canvases = autoregressive(length=steps) if causal else run_of(commit, steps=steps)
    stored = np.arange(steps)[:: data.draw(st.integers(1, 3))]
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape = (len(stored), 2, canvases.ids.shape[1])
    received = rng.exponential(size=shape).astype(np.float32)
    received[rng.random(shape) < 0.1] = np.nan
    viewers = rng.integers(6, 12, (shape[0], 1, shape[2])).astype(np.float32)
    layer = replace(layer_of(np.ones(shape[::2]), steps=stored), received=received, viewers=viewers)
    sinks, window = rng.random(shape) < 0.3, data.draw(st.integers(1, 5))
    sums = measure_events(layer, sinks, canvases=canvases, window=window)
    truth = oracle(layer, sinks, canvases, window)
    for number, measure in enumerate(MEASURES):
        for index, offset in enumerate(sums.offsets):
            events = truth.get((measure, int(offset)), [])
            paired = [(value, control) for value, control in events if control is not None]
            assert sums.events[number, index] == sums.cells[number, index] == len(events)
            assert sums.controlled[number, index] == len(paired)
            assert sums.total[number, index] == pytest.approx(sum(value for value, _ in events), rel=1e-5)
            assert sums.control[number, index] == pytest.approx(sum(c for _, c in paired), rel=1e-5)
            gain = sum(value - control for value, control in paired)
            assert sums.difference[number, index] == pytest.approx(gain, rel=1e-5, abs=1e-5)


def events_of(height: float, *, sample: int = 0) -> EventSums:
    canvases = run_of(EARLY_AND_LATE, steps=40, sample=sample)
    layer = layer_of(bump(canvases, offset=1, height=height))
    return measure_events(layer, layer.received > 4, canvases=canvases)


def test_layers_are_averaged_and_events_counted_once() -> None:
    one = rows_of(summarise_events([events_of(3.0)]))
    both = rows_of(summarise_events([events_of(3.0) + events_of(7.0)]))
    assert both[1].value == pytest.approx(5.0) and both[1].difference == pytest.approx(4.0)
    assert both[1].events == one[1].events and both[1].controlled == one[1].controlled


def test_samples_give_the_interval() -> None:
    heights = [2.0, 4.0, 6.0, 8.0]
    rows = rows_of(summarise_events([events_of(height, sample=i) for i, height in enumerate(heights)]))
    row = rows[1]
    assert row.value == pytest.approx(5.0) and row.samples == 4 and row.events == 4 * 8
    assert row.low is not None and row.high is not None and 2.0 <= row.low < 5.0 < row.high <= 8.0
    assert row.difference_low == pytest.approx(row.low - 1.0)
    assert rows[2].low == rows[2].high == pytest.approx(1.0)


def test_a_trace_that_keeps_sinks_only_says_so() -> None:
    canvases = run_of(EARLY_AND_LATE, steps=40)
    layer = replace(layer_of(np.ones((40, 11))), kept=np.zeros((40, 2, 11), bool))
    rows = summarise_events([measure_events(layer, np.zeros((40, 2, 11), bool), canvases=canvases)])
    assert not rows_of(rows)[0].exact and rows_of(rows, "sink_rate")[0].exact


def test_rows_are_json_and_no_samples_give_none() -> None:
    rows = summarise_events([events_of(3.0)])
    assert json.loads(json.dumps([row.as_dict() for row in rows], allow_nan=False))[0]["measure"] == "fair_share"
    assert summarise_events([]) == []


def test_windows_are_checked() -> None:
    canvases, layer = run_of([3], steps=8), layer_of(np.ones((8, 4)))
    none = np.zeros((8, 2, 4), bool)
    with pytest.raises(UsageError, match="window is 0; expected at least 1 step on either side"):
        measure_events(layer, none, canvases=canvases, window=0)
    with pytest.raises(UsageError, match="events with windows 2 and 3 do not add; measure with one window"):
        measure_events(layer, none, canvases=canvases, window=2) + measure_events(
            layer, none, canvases=canvases, window=3
        )
