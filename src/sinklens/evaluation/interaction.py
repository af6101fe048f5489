"""Does the same treatment do more to one model than to another? A difference of paired differences.

    in points    (accuracy(treated) - accuracy(control)) of the first  -  the same of the second
    in log-odds  (logit(treated) - logit(control)) of the first  -  the same of the second
                 logit = log((right + 1/2) / (wrong + 1/2)), in problems

The halves are the continuity correction: they keep a cell with none or all right finite, and pull it towards even odds
(0 of 100 counts as 0.5 of 101). Both models answer the same problems, so the bootstrap draws problems for all cells at
once.

A model that cannot do the task has nothing to lose: below a baseline of 0.6 in either model there is no answer. Points
and log-odds may disagree, even in sign, where the controls are unequal; then the interaction is a matter of the scale.

p is that of sign flips (paired.py), of the problems' differences of differences in points: all flips are counted, none
is drawn. It is exact where a problem's value is as likely x as -x. Equal effects alone do not make it so: not where one
draw stands against several, nor where the models are unequally near 0 or 1. There it is close if many problems differ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.errors import UsageError
from sinklens.evaluation.outcomes import DRAWS, Outcomes, percentile_interval, read_cells, resample
from sinklens.evaluation.paired import sign_flip_p, whole_weights
from sinklens.sinks.resample import Interval

FLOOR = 0.6  # least accuracy of both baselines


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCells:
    """What one model does, each [problem] or [problem, draw]."""

    treated: Any  # such as sinks masked
    control: Any  # such as random keys masked, or nothing
    baseline: Any = None  # the untouched model; None: the control is it


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """The difference of the first model less that of the second. Refused: neither interval nor p."""

    points: Interval | None  # a share: 0.02 is two points; 95 %
    log_odds: Interval | None  # 95 %
    p: float | None  # of points, by sign flips (see above)
    baselines: tuple[float, float]  # accuracies
    refused: str | None  # why there is no answer


def interaction(
    first: ModelCells, second: ModelCells, *, floor: Any = FLOOR, draws: int = DRAWS, seed: int = 0
) -> Interaction:
    """(treated - control of the first) - (treated - control of the second), where both baselines reach the floor."""
    if not 0 <= floor <= 1:
        raise UsageError(f"floor is {floor}; expected a share from 0 to 1, such as 0.6")
    *cells, first_baseline, second_baseline = read_cells(
        first_treated=first.treated,
        first_control=first.control,
        second_treated=second.treated,
        second_control=second.control,
        first_baseline=first.control if first.baseline is None else first.baseline,
        second_baseline=second.control if second.baseline is None else second.baseline,
    )
    baselines = first_baseline.share, second_baseline.share
    if min(baselines) < floor:
        return Interaction(
            points=None,
            log_odds=None,
            p=None,
            baselines=baselines,
            refused=f"baselines are {baselines[0]:.4f} and {baselines[1]:.4f}; both must be at least {floor}",
        )
    n, signs = cells[0].n, np.array([1.0, -1.0, -1.0, 1.0])
    weights, unit = _whole_weights(cells)
    per_problem = np.stack([one.right for one in cells], axis=1)
    seen, drawn = per_problem.sum(axis=0), resample(cells, draws=draws, seed=seed)
    draws_of = np.array([one.draws for one in cells])
    logit_seen, logit_drawn = (_logit(right / draws_of, n) @ signs for right in (seen, drawn))
    return Interaction(
        points=percentile_interval(int(seen @ weights) / (n * unit), drawn @ weights / (n * unit), n=n),
        log_odds=percentile_interval(float(logit_seen), logit_drawn, n=n),
        p=sign_flip_p(per_problem @ weights),
        baselines=baselines,
        refused=None,
    )


def _logit(right: Float[np.ndarray, "..."], n: int) -> Float[np.ndarray, "..."]:
    """Log-odds of so many problems of n, with the continuity correction."""
    return np.asarray(np.log((right + 0.5) / (n - right + 0.5)))


def _whole_weights(cells: list[Outcomes]) -> tuple[Int[np.ndarray, " 4"], int]:
    """Weights that make the difference of differences a whole number of steps of 1 / unit, and the unit."""
    first, unit_first = whole_weights(cells[0], cells[1])
    second, unit_second = whole_weights(cells[2], cells[3])
    return np.concatenate([first * unit_second, -second * unit_first]), unit_first * unit_second
