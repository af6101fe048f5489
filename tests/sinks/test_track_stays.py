"""Stays against an oracle of plain loops, and the rule's corners one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.sinks.stays import Stays, find_stays


def stays_of(scores: list[float], epsilon: float = 3.0) -> list[tuple[int, int]]:
    """(first, last) of the stays of one key."""
    excess = np.array(scores, np.float32)[:, None, None]
    found = find_stays(excess, eligible=np.ones_like(excess, bool), epsilon=epsilon)
    return list(zip(found.first.tolist(), found.last.tolist(), strict=True))


def loops(excess: np.ndarray, eligible: np.ndarray, epsilon: float) -> set[tuple[int, int, int, int]]:
    """(head, position, first, last), step by step."""
    steps, heads, keys = excess.shape
    found = set()
    for head in range(heads):
        for key in range(keys):
            line = [float(value) for value in excess[:, head, key]]
            warm = [value > epsilon / 2 for value in line]
            bridged = list(warm)
            for step in range(1, steps - 1):
                if warm[step - 1] and warm[step + 1] and not np.isnan(line[step]):
                    bridged[step] = True
            birth = None
            for step in range(steps):
                if birth is None and line[step] > epsilon and eligible[step, 0, key]:
                    birth = step
                if birth is not None and (step == steps - 1 or not bridged[step + 1]):
                    found.add((head, key, birth, step))
                    birth = None
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_as_plain_loops_find_them(steps: int, heads: int, keys: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    excess = rng.choice([0.0, 1.0, 1.5, 2.0, 3.0, 3.5, 6.0, np.nan], size=(steps, heads, keys)).astype(np.float32)
    eligible = rng.random((steps, 1, keys)) < 0.8
    found = find_stays(excess, eligible=eligible, epsilon=3.0)
    places = (found.head, found.position, found.first, found.last)
    listed = list(zip(*(column.tolist() for column in places), strict=True))
    assert len(listed) == len(set(listed))
    assert set(listed) == loops(excess, eligible, 3.0)
    order = [(head, first, position) for head, position, first, _ in listed]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 2, 4, 2, 1, 0], [(2, 3)]),  # born above 3, alive above 1.5
        ([0, 2, 2, 2, 0, 0], []),  # never born
        ([0, 4, 0, 2, 0, 0], [(1, 3)]),  # a gap of one step is bridged
        ([0, 4, 0, 0, 4, 0], [(1, 1), (4, 4)]),  # one of two steps is not
        ([0, 4, np.nan, 4, 0, 0], [(1, 1), (3, 3)]),  # nor one in which the key is not there
        ([4, 2, 4, 2, 4, 2], [(0, 5)]),  # wavering around epsilon is one stay
        ([0, 3, 1.5, 3, 0, 0], []),  # above means above
    ],
)
def test_hysteresis(scores: list[float], expected: list[tuple[int, int]]) -> None:
    assert stays_of(scores) == expected


def test_alive_above_half_of_any_epsilon() -> None:
    assert stays_of([0, 6, 3.1, 2.9, 0], epsilon=6.0) == []
    assert stays_of([0, 7, 3.1, 2.9, 0], epsilon=6.0) == [(1, 2)]


def events(scores: list[float]) -> Stays:
    excess = np.array(scores, np.float32)[:, None, None]
    return find_stays(excess, eligible=np.ones_like(excess, bool), epsilon=3.0)


def test_gain_and_loss_reach_one_step_further() -> None:
    found = events([0.5, 1, 4, 8, 8, 2, 1, 0])
    assert (found.gain.tolist(), found.loss.tolist()) == ([6.5], [6.5])
    found = events([0, 0, 2, 8, 8, 2, 2, 2])  # two steps before it there was nothing
    assert found.gain.tolist() == [6.5]
    found = events([0, 2, 2, 8, 2, 2, 0])
    assert (found.gain.tolist(), found.loss.tolist()) == ([6.0], [0.5])
    found = events([0, 0, 5, 0, 0])
    assert (found.gain.tolist(), found.loss.tolist()) == ([3.5], [3.5])


def test_ends_of_the_trace_gain_and_lose_nothing() -> None:
    found = events([8, 8, 8])
    assert (found.gain.tolist(), found.loss.tolist()) == ([0.0], [0.0])


def test_a_key_that_was_not_there_had_nothing() -> None:
    found = events([np.nan, np.nan, 8, 8, np.nan])
    assert (found.gain.tolist(), found.loss.tolist()) == ([6.5], [6.5])
