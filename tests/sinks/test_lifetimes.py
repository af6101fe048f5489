"""Survival curves: by hand, against plain loops, and what cannot be known."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.lifetimes import survival
from sinklens.sinks.track import track_sinks
from sinks.track_paths import head, stay


def lives(lifetimes: list[int], *, alive: str = "", before: str = "", sample: list[int] | None = None) -> pa.Table:
    """alive and before: a mark for every life, "x" where it is so."""
    count = len(lifetimes)
    return pa.table(
        {
            "sample": pa.array(sample or [0] * count, pa.int32()),
            "lifetime": pa.array(lifetimes, pa.int32()),
            "born_before": pa.array([mark == "x" for mark in before.ljust(count)], pa.bool_()),
            "alive_after": pa.array([mark == "x" for mark in alive.ljust(count)], pa.bool_()),
            "kind": pa.array(["static" if life > 1 else "flicker" for life in lifetimes]),
        }
    )


def test_by_hand() -> None:
    """Ages 1, 2+, 3, 3, 5+: S(1) = 4/5, S(3) = 4/5 x 1/3."""
    (curve,) = survival(lives([1, 2, 3, 3, 5], alive=" x  x"))
    assert curve.ages == [0, 1, 3]
    assert curve.survival == pytest.approx([1, 4 / 5, 4 / 15])
    assert (curve.lives, curve.censored, curve.left_out, curve.n) == (5, 2, 0, 1)
    assert curve.median == 3
    assert curve.low is None and curve.high is None and curve.median_low is None  # one sample: no interval


def test_lives_of_unknown_age_are_left_out_and_counted() -> None:
    whole = survival(lives([1, 2, 3]))[0]
    more = survival(lives([1, 2, 3, 50, 60], before="   xx"))[0]
    assert more.survival == whole.survival
    assert (more.lives, more.left_out) == (3, 2)


def test_a_median_that_is_not_reached() -> None:
    (curve,) = survival(lives([1, 9, 9, 9], alive=" xxx"))
    assert (curve.survival, curve.median) == ([1.0, 0.75], None)
    (curve,) = survival(lives([9], alive="x"))
    assert (curve.ages, curve.survival, curve.median) == ([0], [1.0], None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1))
def test_as_plain_loops_compute_it(rows: list[tuple[int, bool, bool, int]]) -> None:
    table = lives(
        [row[0] for row in rows],
        alive="".join("x" if row[1] else " " for row in rows),
        before="".join("x" if row[2] else " " for row in rows),
        sample=[row[3] for row in rows],
    )
    (curve,) = survival(table, draws=50)
    seen = [row for row in rows if not row[2]]
    share = 1.0
    for age, value in zip(curve.ages[1:], curve.survival[1:], strict=True):
        share *= 1 - sum(row[0] == age and not row[1] for row in seen) / sum(row[0] >= age for row in seen)
        assert value == pytest.approx(share)
    assert all(first >= second for first, second in zip(curve.survival, curve.survival[1:], strict=False))
    assert curve.n == len({row[3] for row in rows})
    if curve.n > 1:
        assert curve.low is not None and curve.high is not None
        for low, high in zip(curve.low, curve.high, strict=True):
            assert (low is None) == (high is None)
            assert low is None or 0 <= low <= high <= 1


def test_the_interval_is_over_samples() -> None:
    """A thousand lives in two samples that differ: the interval is as wide as they are apart."""
    table = lives([2] * 500 + [8] * 500, sample=[0] * 500 + [1] * 500)
    (curve,) = survival(table)
    assert (curve.ages, curve.survival) == ([0, 2, 8], [1.0, 0.5, 0.0])
    assert (curve.low, curve.high) == ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0])
    assert (curve.median, curve.median_low, curve.median_high) == (2, 2, 8)


def test_a_curve_that_has_come_down_stays_down() -> None:
    """Draws of the first sample alone reach no age above 2, but all of it is dead by then."""
    (curve,) = survival(lives([2, 8, 20], sample=[0, 1, 1]))
    assert curve.low is not None
    assert (curve.ages, curve.low) == ([0, 2, 8, 20], [1.0, 0.0, 0.0, 0.0])


def test_ages_that_few_draws_reach_have_no_interval() -> None:
    """Only one sample of four has lives that old and leaves others behind: its end is not known without it."""
    table = lives([1, 3, 1, 1, 1, 9, 9], alive=" x   x", sample=[0, 0, 1, 2, 3, 4, 4])
    (curve,) = survival(table, draws=400)
    assert curve.low is not None
    assert curve.low[0] == 1.0
    assert all(low is None or np.isfinite(low) for low in curve.low)


def test_by_a_column_and_for_stays() -> None:
    curves = survival(lives([1, 1, 4]), by="kind")
    assert [(curve.group, curve.lives) for curve in curves] == [("flicker", 2), ("static", 1)]
    table = track_sinks(head(128, 192, stay(62, 20, 38) | stay(88, 39, 70)))
    assert survival(table)[0].ages == [0, 51]
    assert survival(table, of="stays")[0].ages == [0, 19, 32]
    (curve,) = survival(table.slice(0, 1), of="stays", by="kind")
    assert (curve.group, curve.lives) == ("jumping", 2)
    assert survival(dict(zip(table.column_names, table.columns, strict=True)))[0].ages == [0, 51]


def test_a_table_cut_from_a_larger_one() -> None:
    one = track_sinks(head(40, 64, stay(5, 3, 6), stay(9, 20, 29)))
    assert survival(one.slice(1, 1), of="stays")[0].ages == [0, 10]


def test_no_tracks() -> None:
    (curve,) = survival(track_sinks(np.ones((20, 1, 40))))
    assert (curve.ages, curve.survival, curve.n, curve.lives, curve.median) == ([0], [1.0], 0, 0, None)


def test_what_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="unknown of 'heads'; expected one of 'tracks', 'stays'"):
        survival(lives([1]), of="heads")
    with pytest.raises(UsageError, match=r"the table has no .'colour'.; expected the columns of track_sinks"):
        survival(lives([1]), by="colour")


def test_the_median_does_not_depend_on_rounding() -> None:
    for lives in range(2, 200, 2):
        columns = {
            "sample": np.zeros(lives, np.int32),
            "lifetime": np.arange(1, lives + 1),
            "born_before": np.zeros(lives, bool),
            "alive_after": np.zeros(lives, bool),
        }
        assert survival(columns)[0].median == lives / 2
