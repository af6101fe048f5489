"""Looking at a paired comparison after every problem, and stopping as soon as it is settled.

A fixed-n p looked at again and again finds a difference sooner or later, whether there is one or not. A bet does not:
start with wealth 1, stake a share lambda of it on every problem, on d = share right in a - share right in b,

    wealth(m) = product over problems of (1 + lambda (d - m))

If the mean of d is m, no way of betting makes it grow on average, and the chance that it ever reaches 1 / alpha is at
most alpha (Ville), however often and whenever one looks. m = 0 is "no difference": with one draw a problem only the
discordant pairs, right in one cell and wrong in the other, move that wealth. Stop when it reaches 20 x the number of
primary contrasts: the chance that any of them stops without a difference is then at most 5 %.

The bet. lambda may be anything from -1 / (1 - m) to 1 / (1 + m), where the wealth cannot go below 0. It is spread over
64 values there, the nodes of Gauss and Chebyshev, each with 1/64 of the money. For m = 0 and up to 127 discordant
pairs, x gained and y lost, this is exactly the mixture over Beta(1/2, 1/2),

    wealth(0) = 2^(x + y) B(x + 1/2, y + 1/2) / B(1/2, 1/2)

The confidence sequence is every m whose wealth has not reached the threshold so far. It holds the true difference at
all times at once with probability 1 - alpha, so it is what is reported after stopping; intervals made for a fixed n are
not valid then. It asks two things: the order of the problems is drawn beforehand, and the wealth decides when to stop
and nothing else.
"""

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.errors import UsageError
from sinklens.evaluation.outcomes import read_cells
from sinklens.evaluation.paired import whole_weights

WAGER = 20  # 1 / alpha of a single contrast
NODES = 64
STEPS = 1000  # the confidence sequence is found to 1 / STEPS, a tenth of a point


@dataclass(frozen=True, kw_only=True)
class SequentialComparison:
    """accuracy(a) - accuracy(b), looked at after each of n problems. A share: 0.02 is two points."""

    value: float  # over the n problems; too far from 0 where it made the run stop
    low: float | None  # ends of the confidence sequence after n problems, which are not part of it;
    high: float | None  # None where every difference is ruled out, which has a chance of at most alpha
    alpha: float  # 1 / (20 x contrasts)
    n: int  # problems
    stopped_at: int | None  # problems after which the wealth first reached 1 / alpha
    log_wealth: float  # after n problems, natural logarithm
    contrasts: int  # primary contrasts that are watched at once


def compare_sequentially(a: Any, b: Any, *, contrasts: Any = 1) -> SequentialComparison:
    """What is known after these problems, in the order they were run. a, b: [problem] or [problem, draw].

    Call it with all results so far whenever a look is wanted; stop when `stopped_at` is not None, or go on, as one
    likes. What was ruled out once stays so.
    """
    threshold = stop_at(contrasts)
    cell_a, cell_b = read_cells(a=a, b=b)
    weights, unit = whole_weights(cell_a, cell_b)
    steps = np.stack([cell_a.right, cell_b.right], axis=1) @ weights
    differences = steps / unit
    path = log_wealth(differences)
    reached = np.flatnonzero(path >= log(threshold))
    low, high = _confidence_sequence(differences, threshold)
    return SequentialComparison(
        value=int(steps.sum()) / (unit * cell_a.n),
        low=low,
        high=high,
        alpha=1 / threshold,
        n=cell_a.n,
        stopped_at=int(reached[0]) + 1 if len(reached) else None,
        log_wealth=float(path[-1]),
        contrasts=contrasts,
    )


def stop_at(contrasts: Any) -> int:
    """The wealth at which to stop: 20 x the number of primary contrasts of the experiment."""
    if isinstance(contrasts, bool) or not isinstance(contrasts, int) or contrasts < 1:
        raise UsageError(f"contrasts is {contrasts!r}; expected the number of primary contrasts, 1 or more")
    return WAGER * contrasts


def log_wealth(differences: Any, *, at: Any = 0.0) -> Float[np.ndarray, "*runs problem"]:
    """Logarithm of the wealth after each problem, of a bet against mean d = `at`; d from -1 to 1, last axis in order.

    >>> np.exp(log_wealth([1, 0, 1])).round(3).tolist()
    [1.0, 1.0, 1.5]
    """
    d = np.asarray(differences, np.float64)
    if d.ndim == 0 or not (np.abs(d) <= 1).all():
        raise UsageError("differences must be numbers from -1 to 1, one for each problem; expected [..., problem]")
    if not -1 < at < 1:
        raise UsageError(f"at is {at}; expected a difference between -1 and 1: two points are 0.02")
    stakes = _stakes(np.asarray(at))
    return _mix(np.cumsum(np.log1p(stakes * (d[..., None] - at)), axis=-2))


def _stakes(at: Float[np.ndarray, "*hypotheses"]) -> Float[np.ndarray, "*hypotheses bet"]:
    """The bets against each hypothesis."""
    nodes = np.cos((2 * np.arange(NODES) + 1) * np.pi / (2 * NODES))
    least, most = -1 / (1 - at[..., None]), 1 / (1 + at[..., None])
    return (least + most) / 2 + (most - least) / 2 * nodes


def _mix(logs: Float[np.ndarray, "*rows bet"]) -> Float[np.ndarray, "*rows"]:
    """Logarithm of the mean wealth over the bets."""
    top = logs.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(logs - top).mean(axis=-1)))


def _confidence_sequence(
    differences: Float[np.ndarray, " problem"], threshold: int
) -> tuple[float | None, float | None]:
    """The ruled-out hypotheses nearest to those that remain, on a grid; a hypothesis once ruled out stays so."""
    places = np.arange(1 - STEPS, STEPS)
    means = places / STEPS
    stakes = _stakes(means)
    logs = np.zeros_like(stakes)
    for d in differences:
        logs += np.log1p(stakes * (d - means[:, None]))
        keep = _mix(logs) < log(threshold)
        if not keep.all():
            places, means, stakes, logs = places[keep], means[keep], stakes[keep], logs[keep]
        if not len(places):
            return None, None
    return (int(places[0]) - 1) / STEPS, (int(places[-1]) + 1) / STEPS
