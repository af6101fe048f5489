"""Results by problem: what is read, what is refused; accuracy; the bootstrap against one drawn problem by problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.evaluation.outcomes import (
    Outcomes,
    accuracy,
    percentile_interval,
    read_cells,
    read_outcomes,
    resample,
)
from sinklens.sinks.intervals import wilson
from sinklens.sinks.resample import Interval


def test_draws_are_nested_in_problems() -> None:
    cell = read_outcomes([[1, 0, 1], [0, 0, 0]])
    assert (cell.right.tolist(), cell.draws, cell.n, cell.share) == ([2, 0], 3, 2, 1 / 3)
    single = read_outcomes(np.array([True, False, True]))
    assert (single.right.tolist(), single.draws) == ([1, 0, 1], 1)
    assert read_outcomes(single) is single


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([0, 1, 2], r"sinks has the value 2\.0; expected 0 or 1"),
        ([0, float("nan")], r"sinks has the value nan; .* leave out problems"),
        ([0, None], r"sinks has the value nan"),
        ([[1, 0], [1]], r"sinks cannot be read as results \(.*\); expected 0 or 1"),
        (["yes"], r"sinks cannot be read"),
        ([], r"sinks has shape \(0,\), no results; expected at least one problem"),
        (np.zeros((3, 0)), r"no results"),
        (1, r"sinks has shape \(\); expected \[problem\] or \[problem, draw\]"),
    ],
)
def test_what_is_no_result_is_refused(results: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_outcomes(results, "sinks")


def test_cells_are_on_the_same_problems() -> None:
    with pytest.raises(UsageError, match=r"different numbers of problems \(a 2, b 3\); expected the same"):
        read_cells(a=[0, 1], b=[0, 1, 1])


@given(results=st.lists(st.booleans(), min_size=1, max_size=40))
def test_accuracy_is_wilsons(results: list[bool]) -> None:
    assert accuracy(results) == wilson(sum(results), len(results))


@given(results=st.lists(st.booleans(), min_size=1, max_size=20), draws=st.integers(1, 5))
def test_repeating_a_draw_adds_no_problems(results: list[bool], draws: int) -> None:
    """Draws that all agree say as much as one of them."""
    repeated = np.repeat(np.array(results)[:, None], draws, axis=1)
    assert accuracy(repeated) == accuracy(results)
    assert accuracy(repeated, level=0.9) == wilson(sum(results), len(results), level=0.9)


def test_accuracy_of_draws_is_the_mean_over_problems() -> None:
    found = accuracy([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    assert (found.value, found.n) == (pytest.approx(1 / 3), 3)
    assert found.low == pytest.approx(wilson(1, 3).low)


def drawn_one_by_one(tables: list[np.ndarray], *, draws: int, seed: int, within: bool) -> np.ndarray:
    """The same bootstrap by its definition: draw problems, then draws of each drawn problem, then average."""
    rng = np.random.default_rng(seed)
    n = len(tables[0])
    found = np.empty((draws, len(tables)))
    for draw in range(draws):
        chosen = rng.integers(n, size=n)
        for index, table in enumerate(tables):
            rows = table[chosen]
            if within:
                rows = np.take_along_axis(rows, rng.integers(rows.shape[1], size=rows.shape), axis=1)
            found[draw, index] = rows.mean()
    return found


@pytest.mark.parametrize("within", [True, False])
def test_counting_kinds_of_problems_is_drawing_problems(within: bool) -> None:
    """Mean, spread and correlation between cells agree with the definition, within the error of 4,000 draws."""
    rng = np.random.default_rng(7)
    ease = rng.random(12)[:, None]
    tables = [(rng.random((12, draws)) < ease).astype(int) for draws in (1, 4)]
    right = resample([read_outcomes(one) for one in tables], draws=4000, seed=1, within=within)
    fast = right / [12, 48]
    slow = drawn_one_by_one(tables, draws=4000, seed=2, within=within)
    np.testing.assert_allclose(fast.mean(axis=0), slow.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(np.cov(fast.T), np.cov(slow.T), rtol=0.09, atol=1e-4)


@given(seed=st.integers(0, 999), data=st.data())
def test_the_bootstrap_is_seeded_and_blind_to_order(seed: int, data: st.DataObject) -> None:
    rights = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=12))
    shuffled = data.draw(st.permutations(rights))

    def run(rows: list[tuple[int, int]]) -> np.ndarray:
        table = np.array(rows)
        cells = [Outcomes(right=table[:, 0], draws=1), Outcomes(right=table[:, 1], draws=3)]
        return resample(cells, draws=20, seed=seed)

    first = run(rights)
    assert ((first >= 0) & (first <= np.array([1, 3]) * len(rights))).all()
    np.testing.assert_array_equal(first, run(shuffled))


def test_problems_are_drawn_together_in_all_cells() -> None:
    cell = read_outcomes([0, 1, 1, 0, 1])
    drawn = resample([cell, cell], draws=200)
    assert drawn[:, 0].std() > 0.5
    np.testing.assert_array_equal(drawn[:, 0], drawn[:, 1])


def test_percentiles_and_their_refusals() -> None:
    drawn = np.linspace(0, 1, 101)
    found = percentile_interval(0.5, drawn, n=9, level=0.9)
    assert (found.value, found.n) == (0.5, 9)
    assert (found.low, found.high) == pytest.approx((0.05, 0.95))
    assert percentile_interval(0.5, drawn, n=1) == Interval(value=0.5, low=None, high=None, n=1)
    with pytest.raises(UsageError, match="draws is 0; expected at least 1"):
        resample([read_outcomes([1])], draws=0)
