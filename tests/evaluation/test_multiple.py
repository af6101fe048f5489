"""Holm by hand and by its closed testing procedure; the primary contrast stays out of it."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.evaluation.multiple import holm, judge_family
from sinklens.evaluation.paired import PairedDifference, paired_difference

CHANCES = st.floats(0, 1)


def test_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({"only": 0.04}) == {"only": 0.04}
    assert holm({}) == {}


@given(p_values=st.lists(CHANCES, min_size=1, max_size=6))
def test_holm_is_bonferroni_closed(p_values: list[float]) -> None:
    """adjusted(i) = max over subsets that hold i of size x smallest p in it."""
    found = holm({str(i): p for i, p in enumerate(p_values)})
    places = range(len(p_values))
    for i in places:
        subsets = [s for size in range(1, len(p_values) + 1) for s in combinations(places, size) if i in s]
        expected = max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets)
        assert found[str(i)] == pytest.approx(expected, rel=1e-12)


@given(p_values=st.dictionaries(st.text(max_size=3), CHANCES, max_size=8))
def test_order_is_kept_and_nothing_shrinks(p_values: dict[str, float]) -> None:
    found = holm(p_values)
    assert list(found) == list(p_values)
    assert all(p <= found[name] <= 1 for name, p in p_values.items())


def test_any_false_rejection_is_rare() -> None:
    """Ten contrasts, none real: some p below 0.05 in 40 % of families, some adjusted p in at most 5 %."""
    p = np.random.default_rng(3).random((20_000, 10))
    plain = np.mean(p.min(axis=1) <= 0.05)
    adjusted = np.mean([min(holm({str(i): one for i, one in enumerate(row)}).values()) <= 0.05 for row in p.tolist()])
    assert plain > 0.35
    assert 0.045 < adjusted < 0.053  # 1 - 0.995^10 = 0.0489, standard error 0.0015


def contrast(gained: int, lost: int) -> PairedDifference:
    a = np.repeat([1, 0, 1], [gained, lost, 40])
    return paired_difference(a, np.repeat([0, 1, 1], [gained, lost, 40]), draws=10)


def test_the_primary_contrast_is_kept_apart() -> None:
    family = {"next": contrast(9, 1), "random": contrast(8, 1), "mass": contrast(8, 1)}
    assert family["random"].p == pytest.approx(0.0390625)
    first, *others = judge_family(family, primary="random")
    assert (first.name, first.primary, first.adjusted_p, first.rejected) == ("random", True, family["random"].p, True)
    assert [(one.name, one.primary, one.rejected) for one in others] == [("next", False, True), ("mass", False, True)]
    assert others[0].adjusted_p == pytest.approx(2 * family["next"].p)
    assert others[1].difference is family["mass"]


def test_without_a_primary_contrast_all_share_the_level() -> None:
    family = {"next": contrast(9, 1), "random": contrast(8, 1), "mass": contrast(8, 1)}
    verdicts = judge_family(family, primary=None)
    assert [one.name for one in verdicts] == ["next", "random", "mass"]
    assert not any(one.primary for one in verdicts)
    assert [one.rejected for one in verdicts] == [False, False, False]
    assert verdicts[0].adjusted_p == pytest.approx(3 * family["next"].p)
    assert [one.rejected for one in judge_family(family, primary=None, alpha=0.07)] == [True, False, False]


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"primary contrast 'rnd' is not among .* expected one of 'random' or None"):
        judge_family({"random": contrast(1, 1)}, primary="rnd")
    with pytest.raises(UsageError, match="alpha is 5; expected a number between 0 and 1"):
        judge_family({"random": contrast(1, 1)}, primary=None, alpha=5)
    with pytest.raises(UsageError, match="p of 'mass' is nan; expected a number from 0 to 1"):
        holm({"mass": float("nan")})
