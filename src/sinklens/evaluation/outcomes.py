"""Right and wrong answers of one cell of an experiment, by problem, and the bootstrap over problems.

The unit is the problem. A random control answers each problem several times: its draws are nested in the problem, make
its share of right answers finer, and are never counted as problems.

The bootstrap draws whole problems with replacement, together in all cells, and then draws within them:

    accuracy* = 1/n sum over drawn problems i of Bin(D, r_i / D) / D,   r_i of D draws right

Problems with the same results in all cells are alike to it, so it draws how often each kind of problem occurs: one
multinomial and one binomial draw for each kind, whatever n is. Drawing within problems widens the interval a little
more than needed, as the spread between problems already holds the spread of their draws; with one draw a problem it
changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.intervals import wilson
from sinklens.sinks.resample import LEVEL, Interval

DRAWS = 10_000  # of the bootstrap


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcomes:
    """How many of its draws each problem got right."""

    right: Int[np.ndarray, " problem"]  # from 0 to draws
    draws: int  # of each problem

    @property
    def n(self) -> int:
        """The number of problems."""
        return len(self.right)

    @property
    def share(self) -> float:
        """The accuracy: mean over problems of their share of right draws."""
        return int(self.right.sum()) / (self.n * self.draws)


def read_outcomes(results: Any, name: str = "results") -> Outcomes:
    """Results of one cell, [problem] or [problem, draw], 0 or 1 (False or True) each."""
    if isinstance(results, Outcomes):
        return results
    try:
        values = np.asarray(results, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be read as results ({error}); expected 0 or 1 for each problem") from None
    if values.ndim not in (1, 2):
        raise UsageError(f"{name} has shape {values.shape}; expected [problem] or [problem, draw]")
    if values.size == 0:
        raise UsageError(f"{name} has shape {values.shape}, no results; expected at least one problem and one draw")
    if not np.isin(values, (0.0, 1.0)).all():
        strange = values[~np.isin(values, (0.0, 1.0))][0]
        raise UsageError(f"{name} has the value {strange}; expected 0 or 1: leave out problems without a result")
    table = values.astype(np.int64).reshape(len(values), -1)
    return Outcomes(right=table.sum(axis=1), draws=table.shape[1])


def read_cells(**results: Any) -> list[Outcomes]:
    """Cells on the same problems, in the same order."""
    cells = [read_outcomes(one, name) for name, one in results.items()]
    if len({one.n for one in cells}) > 1:
        counts = ", ".join(f"{name} {one.n}" for name, one in zip(results, cells, strict=True))
        raise UsageError(f"cells have different numbers of problems ({counts}); expected the same problems in all")
    return cells


def accuracy(results: Any, *, level: Any = LEVEL) -> Interval:
    """The share of right answers, and Wilson's interval with n = problems. `results`: [problem] or [problem, draw].

    With several draws a problem the number right is the sum of the problems' shares. Such shares spread less than 0
    and 1 do, so the interval is then a little wide, never narrow.

    >>> found = accuracy([1, 1, 0, 1])
    >>> found.value, round(found.low, 2), round(found.high, 2), found.n
    (0.75, 0.3, 0.95, 4)
    """
    cell = read_outcomes(results)
    right = int(cell.right.sum())
    # All and none right stay exact, as Wilson's ends do.
    return wilson(right // cell.draws if right % cell.draws == 0 else right / cell.draws, cell.n, level=level)


def resample(
    cells: Sequence[Outcomes], *, draws: int = DRAWS, seed: int = 0, within: bool = True
) -> Int[np.ndarray, "draw cell"]:
    """Right answers of all cells on n problems drawn with replacement, the same problems in each.

    Divided by n and the cell's draws, these are accuracies; as whole numbers, their differences are exact.

    within: also draw from the draws of each drawn problem, separately in each cell.
    """
    if draws < 1:
        raise UsageError(f"draws is {draws}; expected at least 1, and 1000 or more for an interval to be read")
    kinds, counts = np.unique(np.stack([one.right for one in cells], axis=1), axis=0, return_counts=True)
    n, rng = int(counts.sum()), np.random.default_rng(seed)
    times = rng.multinomial(n, counts / n, size=draws)  # [draw, kind]
    found = np.empty((draws, len(cells)), np.int64)
    for index, cell in enumerate(cells):
        right = kinds[:, index]
        drawn = rng.binomial(times * cell.draws, right / cell.draws) if within else times * right
        found[:, index] = drawn.sum(axis=1)
    return found


def percentile_interval(value: float, drawn: Float[np.ndarray, " draw"], *, n: int, level: float = LEVEL) -> Interval:
    """The value between the (1 - level) / 2 and (1 + level) / 2 quantiles of its draws; no ends with one problem."""
    if n < 2:
        return Interval(value=value, low=None, high=None, n=n)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=value, low=float(low), high=float(high), n=n)
