"""What the explorer's page reads is what the trace holds: exact heads to the bit, others within the loss it says."""

import base64
import json
import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sinklens
from report.three_models import MappedTrace
from sinklens.errors import UsageError
from sinklens.report.encode import deflate, differences, pack, script_json
from sinklens.report.payload import View, build_payload
from sinklens.report.quantise import BEND, Loss, Scale, candidates, make_scale
from sinklens.sinks.arrays import Canvases, LayerArrays, MemoryTrace, from_arrays
from sinklens.sinks.track import track_sinks

EPSILON = 3.0


def unpack(entry: dict[str, Any]) -> np.ndarray:
    """What the viewer does, in numpy."""
    raw = zlib.decompress(base64.b64decode(entry["data"]), wbits=-15)
    size = int(entry["dtype"][1])
    if entry.get("split"):
        raw = np.frombuffer(raw, np.uint8).reshape(size, -1).T.tobytes()
    values = np.frombuffer(raw, "<" + entry["dtype"]).reshape(entry["shape"])
    if "delta" in entry:
        values = np.cumsum(values, axis=entry["delta"], dtype=values.dtype)
    return values


def shares(sample: dict[str, Any]) -> np.ndarray:
    return np.array(sample["scale"]["table"])[unpack(sample["share"])]


@pytest.fixture(scope="module")
def payload(traces: list[MappedTrace]) -> dict[str, Any]:
    """llada and llama, through the text that a page holds."""
    found: dict[str, Any] = json.loads(script_json(build_payload([traces[0], traces[2]])))
    return found


SHARES = hnp.arrays(np.float32, (3, 17), elements=st.floats(0, 4096, width=32) | st.just(math.nan))
SCALES = st.sampled_from([*candidates(4096.0), *candidates(12.0), *candidates(0.5)])


@given(values=SHARES, scale=SCALES)
def test_error_is_bounded_by_half_a_level(values: np.ndarray, scale: Scale) -> None:
    values = np.minimum(values, scale.table[-1].astype(np.float32))
    shown = scale.decode(scale.encode(values))
    assert (shown[np.isnan(values)] == 0).all()
    values = np.nan_to_num(values).astype(np.float64)
    upper = scale.table[scale.table >= scale.bend]
    ratio = math.sqrt((upper[1:] / upper[:-1]).max())
    large = values >= scale.bend
    assert (np.abs(shown / np.where(large, values, 1) - 1)[large] <= (ratio - 1) * (1 + 1e-5)).all()
    assert (np.abs(shown - values)[~large] <= scale.table[1] / 2 * (1 + 1e-4)).all()


@given(values=SHARES, scale=SCALES)
def test_loss_is_the_largest_error_met(values: np.ndarray, scale: Scale) -> None:
    loss = Loss(relative_from=scale.bend)
    shown = scale.decode(scale.encode(values))
    for row, said in zip(values, shown, strict=True):
        loss.add(row, said)
    off = [
        (float(v), abs(float(v) - float(s))) for v, s in zip(values.flat, shown.flat, strict=True) if not math.isnan(v)
    ]
    relative = max((error / value for value, error in off if value >= scale.bend), default=0.0)
    absolute = max((error for value, error in off if value < scale.bend), default=0.0)
    assert (loss.max_relative, loss.max_absolute_below) == (pytest.approx(relative), pytest.approx(absolute))


def test_a_table_by_hand() -> None:
    scale = make_scale(48.0, step=0.5)
    assert scale.table[:7].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert (len(scale.table), scale.bend, scale.table[-1]) == (256, BEND, 48)
    assert scale.table[6:] == pytest.approx(3 * 16 ** (np.arange(250) / 249), rel=1e-5)
    assert scale.encode(np.array([0.24, 0.25, 1.2, 1.3, 3.0, 48.0, np.nan])).tolist() == [0, 1, 2, 3, 6, 255, 0]
    odd = make_scale(48.0, step=0.4)  # 3 is no multiple of it: the linear part ends before
    assert odd.bend == pytest.approx(2.8)
    assert (np.diff(odd.table) > 0).all()


