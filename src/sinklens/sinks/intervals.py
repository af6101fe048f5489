"""An interval for a share of independent trials, such as problems answered right.

Wilson's: all p that a score test at this level does not reject. It keeps its level for few trials and for shares near
0 and 1, where p +- z s / sqrt(n) has no width at all: 0 of 8 gives 0 to 0.32.
"""

from math import sqrt
from statistics import NormalDist
from typing import Any

from sinklens.errors import UsageError
from sinklens.sinks.resample import LEVEL, Interval


def wilson(right: Any, total: Any, *, level: float = LEVEL) -> Interval:
    """The share `right` / `total`, and its interval; without trials there is neither.

    With p the share, n the trials and z the quantile of the level:

        (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    >>> found = wilson(0, 8)
    >>> found.value, found.low, round(found.high, 2)
    (0.0, 0.0, 0.32)
    """
    if not 0 <= right <= total:
        raise UsageError(f"right is {right} and total {total}; expected a count from 0 to total")
    if not 0 < level < 1:
        raise UsageError(f"level is {level}; expected a number between 0 and 1, such as 0.95")
    if total == 0:
        return Interval(value=None, low=None, high=None, n=0)
    share, z = right / total, NormalDist().inv_cdf((1 + level) / 2)
    widened = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / widened
    half = z * sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / widened
    # The ends are exact where all or none are right; rounding must not move them.
    low = 0.0 if right == 0 else max(0.0, centre - half)
    high = 1.0 if right == total else min(1.0, centre + half)
    return Interval(value=share, low=low, high=high, n=total)
