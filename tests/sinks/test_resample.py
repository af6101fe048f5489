"""Intervals over samples: exact where they can be, about right in coverage, blind to the order of samples."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.resample import Interval, bootstrap, bootstrap_ratios, draw_weights

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def test_mean_of_two_samples_reaches_both() -> None:
    """Drawn from {0, 1}: means 0, 1/2, 1 with chances 1/4, 1/2, 1/4, so the percentiles are 0 and 1."""
    assert bootstrap([0.0, 1.0]) == Interval(value=0.5, low=0.0, high=1.0, n=2)


@given(value=NUMBERS, n=st.integers(2, 12), seed=st.integers(0, 99))
def test_constant_data_has_no_spread(value: float, n: int, seed: int) -> None:
    found = bootstrap([value] * n, draws=50, seed=seed)
    assert found.n == n
    assert [found.value, found.low, found.high] == pytest.approx([value] * 3, rel=1e-12, abs=1e-300)


@given(values=st.lists(NUMBERS, min_size=2, max_size=10), data=st.data())
def test_order_plays_no_part(values: list[float], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    assert bootstrap(values, draws=40) == bootstrap(shuffled, draws=40)
    assert bootstrap(values, np.median, draws=40) == bootstrap(shuffled, np.median, draws=40)


@given(values=st.lists(NUMBERS, min_size=2, max_size=10), seed=st.integers(0, 99))
def test_mean_equals_the_mean_drawn_one_by_one(values: list[float], seed: int) -> None:
    """Two ways: a matrix product, and a call for every draw."""
    fast = bootstrap(values, draws=60, seed=seed)
    slow = bootstrap(values, lambda rows: float(rows.mean()), draws=60, seed=seed)
    scale = max(abs(value) for value in values) + 1e-9
    for one, other in zip(asdict(fast).values(), asdict(slow).values(), strict=True):
        assert one == pytest.approx(other, abs=1e-9 * scale)


def test_ratios_are_sums_over_sums() -> None:
    above = np.array([[1.0, 4.0], [3.0, 0.0], [2.0, 2.0]])
    below = np.array([4.0, 4.0, 8.0])
    first, second = bootstrap_ratios(above, below, draws=500, seed=3)
    assert (first.value, second.value) == (6 / 16, 6 / 16)
    slow = bootstrap(np.column_stack([above, below]), lambda rows: rows[:, 0].sum() / rows[:, 2].sum(), draws=500)
    assert slow.value == first.value
    assert slow.low == pytest.approx(first.low, abs=0.05)
    assert slow.high == pytest.approx(first.high, abs=0.05)
    assert first.low == 0.25  # all draws of the first or the third sample
    assert second.low is not None and 0 <= second.low < second.value


def test_samples_without_a_denominator_have_no_say() -> None:
    found = bootstrap_ratios([[1.0, 1.0], [0.0, 3.0], [0.0, 0.0]], [[2.0, 2.0], [0.0, 4.0], [0.0, 0.0]])
    assert found[0] == Interval(value=0.5, low=None, high=None, n=1)
    assert found[1].n == 2
    assert found[1].value == pytest.approx(4 / 6)
    assert (found[1].low, found[1].high) == (0.5, 0.75)


def test_one_sample_has_no_interval() -> None:
    assert bootstrap([2.0]) == Interval(value=2.0, low=None, high=None, n=1)
    assert bootstrap([[2.0, 4.0]], lambda rows: float(rows.sum())) == Interval(value=6.0, low=None, high=None, n=1)


def test_nothing_known_is_none_and_json() -> None:
    nothing = Interval(value=None, low=None, high=None, n=0)
    assert bootstrap([]) == nothing
    assert bootstrap([None, float("nan")]) == nothing
    assert bootstrap([], np.median) == nothing
    assert bootstrap_ratios([[0.0]], [0.0]) == [nothing]
    json.dumps([asdict(nothing), asdict(bootstrap([None, 1.0, 2.0]))], allow_nan=False)


def test_undefined_draws_are_left_out() -> None:
    def only_mixed(rows: np.ndarray) -> float | None:
        return None if np.ptp(rows) == 0 else 7.0

    assert bootstrap([1.0, 2.0], only_mixed) == Interval(value=7.0, low=7.0, high=7.0, n=2)


def test_unknown_samples_are_left_out_of_a_mean() -> None:
    assert bootstrap([None, 1.0, float("nan"), 3.0]) == bootstrap([1.0, 3.0])


@given(samples=st.integers(1, 20), seed=st.integers(0, 99))
def test_every_draw_has_as_many_samples(samples: int, seed: int) -> None:
    weights = draw_weights(samples, draws=30, seed=seed)
    assert weights.shape == (30, samples)
    assert (weights >= 0).all() and (weights.sum(axis=1) == samples).all()
    np.testing.assert_array_equal(weights, draw_weights(samples, draws=30, seed=seed))


@pytest.mark.parametrize(("n", "low", "high"), [(5, 0.78, 0.91), (30, 0.89, 0.98)])
def test_coverage(n: int, low: float, high: float) -> None:
    """The share of intervals that hold the true mean: what the module docstring says, within chance."""
    rng = np.random.default_rng(5)
    found = [bootstrap(rng.normal(1.0, 2.0, n), draws=300, seed=run) for run in range(500)]
    covered = np.mean([one.low <= 1.0 <= one.high for one in found if one.low is not None and one.high is not None])
    assert low < covered < high


@settings(max_examples=30)
@given(n=st.integers(2, 8), items=st.integers(1, 5), seed=st.integers(0, 999))
def test_interval_lies_within_the_samples(n: int, items: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    below = rng.uniform(1, 2, n)
    above = rng.uniform(0, 1, (n, items))
    for item, found in enumerate(bootstrap_ratios(above, below, draws=100, seed=seed)):
        single = above[:, item] / below
        assert found.low is not None and found.high is not None and found.value is not None
        assert single.min() - 1e-12 <= found.low <= found.high <= single.max() + 1e-12


def test_refusals() -> None:
    with pytest.raises(UsageError, match="draws is 0; expected at least 1"):
        bootstrap([1.0, 2.0], draws=0)
    with pytest.raises(UsageError, match=r"one value a sample, got shape \(1, 2\); pass a statistic"):
        bootstrap([[1.0, 2.0]])
    with pytest.raises(UsageError, match=r"numerators \(2, 1\) and denominators \(3,\) do not fit"):
        bootstrap_ratios([[1.0], [2.0]], [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="must be finite; leave out samples"):
        bootstrap_ratios([[float("nan")]], [1.0])
    with pytest.raises(UsageError, match="values_by_sample cannot be read as numbers"):
        bootstrap([[1.0], [2.0, 3.0]], np.median)