@pytest.mark.parametrize("high", [0.0, 12.0, 300.0, 4096.0])
def test_the_finest_table_has_no_kink(high: float) -> None:
    scale = candidates(high)[0]
    gaps = np.diff(scale.table)
    bend = int(np.flatnonzero(scale.table == scale.bend)[0])
    assert gaps[bend] == pytest.approx(gaps[bend - 1], rel=0.06)
    assert scale.table[-1] >= high * (1 - 1e-5)
    steps = [one.table[1] for one in candidates(high)]
    assert steps == sorted(set(steps))


def test_a_share_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="largest fair share is inf; expected a finite number"):
        candidates(float("inf"))


@given(
    values=hnp.arrays(np.uint8, (4, 3, 5)) | hnp.arrays(np.int32, (4, 3, 5)),
    axis=st.sampled_from([None, 0, 1, 2]),
)
def test_packed_integers_come_back(values: np.ndarray, axis: int | None) -> None:
    dtype = "u1" if values.dtype == np.uint8 else "i4"
    entry = json.loads(json.dumps(pack(values, dtype, delta=axis)))
    assert np.array_equal(unpack(entry), values)


@given(values=hnp.arrays(np.float32, (2, 5), elements=st.floats(width=32)))
def test_packed_floats_come_back_bit_by_bit(values: np.ndarray) -> None:
    assert unpack(pack(values, "f4")).tobytes() == values.tobytes()


def test_differences_by_hand() -> None:
    codes = np.array([[250, 3], [2, 3], [2, 0]], np.uint8)
    assert differences(codes, 0).tolist() == [[250, 3], [8, 0], [0, 253]]
    assert differences(np.zeros((0, 2), np.uint8), 0).shape == (0, 2)


def test_noise_is_not_searched_for_repetitions() -> None:
    """zlib's search makes such data larger, and takes long."""
    noise = np.random.default_rng(0).geometric(0.4, 1_200_000).astype(np.uint8)
    assert len(deflate(noise.tobytes())) < 0.93 * len(zlib.compress(noise.tobytes(), 6))
    assert len(deflate(b"sink" * 10_000)) < 400


def test_hostile_text_stays_inside_its_element() -> None:
    texts = [
        "</script><script>alert(1)</script>",
        "<!--",
        "<img src=x onerror=alert(1)>",
        "&lt;",
        "\u2028\u2029",
        "\ud800",
    ]
    text = script_json({"tokens": texts})
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"tokens": texts}


def test_numbers_that_are_not_json_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json({"x": math.nan})


@pytest.mark.parametrize("run", [0, 1])
def test_shares_are_those_of_the_trace(payload: dict[str, Any], traces: list[MappedTrace], run: int) -> None:
    trace, sample = traces[(0, 2)[run]], payload["runs"][run]["samples"][0]
    shown, loss = shares(sample), sample["loss"]
    for index, number in enumerate(trace.layers):
        share = trace.layer(0, number).fair_share
        large = share >= loss["relative_from"]
        assert (np.abs(shown[index] / share - 1)[large] <= loss["max_relative"] + 1e-9).all()
        assert (np.abs(shown[index] - np.nan_to_num(share))[~large] <= loss["max_absolute_below"] + 1e-9).all()
    assert 0 < loss["max_relative"] < 0.02
    assert sample["share"]["order"] == ["layer", "step", "head", "key"]
    assert (sample["layers"], sample["heads"]) == (trace.layers, trace.heads)


