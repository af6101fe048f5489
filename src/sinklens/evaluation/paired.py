"""The difference between two cells of an experiment on the same problems.

    difference = accuracy(a) - accuracy(b) = mean over problems of d,   d = share right in a - share right in b

Problems differ far more among themselves than a problem does between two cells, so the pairs are kept: intervals draw
whole problems (`outcomes.py`), and the test asks about d.

The test. With as many draws in a as in b, and the two alike, d is as likely to be x as -x. Of all ways to flip the
signs of the d that are not 0, p is the share whose sum is at least as far from 0 as the one that came out: exact, by
counting sums and not by drawing flips. With one draw in each cell d is -1, 0 or 1, and this is McNemar's exact test,

    p = min(1, 2 P(Bin(gained + lost, 1/2) <= min(gained, lost)))

One draw against D > 1 is not symmetric: where most answers are right, d is seldom -1 and often 1/D. Two hypotheses are
then tested, and p is the larger of the two:

    one more draw   the single answer is one of D + 1 alike. With s of them right it is right with chance s / (D + 1),
                    separately for each problem; the number of right single answers has a Poisson-binomial
                    distribution, and p is the chance of all numbers no likelier than the one that came out: exact
    sign flips      equal accuracy, though on other problems; close where many problems differ

Neither p will do alone. Flips reject too often near 0 and near 1. One more draw also rejects where the accuracies are
equal, and the single cell merely gets other problems right than the D draws do.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from sinklens.evaluation.outcomes import DRAWS, Outcomes, percentile_interval, read_cells, resample
from sinklens.sinks.resample import Interval

Test = Literal["mcnemar", "sign flips", "one more draw and sign flips"]
NARROW = 0.90  # the level whose two ends are one-sided tests at 5 % each
ROUNDING = 1e-9  # of chances, relative: those that differ by less are equal


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """accuracy(a) - accuracy(b) over the same problems. A share: 0.02 is two points."""

    interval: Interval  # 95 %, over problems
    interval_90: Interval  # 90 %: what an equivalence is judged by
    gained: float  # problems that a gets right and b does not; with several draws, the sum of the d above 0
    lost: float  # the reverse
    p: float  # two-sided
    test: Test
    n: int  # problems
    draws_a: int  # of each problem
    draws_b: int

    @property
    def value(self) -> float:
        """The difference."""
        assert self.interval.value is not None
        return self.interval.value


def paired_difference(
    a: Any, b: Any, *, draws: int = DRAWS, seed: int = 0, resample_draws: bool = True
) -> PairedDifference:
    """accuracy(a) - accuracy(b), with intervals and a test. a, b: [problem] or [problem, draw], the same problems.

    The numbers of draws may differ: one for a mask that is always the same, five for a random one. Draws of a and b
    are not paired with each other. resample_draws: False draws whole problems only (see `outcomes.py`).

    >>> found = paired_difference([1, 1, 1, 0, 1, 1], [1, 0, 0, 0, 1, 0])
    >>> found.value, found.gained, found.lost, found.p
    (0.5, 3.0, 0.0, 0.25)
    """
    cell_a, cell_b = read_cells(a=a, b=b)
    weights, unit = whole_weights(cell_a, cell_b)
    steps = np.stack([cell_a.right, cell_b.right], axis=1) @ weights
    n, (test, p) = cell_a.n, _tested(cell_a, cell_b, steps)
    value = int(steps.sum()) / (n * unit)
    spread = resample([cell_a, cell_b], draws=draws, seed=seed, within=resample_draws) @ weights / (n * unit)
    return PairedDifference(
        interval=percentile_interval(value, spread, n=n),
        interval_90=percentile_interval(value, spread, n=n, level=NARROW),
        gained=int(steps[steps > 0].sum()) / unit,
        lost=int(-steps[steps < 0].sum()) / unit,
        p=p,
        test=test,
        n=n,
        draws_a=cell_a.draws,
        draws_b=cell_b.draws,
    )


def _tested(a: Outcomes, b: Outcomes, steps: Int[np.ndarray, " problem"]) -> tuple[Test, float]:
    fewer, more = sorted((a, b), key=lambda cell: cell.draws)
    flipped = sign_flip_p(steps)
    if more.draws == 1:
        return "mcnemar", flipped
    if fewer.draws > 1:
        return "sign flips", flipped
    return "one more draw and sign flips", max(flipped, one_more_draw_p(fewer.right, more.right, draws=more.draws))


def whole_weights(a: Outcomes, b: Outcomes) -> tuple[Int[np.ndarray, " 2"], int]:
    """Weights of right draws in a and b that make d a whole number of steps of 1 / unit, and the unit.

    Sums of whole numbers are exact: whether two are equal, or one is beyond a margin, is not for rounding to say.
    """
    common = gcd(a.draws, b.draws)
    return np.array([b.draws // common, -(a.draws // common)]), a.draws * b.draws // common


def sign_flip_p(values: Int[np.ndarray, " problem"]) -> float:
    """P(|sum of +-values| >= |sum of values|) with independent fair signs.

    The distribution of the sum is built up one size at a time: of c values of one size s, a binomial number j is
    positive, and they add s (2j - c).
    """
    from scipy.stats import binom

    values = values // max(1, np.gcd.reduce(values))
    sizes, counts = np.unique(np.abs(values[values != 0]), return_counts=True)
    chances: Float[np.ndarray, " total"] = np.ones(1)  # of the sums -reach..reach
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        wider = np.zeros(len(chances) + 2 * size * count)
        for positive, chance in enumerate(binom.pmf(np.arange(count + 1), count, 0.5)):
            start = 2 * size * positive
            wider[start : start + len(chances)] += chance * chances
        chances = wider
    totals = np.arange(len(chances)) - len(chances) // 2
    return min(1.0, float(chances[np.abs(totals) >= abs(int(values.sum()))].sum()))


def one_more_draw_p(single: Int[np.ndarray, " problem"], right: Int[np.ndarray, " problem"], *, draws: int) -> float:
    """Chance of a number of right single answers no likelier than this one, if each is one of draws + 1 alike.

    single: 0 or 1; right: of so many draws. Problems with equally many right of the draws + 1 are alike: the number of
    right single answers among c of them is Bin(c, s / (draws + 1)), and the numbers of all kinds add up.

    >>> one_more_draw_p(np.array([0, 0]), np.array([2, 2]), draws=2)  # 1/3 of being wrong, twice
    0.1111111111111111
    """
    from scipy.stats import binom

    chances: Float[np.ndarray, " number"] = np.ones(1)  # of 0, 1, ... right single answers
    for together, count in zip(*np.unique(single + right, return_counts=True), strict=True):
        chances = np.convolve(chances, binom.pmf(np.arange(count + 1), count, together / (draws + 1)))
    return min(1.0, float(chances[chances <= chances[int(single.sum())] * (1 + ROUNDING)].sum()))
