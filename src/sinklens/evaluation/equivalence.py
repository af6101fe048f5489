"""When two cells may be called equally good: two one-sided tests, each at 5 %.

"Robust" says that a difference as large as the margin, two points unless said otherwise, is ruled out on both sides:
the 90 % interval lies within -margin..margin. That a difference is not significant says no such thing.

The interval of the bootstrap is not enough. It knows no disagreement that the problems do not show: where two cells
agree on all of ten problems it is 0..0. So a second interval has to lie within the margin too, Tango's (1998), all
differences that a score test does not reject. With x problems gained, y lost, n in all:

    T(delta) = (x - y - n delta) / sqrt(n (2 q + delta (1 - delta)))
    q = (sqrt(B^2 - 4 A C) - B) / 2A     the most likely P(lost) if the difference is delta
    A = 2n,  B = (2n - x + y) delta - x - y,  C = -y delta (1 - delta)

With no disagreement its end is z^2 / (n + z^2): below 2 points from 133 problems on. With several draws a problem, x
and y are sums of shares; the formula then takes the spread of d for larger than it is, and the interval is wide, never
narrow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.paired import NARROW, PairedDifference
from sinklens.sinks.resample import Interval

MARGIN = 0.02  # two points
ROUNDING = 1e-9  # of sums of shares, in problems
HALVINGS = 60  # of an interval of width 2: below the spacing of float64 near 1


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Whether a difference lies within the margin."""

    robust: bool  # both intervals lie within -margin..margin
    margin: float  # a share
    bootstrap: Interval  # 90 %
    score: Interval  # 90 %, Tango's
    p: float  # the larger of the two one-sided p of the score test: at most 0.05 where `score` lies within


def judge_equivalence(difference: PairedDifference, *, margin: Any = MARGIN) -> Equivalence:
    """Is the difference smaller than the margin, either way? The margin is chosen before the run."""
    if not 0 < margin < 1:
        raise UsageError(f"margin is {margin}; expected a share between 0 and 1: two points are 0.02")
    gained, lost, n = difference.gained, difference.lost, difference.n
    bootstrap, score = difference.interval_90, score_interval(gained, lost, n=n, level=NARROW)
    above = NormalDist().cdf(score_statistic(gained, lost, n=n, delta=margin))
    below = NormalDist().cdf(-score_statistic(gained, lost, n=n, delta=-margin))
    return Equivalence(
        robust=_within(bootstrap, margin) and _within(score, margin),
        margin=float(margin),
        bootstrap=bootstrap,
        score=score,
        p=max(above, below),
    )


def score_interval(gained: Any, lost: Any, *, n: int, level: float) -> Interval:
    """Tango's interval for (gained - lost) / n: all delta with |T(delta)| <= z.

    >>> found = score_interval(0, 0, n=133, level=0.90)
    >>> found.value, round(found.low, 4), round(found.high, 4)
    (0.0, -0.0199, 0.0199)
    """
    value, z = (gained - lost) / n, NormalDist().inv_cdf((1 + level) / 2)
    # T falls in delta, from one side of the value to the other.
    low = _crossing(lambda delta: score_statistic(gained, lost, n=n, delta=delta) >= z, -1.0, value)
    high = _crossing(lambda delta: score_statistic(gained, lost, n=n, delta=delta) > -z, value, 1.0)
    return Interval(value=value, low=low, high=high, n=n)


def score_statistic(gained: Any, lost: Any, *, n: int, delta: float) -> float:
    """T(delta): how many standard errors the difference lies above delta, if delta were true."""
    if gained < 0 or lost < 0 or gained + lost > n + ROUNDING or n < 1:
        raise UsageError(f"gained {gained}, lost {lost}, n {n}; expected counts of problems, together at most n")
    above = float(gained - lost - n * delta)
    a, b, c = 2 * n, (2 * n - gained + lost) * delta - gained - lost, -lost * delta * (1 - delta)
    rarer = (sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * max(0.0, 2 * rarer + delta * (1 - delta))
    if variance == 0:
        return 0.0 if above == 0 else float("inf") if above > 0 else float("-inf")
    return above / sqrt(variance)


def _crossing(still_left: Callable[[float], bool], low: float, high: float) -> float:
    """Where `still_left` turns from true to false between low and high, by halving."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if still_left(middle) else (low, middle)
    return (low + high) / 2


def _within(interval: Interval, margin: float) -> bool:
    return interval.low is not None and interval.high is not None and -margin < interval.low and interval.high < margin