@pytest.mark.parametrize("run", [0, 1])
def test_the_page_detects_the_sinks_of_the_library(
    payload: dict[str, Any], traces: list[MappedTrace], run: int
) -> None:
    """The page's rule on its own numbers; only scores as near to epsilon as the loss may fall on the other side."""
    trace, sample = traces[(0, 2)[run]], payload["runs"][run]["samples"][0]
    visible, eligible, shown = unpack(sample["visible"]) > 0, unpack(sample["eligible"]) > 0, shares(sample)
    assert visible.shape == (sample["steps"], sample["keys"])
    count = visible.sum(-1)[None, :, None, None]
    others = (np.where(visible[:, None], shown, 0).sum(-1, keepdims=True) - shown) / (count - 1)
    found = (shown - others > EPSILON) & eligible[:, None]
    total = 0
    for index, number in enumerate(trace.layers):
        layer = trace.layer(0, number)
        sinks = sinklens.detect_sinks(layer.received, layer.expected, EPSILON, viewers=layer.viewers)
        unsure = np.abs(layer.excess - EPSILON) < 0.01 * (layer.fair_share + 1)
        assert not ((found[index] != sinks) & ~unsure).any()
        total += int((sinks & ~unsure).sum())
    assert total > 0


@pytest.mark.parametrize("run", [0, 1])
def test_exact_heads_are_exact(payload: dict[str, Any], traces: list[MappedTrace], run: int) -> None:
    trace, sample = traces[(0, 2)[run]], payload["runs"][run]["samples"][0]
    assert len(sample["exact"]) == 4
    for entry in sample["exact"]:
        layer = trace.layer(0, entry["layer"], groups=True, norms=True)
        head = entry["head"]
        readings = {"received": (entry, layer)} | {
            name: (entry["groups"][name], group) for name, group in layer.groups.items()
        }
        assert set(entry["groups"]) == set(layer.groups)
        for packed, reading in readings.values():
            assert np.array_equal(unpack(packed["received"]), reading.received[:, head], equal_nan=True)
            assert np.array_equal(unpack(packed["expected"]), reading.expected[:, 0])
            assert np.array_equal(unpack(packed["viewers"]), reading.viewers[:, 0])
            share = unpack(packed["received"]) / unpack(packed["expected"])
            seen = reading.expected[:, 0] > 0
            assert np.array_equal(share[seen], reading.fair_share[:, head][seen], equal_nan=True)


def test_the_strongest_heads_are_chosen() -> None:
    """By hand: head 1.0 has a sink of excess 20 at half of the steps, 0.1 one of 8 at all, the others nothing."""
    received = np.full((4, 2, 2, 32), 1.0, np.float32)
    received[:2, 1, 0, 5] += 20
    received[:, 0, 1, 7] += 8
    sample = build_payload([from_arrays(received)])["runs"][0]["samples"][0]
    assert [(one["layer"], one["head"]) for one in sample["exact"]] == [(1, 0), (0, 1), (0, 0), (1, 1)]


def test_a_page_opens_on_the_head_whose_sink_moves() -> None:
    """A weaker sink than those that stand still, which follow by their strength."""
    received = np.full((12, 2, 2, 32), 1.0, np.float32)
    received[:, 0, 0, 0] += 20
    received[:, 1, 0, 3] += 12
    received[np.arange(12), 1, 1, 10 + np.arange(12)] += 8
    sample = build_payload([from_arrays(received)])["runs"][0]["samples"][0]
    assert [(one["layer"], one["head"]) for one in sample["exact"]] == [(1, 1), (0, 0), (1, 0), (0, 1)]


def test_asked_heads_are_kept_in_order(traces: list[MappedTrace]) -> None:
    view = View(heads=[(2, 3), (0, 1), (2, 3)], layers=[0, 2], budget=1)  # however small the page was to be
    sample = build_payload([traces[0]], view)["runs"][0]["samples"][0]
    assert [(one["layer"], one["head"]) for one in sample["exact"]] == [(2, 3), (0, 1)]
    with pytest.raises(UsageError, match=r"head 1\.0 is not among those shown; expected LAYER\.HEAD .* \[0, 2\]"):
        build_payload([traces[0]], View(heads=[(1, 0)], layers=[0, 2]))


