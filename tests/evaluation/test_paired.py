"""Paired differences: the exact test against enumeration and McNemar, the interval against its coverage."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from sinklens.errors import UsageError
from sinklens.evaluation.outcomes import read_outcomes
from sinklens.evaluation.paired import one_more_draw_p, paired_difference, sign_flip_p, whole_weights
from sinklens.sinks.resample import Interval

BITS = st.integers(0, 1)
ERROR = 0.018  # two standard errors of 5 % of 600 runs


def width(interval: Interval) -> float:
    assert interval.low is not None and interval.high is not None
    return interval.high - interval.low


def with_counts(gained: int, lost: int, same: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells a and b with so many problems of each kind."""
    a = np.repeat([1, 0, 1], [gained, lost, same])
    return a, np.repeat([0, 1, 1], [gained, lost, same])


@given(gained=st.integers(0, 60), lost=st.integers(0, 60), same=st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_single_draws_are_mcnemars_test(gained: int, lost: int, same: int) -> None:
    found = paired_difference(*with_counts(gained, lost, same), draws=10)
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert found.p == pytest.approx(expected, rel=1e-9)
    assert found.test == "mcnemar"
    assert (found.gained, found.lost, found.n) == (gained, lost, gained + lost + same)
    assert found.value == pytest.approx((gained - lost) / found.n)


def test_a_tiny_p_keeps_its_digits() -> None:
    assert sign_flip_p(np.ones(300, np.int64)) == pytest.approx(2 * 0.5**300, rel=1e-9)


@given(values=st.lists(st.integers(-6, 6), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_sign_flips_against_all_of_them(values: list[int]) -> None:
    sums = [
        sum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in product((1, -1), repeat=len(values))
    ]
    expected = np.mean([abs(one) >= abs(sum(values)) for one in sums])
    assert sign_flip_p(np.array(values)) == pytest.approx(expected, rel=1e-12)


@given(values=st.lists(st.integers(-6, 6), min_size=1, max_size=9), factor=st.integers(1, 10**6))
def test_sign_flips_know_no_unit(values: list[int], factor: int) -> None:
    assert sign_flip_p(np.array(values) * factor) == pytest.approx(sign_flip_p(np.array(values)), rel=1e-12)


@given(
    rows=st.lists(st.tuples(BITS, st.lists(BITS, min_size=3, max_size=3)), min_size=1, max_size=15),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_properties_with_nested_draws(rows: list[tuple[int, list[int]]], data: st.DataObject) -> None:
    a, b = [one for one, _ in rows], [other for _, other in rows]
    found = paired_difference(a, b, draws=60, seed=3)
    reverse = paired_difference(b, a, draws=60, seed=3)
    assert found.value == pytest.approx(np.mean(a) - np.mean(b))
    assert (reverse.value, reverse.p, reverse.gained) == (-found.value, found.p, found.lost)
    assert found.gained - found.lost == pytest.approx(found.value * len(rows))
    assert 0 < found.p <= 1
    assert (found.draws_a, found.draws_b, found.test) == (1, 3, "one more draw and sign flips")
    order = data.draw(st.permutations(range(len(rows))))
    assert paired_difference([a[i] for i in order], [b[i] for i in order], draws=60, seed=3) == found
    if len(rows) > 1:
        wide, narrow = found.interval, found.interval_90
        assert wide.low is not None and wide.high is not None and narrow.low is not None and narrow.high is not None
        assert -1 <= wide.low <= narrow.low <= narrow.high <= wide.high <= 1
    json.dumps(asdict(found), allow_nan=False)


@given(rows=st.lists(st.tuples(BITS, st.integers(0, 3)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_one_more_draw_against_all_places_of_the_single_answer(rows: list[tuple[int, int]]) -> None:
    """Of the four answers to each problem, any may be the single one."""
    single, right = np.array(rows).T
    answers = [[1] * (one + more) + [0] * (4 - one - more) for one, more in rows]
    numbers = [sum(places) for places in product(*answers)]
    counts = np.bincount(numbers, minlength=len(rows) + 1)
    expected = counts[counts <= counts[single.sum()]].sum() / 4 ** len(rows)
    assert one_more_draw_p(single, right, draws=3) == pytest.approx(expected, rel=1e-9)


@given(gained=st.integers(0, 40), lost=st.integers(0, 40), same=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_one_more_draw_than_one_is_mcnemars_test(gained: int, lost: int, same: int) -> None:
    a, b = with_counts(gained, lost, same)
    assert one_more_draw_p(a, b, draws=1) == pytest.approx(paired_difference(a, b, draws=10).p, rel=1e-9)


def test_one_draw_against_two_by_hand() -> None:
    """All three right once, and two of three right five times, the single one never.

    One more draw: (1/3)^5 = 1/243 for none of five; one of five has 10/243, five 32/243. Flips: 2/2^5, larger.
    """
    a, b = np.array([1, 0, 0, 0, 0, 0]), np.ones((6, 2), int)
    assert one_more_draw_p(a, b.sum(axis=1), draws=2) == pytest.approx(1 / 243)
    assert paired_difference(a, b, draws=10).p == paired_difference(b, a, draws=10).p == pytest.approx(2 / 2**5)


def test_near_the_ceiling_one_more_draw_decides() -> None:
    """19 problems with all right but one of the draws, one with the single answer wrong and all draws right.

    Flips: 19/5 - 1 of 19 fifths and a whole. One more draw: 20 problems with 5 of 6 right; 19 is no less than usual.
    """
    a, b = np.ones(20, int), np.ones((20, 5), int)
    a[0], b[1:, 0] = 0, 0
    chances = [binom.pmf(number, 20, 5 / 6) for number in range(21)]
    expected = sum(chance for chance in chances if chance <= chances[19] * (1 + 1e-9))
    flips = sign_flip_p(5 * a - b.sum(axis=1))
    found = paired_difference(a, b, draws=10).p
    assert flips < 0.05 < found
    assert found == pytest.approx(expected)


def rejected(cells: Iterator[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """Shares of runs with p <= 5 %: of the difference, of flips alone, of one more draw alone."""
    found = []
    for a, b in cells:
        right, draws = b.sum(axis=1), b.shape[1]
        ps = paired_difference(a, b, draws=1).p, sign_flip_p(draws * a - right), one_more_draw_p(a, right, draws=draws)
        found.append([p <= 0.05 for p in ps])
    both, flips, one_more = np.mean(found, axis=0).tolist()
    return both, flips, one_more


@pytest.mark.parametrize(("n", "right", "wrong"), [(200, 60, 1), (100, 30, 1), (300, 1, 60)])
def test_level_where_the_single_answer_is_one_more_draw(n: int, right: int, wrong: int) -> None:
    """Near the ceiling and the floor. Flips alone reject 7 to 8 %."""

    def cells() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(2)
        for _ in range(600):
            answers = (rng.random((n, 6)) < rng.beta(right, wrong, n)[:, None]).astype(int)
            yield answers[:, 0], answers[:, 1:]

    both, flips, one_more = rejected(cells())
    assert max(both, one_more) <= 0.05 + ERROR
    assert flips > 0.055


@pytest.mark.parametrize(("n", "other"), [(200, 0.05), (200, 0.2)])
def test_level_where_accuracies_are_equal_on_other_problems(n: int, other: float) -> None:
    """On a share of the problems the single cell differs from all draws, either way alike."""

    def cells() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(3)
        for _ in range(600):
            chance = np.where(rng.random(n) < 0.9, 0.97, 0.03)
            differs, wins = rng.random(n) < other, rng.random(n) < 0.5
            a = rng.random(n) < np.where(differs, wins, chance)
            yield a.astype(int), (rng.random((n, 5)) < np.where(differs, 1 - wins, chance)[:, None]).astype(int)

    both, _, one_more = rejected(cells())
    assert both <= 0.05 + ERROR
    assert one_more > 0.1


def test_several_draws_against_several_are_sign_flips() -> None:
    found = paired_difference([[1, 1], [0, 1], [1, 1]], [[0, 0], [0, 1], [0, 1]], draws=10)
    assert found.test == "sign flips"
    assert found.p == pytest.approx(2 / 2**2)


def test_differences_are_whole_steps() -> None:
    a, b = read_outcomes([[1, 1], [1, 0]]), read_outcomes([[1, 0, 0, 0], [1, 1, 0, 1]])
    weights, unit = whole_weights(a, b)
    assert (weights.tolist(), unit) == ([2, -1], 4)
    np.testing.assert_allclose((a.right * 2 - b.right) / unit, [1 - 0.25, 0.5 - 0.75])


def test_the_same_cell_twice_has_no_difference() -> None:
    found = paired_difference([1, 0, 1, 1], [1, 0, 1, 1])
    assert (found.value, found.interval.low, found.interval.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_pairs_are_kept() -> None:
    """Cells that agree on all problems but one: the interval is that of one problem, not of two accuracies."""
    b = np.tile([0, 1], 50)
    a = b.copy()
    a[0] = 1
    found = paired_difference(a, b).interval
    assert (found.value, found.low) == (0.01, 0.0)
    assert found.high is not None and found.high <= 0.03  # two independent accuracies: +- 0.14


def test_one_problem_has_no_interval() -> None:
    found = paired_difference([1], [[0, 1]])
    assert (found.value, found.interval.low, found.interval_90.high) == (0.5, None, None)


def test_same_seed_same_result() -> None:
    a, b = with_counts(9, 4, 30)
    assert paired_difference(a, b, seed=5) == paired_difference(a, b, seed=5)
    assert paired_difference(a, b, seed=5, draws=500) != paired_difference(a, b, seed=6, draws=500)


def test_different_problems_are_refused() -> None:
    with pytest.raises(UsageError, match=r"different numbers of problems \(a 2, b 1\)"):
        paired_difference([1, 0], [[1, 0]])


def simulated(rng: np.random.Generator, n: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Problems of unequal ease; a fails outright on a twentieth of them. True difference: -0.05 E(ease) = -1/30."""
    ease = rng.beta(2, 1, n)
    a = rng.random(n) < ease * (rng.random(n) < 0.95)
    return a.astype(int), (rng.random((n, draws)) < ease[:, None]).astype(int)


@pytest.mark.parametrize(("draws", "within"), [(1, True), (5, True), (5, False)])
def test_coverage(draws: int, within: bool) -> None:
    """About 95 % of the intervals hold the truth; drawing within problems makes them a little wide."""
    rng = np.random.default_rng(11)
    held, mean_width = 0, 0.0
    for run in range(600):
        found = paired_difference(*simulated(rng, 120, draws), draws=400, seed=run, resample_draws=within).interval
        assert found.low is not None and found.high is not None
        held += found.low <= -1 / 30 <= found.high
        mean_width += width(found) / 600
    assert 0.92 <= held / 600 <= 0.975
    if draws == 5:
        assert (mean_width > 0.167) == within


def test_draws_are_not_problems() -> None:
    """Five draws of 40 problems: the interval is far wider than one of 200 problems would be."""
    rng = np.random.default_rng(0)
    ease = (rng.random(40) < 0.5) * 0.9
    b = (rng.random((40, 5)) < ease[:, None]).astype(int)
    a = np.zeros(40, int)
    nested = paired_difference(a, b).interval
    wrong = paired_difference(np.repeat(a, 5), b.ravel()).interval
    assert width(nested) > 1.7 * width(wrong)
