"""Cells of a compression experiment: their level and their differences, with intervals over problems.

The unit is the problem (a prompt, or a chunk of text). Draws of a random order are averaged within their problem.
Shares of right answers have Wilson's interval, other scores and losses the percentile interval of the bootstrap over
problems. Differences are taken problem by problem, over those that both cells have, with the bootstrap. All 95 %.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sinklens.cache.settings import ORDERS
from sinklens.evaluation.compress_cells import NOTHING, Cell
from sinklens.evaluation.outcomes import accuracy
from sinklens.sinks.intervals import wilson
from sinklens.sinks.resample import Interval, bootstrap

DRAWS = 10_000  # of the bootstrap
USUAL = "0,1"  # layers that stay whole unless something else is asked for
Row = Mapping[str, Any]
Values = dict[Any, list[float]]  # by problem, one a draw


def cell_of(row: Row) -> Cell:
    names = ("order", "keep", "skip", "schedule", "strict", "first", "last")
    return Cell(**{name: row[name] for name in names})


def by_cell(rows: Iterable[Row], value: Callable[[Row], float]) -> dict[Cell, Values]:
    """Values by cell (whatever the draw) and problem."""
    found: dict[Cell, Values] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[cell_of(row)][(row.get("depth"), row["problem"])].append(value(row))
    return dict(sorted(found.items(), key=lambda one: rank(one[0])))


def rank(cell: Cell) -> tuple[Any, ...]:
    """The place of a cell in tables: the whole cache, then larger budgets before smaller ones, by order."""
    if cell.order == NOTHING:
        return (0,)
    budget = (cell.keep.endswith("%"), -float(cell.keep.removesuffix("%")))
    return 1, cell.schedule, len(cell.skip), cell.skip, cell.strict, *budget, ORDERS.index(cell.order)


def entry(cell: Cell, values: Mapping[Cell, Values], *, binary: bool) -> dict[str, Any]:
    """One cell: its level, its difference to the untouched cache, to random entries of the same budget, and to the
    same with the usual layers whole."""
    mine = values[cell]
    compressed = cell.order != NOTHING
    plain = values.get(Cell()) if compressed else None
    drawn = values.get(replace(cell, order="random")) if compressed and cell.order != "random" else None
    usual = values.get(replace(cell, skip=USUAL)) if compressed and cell.skip != USUAL else None
    return {
        "cell": str(cell),
        **{name: value for name, value in cell.as_dict().items() if name != "draw"},
        "value": asdict(_level(mine, binary=binary)),
        "to_none": _difference(mine, plain) if plain else None,
        "to_random": _difference(mine, drawn) if drawn else None,
        "to_usual_layers": _difference(mine, usual) if usual else None,
        "draws": max(len(one) for one in mine.values()),
    }


def _level(values: Values, *, binary: bool) -> Interval:
    if not binary:
        return bootstrap([mean(one) for one in values.values()], draws=DRAWS)
    counts = {len(one) for one in values.values()}
    if len(counts) == 1:
        return accuracy(list(values.values()))
    shares = [mean(one) for one in values.values()]  # broken off between two draws
    return wilson(sum(shares), len(shares))


def _difference(mine: Values, other: Values) -> dict[str, Any]:
    both = [problem for problem in mine if problem in other]
    return asdict(bootstrap([mean(mine[one]) - mean(other[one]) for one in both], draws=DRAWS))


def mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