def test_norms_of_heads_that_share_a_key() -> None:
    """Four heads, of which the trace holds 2 and 3, over two key heads: both read the second."""
    layer = from_arrays(np.ones((2, 1, 2, 9), np.float32)).layer(0, 0)
    norms = np.stack([np.zeros((2, 9)), np.ones((2, 9))], axis=1).astype(np.float32)
    held = replace(layer, heads=np.array([2, 3]), key_norm=norms, value_norm=norms + 5, output_norm=norms + 7)
    trace = MemoryTrace(contents={(0, 0): held}, texts={0: from_arrays(np.ones((2, 1, 2, 9))).canvases(0)})
    first, second = build_payload([trace], View(heads=[(0, 2), (0, 3)]))["runs"][0]["samples"][0]["exact"]
    for entry, output in ((first, 7), (second, 8)):
        assert (unpack(entry["key_norm"]) == 1).all()
        assert (unpack(entry["value_norm"]) == 6).all()
        assert (unpack(entry["output_norm"]) == output).all()


@pytest.mark.parametrize("run", [0, 1])
def test_tracks_are_those_of_the_library(payload: dict[str, Any], traces: list[MappedTrace], run: int) -> None:
    trace, sample = traces[(0, 2)[run]], payload["runs"][run]["samples"][0]
    tracks, expected = sample["tracks"], track_sinks(trace, EPSILON, samples=[0]).to_pylist()
    starts, positions, scores = (unpack(tracks[name]) for name in ("starts", "positions", "scores"))
    columns = {name: unpack(tracks[name]) for name in ("layer", "head", "birth", "death", "kind", "velocity")}
    assert tracks["count"] == len(expected) > 0
    for at, row in enumerate(expected):
        cells = slice(starts[at], starts[at + 1])
        numbers = np.array(sample["step_numbers"])
        assert (columns["layer"][at], columns["head"][at]) == (row["layer"], row["head"])
        assert (numbers[columns["birth"][at]], numbers[columns["death"][at]]) == (row["birth"], row["death"])
        assert starts[at + 1] - starts[at] == columns["death"][at] - columns["birth"][at] + 1
        assert positions[cells].tolist() == row["positions"]
        assert scores[cells] == pytest.approx(row["scores"], rel=2**-9)
        assert tracks["kinds"][columns["kind"][at]] == row["kind"]
        known = row["velocity"] is not None
        assert columns["velocity"][at] == pytest.approx(row["velocity"] if known else math.nan, nan_ok=True)


