"""Interactions: by hand, by enumeration of sign flips, and refused where a baseline is too low."""

import json
from dataclasses import asdict
from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.evaluation.interaction import ModelCells, interaction
from sinklens.evaluation.paired import paired_difference

BITS = st.integers(0, 1)


def logit(right: float, n: int) -> float:
    return log((right + 0.5) / (n - right + 0.5))


def test_by_hand() -> None:
    """The first model falls from 9 to 2 of 10, the second from 8 to 7."""
    first = ModelCells(treated=[1] * 2 + [0] * 8, control=[1] * 9 + [0])
    second = ModelCells(treated=[1] * 7 + [0] * 3, control=[1] * 8 + [0] * 2)
    found = interaction(first, second)
    assert found.points is not None and found.log_odds is not None
    assert found.points.value == pytest.approx(-0.7 + 0.1)
    assert found.log_odds.value == pytest.approx(logit(2, 10) - logit(9, 10) - logit(7, 10) + logit(8, 10))
    assert found.baselines == (0.9, 0.8)
    assert (found.refused, found.points.n) == (None, 10)
    # Differences of differences: -1 six times (one more is cancelled by the second model), so p = 2 / 2^6.
    assert found.p == pytest.approx(2 / 2**6)


def test_all_and_none_right_stay_finite() -> None:
    found = interaction(ModelCells(treated=[0] * 20, control=[1] * 20), ModelCells(treated=[1] * 20, control=[1] * 20))
    assert found.log_odds is not None
    assert found.log_odds.value == pytest.approx(-2 * log(20.5 / 0.5))
    assert (found.log_odds.low, found.log_odds.high) == pytest.approx((found.log_odds.value,) * 2)
    json.dumps(asdict(found), allow_nan=False)


@given(rows=st.lists(st.tuples(BITS, BITS, BITS, st.tuples(BITS, BITS, BITS)), min_size=2, max_size=9))
@settings(max_examples=50, deadline=None)
def test_properties(rows: list[tuple[int, int, int, tuple[int, int, int]]]) -> None:
    a, b, c, d = (np.array(column) for column in zip(*rows, strict=True))
    first, second = ModelCells(treated=a, control=b), ModelCells(treated=c, control=d)
    found = interaction(first, second, floor=0, draws=50)
    swapped = interaction(second, first, floor=0, draws=50)
    parts = [paired_difference(one.treated, one.control, draws=10).value for one in (first, second)]
    assert found.points is not None and found.log_odds is not None
    assert swapped.points is not None and swapped.log_odds is not None
    assert found.points.value == pytest.approx(parts[0] - parts[1])
    assert swapped.points.value == pytest.approx(-(parts[0] - parts[1]))
    assert swapped.log_odds.value == pytest.approx(-found.log_odds.value)
    values = a - b - c + d.mean(axis=1)
    flips = [abs(np.dot(signs, values)) >= abs(values.sum()) - 1e-9 for signs in product((1, -1), repeat=len(rows))]
    assert found.p == pytest.approx(np.mean(flips))
    assert interaction(first, second, floor=0, draws=50) == found


def test_a_model_beside_itself_does_not_interact() -> None:
    """Problems are drawn for all cells at once, so equal models differ in no draw."""
    rng = np.random.default_rng(0)
    cells = ModelCells(treated=rng.integers(0, 2, 50), control=np.ones(50, int))
    found = interaction(cells, cells)
    assert found.points is not None
    assert (found.points.value, found.points.low, found.points.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_low_baseline_is_refused() -> None:
    low, high = [1] * 59 + [0] * 41, [1] * 60 + [0] * 40
    able, unable = ModelCells(treated=low, control=high), ModelCells(treated=low, control=low)
    assert interaction(able, able).refused is None
    for pair in ((able, unable), (unable, able)):
        found = interaction(*pair)
        assert (found.points, found.log_odds, found.p) == (None, None, None)
        assert found.baselines == tuple(np.mean(one.control) for one in pair)
        assert found.refused is not None and "0.59" in found.refused and "at least 0.6" in found.refused
    assert interaction(unable, unable, floor=0.5).refused is None


def test_the_baseline_may_be_a_third_cell() -> None:
    """Sinks against random keys, where the model itself is at 0.9 and random keys bring it to 0.5."""
    cells = ModelCells(treated=[0] * 10, control=[0, 1] * 5, baseline=[1] * 9 + [0])
    found = interaction(cells, cells)
    assert (found.refused, found.baselines) == (None, (0.9, 0.9))
    assert interaction(ModelCells(treated=[0] * 10, control=[0, 1] * 5), cells).refused is not None


def test_coverage() -> None:
    """Both scales, nested draws: about 95 % of the intervals hold the truth."""
    rng = np.random.default_rng(5)
    n, shares = 150, (0.5, 0.8, 0.7, 0.75)
    true_points = 0.5 - 0.8 - 0.7 + 0.75
    true_log_odds = sum(sign * log(p / (1 - p)) for sign, p in zip((1, -1, -1, 1), shares, strict=True))
    held = np.zeros(2)
    for run in range(400):
        # One ease for all cells: right where it is below the cell's share. The controls of the second have two draws.
        ease = rng.random(n)
        cells = [(ease < p).astype(int) for p in shares[:3]]
        nested = (rng.random((n, 2)) < shares[3]).astype(int)
        found = interaction(
            ModelCells(treated=cells[0], control=cells[1]),
            ModelCells(treated=cells[2], control=nested),
            floor=0.0,
            draws=400,
            seed=run,
        )
        for scale, (interval, truth) in enumerate(((found.points, true_points), (found.log_odds, true_log_odds))):
            assert interval is not None and interval.low is not None and interval.high is not None
            held[scale] += interval.low <= truth <= interval.high
    assert (held / 400 > 0.92).all() and (held / 400 < 0.985).all()


def test_refusals() -> None:
    cells = ModelCells(treated=[1, 0], control=[1, 1])
    with pytest.raises(UsageError, match="floor is 60; expected a share from 0 to 1"):
        interaction(cells, cells, floor=60)
    with pytest.raises(UsageError, match=r"different numbers of problems \(.*second_baseline 3\)"):
        interaction(cells, ModelCells(treated=[1, 0], control=[1, 1], baseline=[1, 1, 1]))
