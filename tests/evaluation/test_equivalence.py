"""Equivalence: Tango's interval against a numerical likelihood, and how often "robust" is said wrongly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from sinklens.errors import UsageError
from sinklens.evaluation.equivalence import judge_equivalence, score_interval, score_statistic
from sinklens.evaluation.paired import PairedDifference, paired_difference
from sinklens.sinks.resample import Interval

Z_90 = norm.ppf(0.95)


def difference(gained: int, lost: int, same: int, *, draws: int = 2000) -> PairedDifference:
    a = np.repeat([1, 0, 1], [gained, lost, same])
    return paired_difference(a, np.repeat([0, 1, 1], [gained, lost, same]), draws=draws)


def numerical_statistic(gained: float, lost: float, n: int, delta: float) -> float:
    """T(delta) with P(lost) from a search for the largest likelihood, given P(gained) = P(lost) + delta."""

    def unlikely(rarer: float) -> float:
        same = max(1 - 2 * rarer - delta, 1e-300)
        return -(gained * np.log(rarer + delta) + lost * np.log(rarer) + (n - gained - lost) * np.log(same))

    lowest, highest = max(0.0, -delta), (1 - delta) / 2
    found = minimize_scalar(
        unlikely, bounds=(lowest + 1e-12, highest - 1e-12), method="bounded", options={"xatol": 1e-13}
    )
    return float((gained - lost - n * delta) / np.sqrt(n * (2 * found.x + delta * (1 - delta))))


@given(gained=st.floats(0.5, 30), lost=st.floats(0.5, 30), same=st.integers(1, 60), delta=st.floats(-0.9, 0.9))
@settings(max_examples=80, deadline=None)
def test_the_constrained_likelihood_is_at_its_top(gained: float, lost: float, same: int, delta: float) -> None:
    n = int(np.ceil(gained + lost)) + same
    found = score_statistic(gained, lost, n=n, delta=delta)
    assert found == pytest.approx(numerical_statistic(gained, lost, n, delta), rel=1e-4, abs=1e-4)


@given(n=st.integers(1, 5000), level=st.floats(0.5, 0.99))
def test_without_disagreement_the_end_is_known(n: int, level: float) -> None:
    z2 = norm.ppf((1 + level) / 2) ** 2
    found = score_interval(0, 0, n=n, level=level)
    assert found.value == 0
    assert found.high == pytest.approx(z2 / (n + z2), rel=1e-9)
    assert found.low == pytest.approx(-z2 / (n + z2), rel=1e-9)


@given(gained=st.floats(0, 40), lost=st.floats(0, 40), same=st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_the_ends_are_where_the_score_test_turns(gained: float, lost: float, same: int) -> None:
    n = int(np.ceil(gained + lost)) + same
    assume(n > 0)
    found = score_interval(gained, lost, n=n, level=0.9)
    assert found.low is not None and found.high is not None and found.value is not None
    assert -1 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1
    for end, sign in ((found.low, 1), (found.high, -1)):
        if abs(end) < 1 - 1e-6:
            assert score_statistic(gained, lost, n=n, delta=end) == pytest.approx(sign * Z_90, rel=1e-6)
    mirrored = score_interval(lost, gained, n=n, level=0.9)
    assert mirrored.low == pytest.approx(-found.high, abs=1e-9)


def test_agreement_on_few_problems_is_not_robust() -> None:
    """The bootstrap alone would say 0..0."""
    found = judge_equivalence(difference(0, 0, 132))
    assert (found.bootstrap.low, found.bootstrap.high) == (0.0, 0.0)
    assert not found.robust
    assert found.p > 0.05
    more = judge_equivalence(difference(0, 0, 133))
    assert more.robust
    assert more.p <= 0.05


def test_robust_asks_both_intervals_and_both_sides() -> None:
    balanced = difference(20, 20, 1279)
    assert judge_equivalence(balanced).robust
    assert not judge_equivalence(balanced, margin=0.005).robust
    assert judge_equivalence(balanced, margin=0.005).margin == 0.005
    assert not judge_equivalence(difference(30, 5, 1284)).robust
    assert not judge_equivalence(difference(5, 30, 1284)).robust
    for low, high in ((-0.02, 0.01), (-0.01, 0.02), (None, None)):  # the score interval alone does not do
        wide = replace(balanced, interval_90=Interval(value=0.0, low=low, high=high, n=1319))
        found = judge_equivalence(wide)
        assert found.p < 0.05
        assert not found.robust


@given(gained=st.integers(0, 12), lost=st.integers(0, 12), same=st.integers(100, 900), margin=st.floats(0.005, 0.1))
@settings(max_examples=60, deadline=None)
def test_p_and_interval_say_the_same(gained: int, lost: int, same: int, margin: float) -> None:
    found = judge_equivalence(difference(gained, lost, same, draws=50), margin=margin)
    assert found.score.low is not None and found.score.high is not None
    inside = -margin < found.score.low and found.score.high < margin
    assume(abs(found.p - 0.05) > 1e-6)
    assert (found.p < 0.05) == inside
    assert inside or not found.robust


@pytest.mark.parametrize(
    ("n", "gained", "lost", "most"), [(140, 0.02, 0.0, 0.08), (300, 0.03, 0.01, 0.06), (1319, 0.05, 0.03, 0.06)]
)
def test_robust_is_rarely_said_of_a_difference_of_the_margin(n: int, gained: float, lost: float, most: float) -> None:
    """True difference exactly two points, at most about 5 % robust; few problems that disagree are the worst case."""
    rng = np.random.default_rng(2)
    counts = rng.multinomial(n, [gained, lost, 1 - gained - lost], size=1000).tolist()
    said = {key: judge_equivalence(difference(*key, draws=400)).robust for key in set(map(tuple, counts))}
    assert np.mean([said[tuple(key)] for key in counts]) <= most


def test_robust_is_said_of_equal_cells() -> None:
    """1,319 problems, 4 % of them disagree evenly: nearly always robust."""
    counts = np.random.default_rng(2).multinomial(1319, [0.02, 0.02, 0.96], size=200).tolist()
    assert np.mean([judge_equivalence(difference(*key, draws=400)).robust for key in counts]) > 0.9


def test_fractions_of_problems_make_it_wide() -> None:
    """Five draws: the score interval reaches further than the bootstrap's, which knows the true spread."""
    rng = np.random.default_rng(4)
    b = (rng.random((500, 5)) < 0.5).astype(int)
    found = judge_equivalence(paired_difference((rng.random(500) < 0.5).astype(int), b))
    assert found.score.high is not None and found.bootstrap.high is not None
    assert found.score.high > found.bootstrap.high


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"margin is 2; expected a share between 0 and 1: two points are 0\.02"):
        judge_equivalence(difference(1, 1, 10), margin=2)
    with pytest.raises(UsageError, match="gained 3, lost 3, n 5; expected counts of problems"):
        score_interval(3, 3, n=5, level=0.9)