def test_a_moving_sink_is_one_track_by_hand() -> None:
    """One head, a sink of 12 fair shares that moves one token to the right every four steps from step 2 on."""
    steps, keys = 42, 64
    received = np.full((steps, 1, 1, keys), 0.8, np.float32)
    where = [10 + (step - 2) // 4 for step in range(2, steps)]
    received[np.arange(2, steps), 0, 0, where] = 12.0
    tracks = build_payload([from_arrays(received)])["runs"][0]["samples"][0]["tracks"]
    assert (tracks["count"], tracks["kinds"][unpack(tracks["kind"])[0]]) == (1, "moving right")
    assert (unpack(tracks["birth"]).tolist(), unpack(tracks["death"]).tolist()) == ([2], [41])
    assert unpack(tracks["positions"]).tolist() == where
    assert unpack(tracks["scores"]) == pytest.approx(12.0, rel=2**-9)


def test_canvas_of_a_diffusion_run(payload: dict[str, Any], traces: list[MappedTrace]) -> None:
    sample, canvases = payload["runs"][0]["samples"][0], traces[0].canvases(0)
    steps = sample["step_numbers"]
    assert np.array_equal(unpack(sample["canvas"]), canvases.ids[steps])
    assert np.array_equal(unpack(sample["masked"]), canvases.masked[steps])
    committed = unpack(sample["committed"])
    assert (committed[: canvases.prompt_length] == -1).all()
    for position in range(canvases.prompt_length, sample["keys"]):
        (step,) = np.flatnonzero(canvases.committed[:, position])
        assert committed[position] == np.searchsorted(steps, step)
    texts = dict(zip(sample["tokens"]["ids"], sample["tokens"]["text"], strict=True))
    assert texts == {one: canvases.tokens[one] for one in np.unique([*canvases.ids[steps], canvases.ids[-1]]).tolist()}
    assert np.array_equal(unpack(sample["final"]), canvases.ids[-1])
    assert sample["block"] == canvases.blocks[steps].tolist()


def test_canvas_of_an_autoregressive_run(payload: dict[str, Any], traces: list[MappedTrace]) -> None:
    sample, canvases = payload["runs"][1]["samples"][0], traces[2].canvases(0)
    there = unpack(sample["canvas"]) >= 0
    assert -1 not in sample["tokens"]["ids"]
    assert sample["block"] == [None] * sample["steps"]
    assert np.array_equal(unpack(sample["visible"]) > 0, there)
    seen = trace_viewers(traces[2])
    assert np.array_equal(unpack(sample["eligible"]) > 0, there & (seen >= 8))
    assert (there & (seen < 8)).any()  # else nothing is tested
    assert unpack(sample["committed"])[canvases.prompt_length :].max() < sample["steps"]
    assert (sample["groups"], sample["top_excess"]) == (None, None)


def trace_viewers(trace: MappedTrace) -> np.ndarray:
    return trace.layer(0, trace.layers[0]).viewers[:, 0]


def test_positions_that_were_never_committed() -> None:
    masked = np.array([[False, True, True], [False, False, True]])
    trace = from_arrays(np.ones((2, 1, 1, 3), np.float32), viewers=8.0, masked=masked)
    committed = unpack(build_payload([trace])["runs"][0]["samples"][0]["committed"])
    assert committed.tolist() == [2, 0, 2]  # of two steps: never, decided by the first, never


def test_groups_and_their_tops(payload: dict[str, Any], traces: list[MappedTrace]) -> None:
    sample = payload["runs"][0]["samples"][0]
    table = np.array(sample["scale"]["table"])
    for name in ("masked", "unmasked"):
        shown, tops = table[unpack(sample["groups"][name])], table[unpack(sample["top_excess"][name])]
        for index, number in enumerate(traces[0].layers):
            group = traces[0].layer(0, number, groups=True).groups[name]
            above = sinklens.sinks.detect.excess(group.received, group.expected)
            above = np.where(group.viewers >= 8, np.nan_to_num(above), 0).max(-1)
            assert tops[index] == pytest.approx(above, rel=0.01, abs=0.02)
            assert shown[index] == pytest.approx(np.nan_to_num(group.fair_share), rel=0.01, abs=0.02)


def test_windows_that_differ_between_layers_and_heads() -> None:
    """A key that one head no longer sees is not visible there, and only there."""
    received = np.ones((2, 2, 2, 16), np.float32)
    expected = np.ones_like(received)
    expected[1, 1, 1, 3] = 0
    sample = build_payload([from_arrays(received, expected)])["runs"][0]["samples"][0]
    visible = unpack(sample["visible"])
    assert visible.shape == (2, 2, 2, 16)
    assert np.argwhere(visible == 0).tolist() == [[1, 1, 1, 3]]
    assert np.argwhere(unpack(sample["share"]) == 0).tolist() == [[1, 1, 1, 3]]


def noisy_trace(*, layers: int = 4, heads: int = 4, steps: int = 16, keys: int = 64) -> MemoryTrace:
    rng = np.random.default_rng(0)
    received = rng.lognormal(0, 0.5, (steps, layers, heads, keys)).astype(np.float32)
    received[:, 2, 1, 7] += 30
    received[:, 3, 2, 9] += 20
    return from_arrays(received / received.mean(-1, keepdims=True))


def test_a_smaller_page_is_coarser_then_narrower() -> None:
    trace = noisy_trace()
    sizes, steps, narrowed = [], [], []
    for budget in (400_000, 28_000, 24_500, 20_000):
        payload = build_payload([trace], View(budget=budget, heads=[(2, 1), (3, 2)]))
        sample = payload["runs"][0]["samples"][0]
        sizes.append(len(script_json(payload)))
        steps.append(sample["scale"]["low"])
        narrowed.append((sample["layers"], sample["heads"], sample["left_out"]))
        share = np.stack([trace.layer(0, one).fair_share for one in sample["layers"]])[:, :, sample["heads"]]
        large = share >= sample["loss"]["relative_from"]
        assert (np.abs(shares(sample) / share - 1)[large] <= sample["loss"]["max_relative"] + 1e-9).all()
    assert steps[0] < steps[1] < steps[2]
    assert narrowed[1][2] == {"layers": 0, "heads": 0}
    assert narrowed[3] == ([2, 3], [1, 2], {"layers": 2, "heads": 2})
    assert all(size <= budget for size, budget in zip(sizes[:3], (400_000, 28_000, 24_500), strict=True))


def test_many_exact_heads_leave_room_for_the_others() -> None:
    """Heads that were asked for may exceed the budget; the others then have a quarter of it."""
    every = [(layer, head) for layer in range(4) for head in range(4)]
    sample = build_payload([noisy_trace()], View(budget=60_000, heads=every))["runs"][0]["samples"][0]
    assert len(json.dumps(sample["exact"])) > 60_000
    assert sample["left_out"] == {"layers": 0, "heads": 0}
    assert sample["scale"]["low"] < 0.2


def test_two_runs_share_the_room() -> None:
    payload = build_payload([noisy_trace(), noisy_trace()], View(budget=60_000))
    assert len(script_json(payload)) <= 60_000
    for run in payload["runs"]:
        assert run["samples"][0]["scale"]["low"] > 0.1


def test_what_cannot_be_shown_is_refused(traces: list[MappedTrace]) -> None:
    with pytest.raises(UsageError, match="3 traces were given; expected one, or two to compare"):
        build_payload(traces)
    with pytest.raises(UsageError, match=r"samples \[7\] are not in this trace"):
        build_payload(traces[:1], View(samples=[7]))
    with pytest.raises(UsageError, match=r"layers \[9\] are not in this trace"):
        build_payload(traces[:1], View(layers=[9]))
    with pytest.raises(UsageError, match="budget is 0 bytes; expected 1 or more"):
        View(budget=0)


def test_a_sample_without_a_stored_step_is_refused() -> None:
    trace = from_arrays(np.ones((1, 1, 1, 8), np.float32))
    layer, canvases = trace.layer(0, 0), trace.canvases(0)
    none = LayerArrays(
        layer=0, steps=np.zeros(0, np.int64), heads=layer.heads, received=layer.received[:0],
        expected=layer.expected[:0], viewers=layer.viewers[:0],
    )  # fmt: skip
    texts: dict[int, Canvases] = {0: canvases}
    with pytest.raises(UsageError, match="sample 0 has no stored step; choose another"):
        build_payload([MemoryTrace(contents={(0, 0): none}, texts=texts)])


def test_the_same_trace_gives_the_same_bytes(traces: list[MappedTrace], payload: dict[str, Any]) -> None:
    again = build_payload([traces[0], traces[2]])
    assert json.loads(script_json(again)) == payload
    assert payload["made"] is None


def test_progress_reaches_its_end(traces: list[MappedTrace]) -> None:
    seen: list[tuple[int, int]] = []
    build_payload(traces[:1], View(samples=[0, 1]), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, 13))
    assert {total for _, total in seen} == {12}  # two samples, three layers, each read twice
