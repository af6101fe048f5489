"""Which head figures 1 and 7 follow."""

from dataclasses import replace

import numpy as np
import pytest

from report.three_models import MappedTrace
from sinklens.report.heads import HeadChoice, HeadSeries, seen_by_enough
from sinklens.report.scene import Focus, Model, read
from sinklens.sinks.arrays import MemoryTrace, from_arrays


def chosen(trace: MemoryTrace, focus: Focus | None = None) -> HeadSeries:
    model = Model(trace=trace, label="m", sample=0)
    choice = HeadChoice(model, focus or Focus())
    read(model, [choice], tick=lambda: None)
    assert choice.series is not None
    return choice.series


def heads(paths: dict[int, list[int]], *, keys: int = 40, strength: dict[int, float] | None = None) -> MemoryTrace:
    """One layer; each head has one sink on its path, the rest is even."""
    steps = len(next(iter(paths.values())))
    received = np.full((steps, 1, len(paths), keys), 0.7, np.float32)
    for head, path in paths.items():
        received[np.arange(steps), 0, head, path] = (strength or {}).get(head, 12.0)
    return from_arrays(received)


STILL = [5] * 20
DRIFT = [10 + step for step in range(20)]
ERRATIC = [(step * 17) % 40 for step in range(20)]


def test_a_drifting_sink_is_preferred_to_a_stronger_one_that_stands_still() -> None:
    series = chosen(heads({0: STILL, 1: DRIFT}, strength={0: 25.0, 1: 9.0}))
    assert (series.head, series.moving) == (1, True)
    assert series.position.tolist() == DRIFT
    assert series.sink.all()


def test_the_stronger_of_two_moving_sinks() -> None:
    assert chosen(heads({0: DRIFT, 1: DRIFT[::-1]}, strength={0: 8.0, 1: 11.0})).head == 1


def test_a_leader_that_changes_at_random_does_not_move() -> None:
    series = chosen(heads({0: ERRATIC, 1: STILL}, strength={0: 9.0, 1: 10.0}))
    assert (series.head, series.moving) == (1, False)


def test_no_sink_at_all_still_gives_a_head() -> None:
    series = chosen(heads({0: STILL, 1: STILL}, strength={0: 0.7, 1: 0.7}))
    assert (series.head, series.moving, series.sink.any()) == (0, False, False)


@pytest.mark.parametrize("focus", [Focus(head=0), Focus(layer=0, head=0)])
def test_the_head_asked_for_is_followed(focus: Focus) -> None:
    assert chosen(heads({0: STILL, 1: DRIFT}), focus).head == 0


def test_planted_drifts_are_found(traces: list[MappedTrace]) -> None:
    for trace in traces[:2]:
        series = chosen(trace)
        assert series.moving
        assert (series.layer + series.head) % 4 == 0  # three_models.plant
    assert not chosen(traces[2]).moving


def test_the_newest_tokens_of_a_causal_run_are_blank(traces: list[MappedTrace]) -> None:
    series = chosen(traces[2])
    shown = seen_by_enough(series)
    there = traces[2].texts[0].ids >= 0
    length = there.sum(axis=1)
    for step, keys in enumerate(length.tolist()):
        assert np.isnan(shown[step, keys - 7 :]).all()
        assert not np.isnan(shown[step, : keys - 7]).any()
    assert (series.position == 0).all()


def test_numbers_of_heads_and_steps_are_kept() -> None:
    trace = heads({0: STILL, 1: DRIFT})
    layer = replace(trace.contents[0, 0], heads=np.array([4, 9]), layer=3)
    series = chosen(replace(trace, contents={(0, 3): layer}), Focus(head=4))
    assert (series.layer, series.head, series.position[0]) == (3, 4, 5)


def test_a_main_sink_is_a_sink_only_above_epsilon() -> None:
    trace = heads({0: DRIFT}, strength={0: 3.2})  # 2.5 fair shares above the others
    assert not chosen(trace).sink.any()
    assert not chosen(trace).moving
    assert chosen(trace, Focus(epsilon=2.0)).sink.all()
    assert chosen(trace, Focus(epsilon=2.0)).moving
