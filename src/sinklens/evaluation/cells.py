"""The rows of a masking experiment as cells: what one model does on one task under one condition.

A family is one model on one task and split. Its cells answer the same problems: a problem counts where every cell of
the family has it, with all of its draws. A cell's draws, those of a random control, are nested in the problems.

Rows are read from rows/*.parquet of the experiment's folder, one row a problem, condition and draw; their order plays
no part. Seconds come from timings.parquet or timings/*.parquet, and are a cell's seconds a problem.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isnan
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import CHOICES, Condition, parse_condition
from sinklens.evaluation.grid import CHANGED, settings_of
from sinklens.evaluation.outcomes import Outcomes
from sinklens.evaluation.row_files import read_batch

MEASURED = ("dose", "keys_removed", "tokens", "steps")  # of a row: averaged over a cell
COLUMNS = ("model", "causal", "task", "split", "condition", "problem", "right", *MEASURED)
Row = Mapping[str, Any]
CellKey = tuple[str, str, str]  # model, task, name of the cell


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """What a model does on the problems of a family under one condition."""

    condition: Condition  # its draw is 0, whatever draws there are
    outcomes: Outcomes
    dose: float | None  # mean over rows; None where nothing is removed
    keys_removed: float | None  # a head and query-step
    tokens: float | None  # written, a problem
    steps: float | None  # executed, a problem
    seconds: float | None  # a problem and draw

    @property
    def name(self) -> str:
        return str(self.condition)


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """The cells of one model on one task."""

    model: str
    task: str
    split: str
    causal: bool | None  # None: the rows do not say
    problems: tuple[int, ...]  # that count, in ascending order
    answered: Mapping[str, int]  # problems that each cell has, counted or not
    cells: tuple[Cell, ...]

    def settings(self, condition: Condition, **changed: str | None) -> dict[str, str | None]:
        """What the condition does to this model, with nothing left open; changed: as in `settings_of`."""
        return settings_of(condition, causal=self.causal, **changed)

    def find(self, choose: str, *, like: Condition | None = None, **changed: Any) -> Cell | None:
        """The cell that chooses keys so, with the settings of `like` (None: the family's own) apart from those named;
        a setting named None is left to the family."""
        start = like if like is not None else Condition()
        wanted = self.settings(start, **{name: value for name, value in changed.items() if name in CHANGED})
        top, epsilon = (changed.get(name, getattr(start, name)) for name in ("top", "epsilon"))
        for cell in self.cells:
            one = cell.condition
            same = one.choose == choose and (one.top, one.epsilon) == (top, epsilon)
            if same and (choose == "none" or self.settings(one) == wanted):
                return cell
        return None

    @property
    def unmasked(self) -> Cell | None:
        return self.find("none", top=None, epsilon=None)


def read_families(folder: Path) -> list[Family]:
    """Every model and task of a folder, by model, task and split."""
    grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in read_rows(folder):
        grouped[row["model"], row["task"], row["split"]].append(row)
    seconds = seconds_a_problem(folder)
    return [_family(key, rows, seconds=seconds) for key, rows in sorted(grouped.items(), key=lambda one: one[0])]


def read_rows(folder: Path) -> list[Row]:
    """Every row, with the columns that results are made of."""
    rows = _read_parquet(folder, "rows")
    if not rows:
        raise UsageError(f"{folder} has no rows/*.parquet; expected a folder that `sinklens mask --to` wrote")
    missing = [name for name in COLUMNS if name not in rows[0]]
    if missing:
        raise UsageError(f"the rows of {folder} lack {', '.join(missing)}; expected the columns {', '.join(COLUMNS)}")
    return rows


def seconds_a_problem(folder: Path) -> dict[CellKey, float]:
    """Seconds a problem and draw by model, task and cell, over all batches; empty where nothing was timed.

    Batches that recorded where the attention went took longer: they count only where a cell has no others.
    """
    spent: dict[CellKey, dict[bool, list[float]]] = defaultdict(lambda: {False: [0.0, 0.0], True: [0.0, 0.0]})
    for row in _read_parquet(folder, "timings"):
        sums = spent[row["model"], row["task"], cell_name(row["condition"])][bool(row.get("followed"))]
        sums[0] += row["seconds"]
        sums[1] += row["problems"]
    chosen = {key: sums[not sums[False][1]] for key, sums in spent.items()}
    return {key: taken / problems for key, (taken, problems) in chosen.items() if problems}


def read_flows(folder: Path) -> list[Row]:
    """Where attention went, as the run has recorded it; empty where it has not."""
    return _read_parquet(folder, "flows")


def _read_parquet(folder: Path, name: str) -> list[Row]:
    """name.parquet and name/*.parquet as one table. Columns that a file has no values for may have no type there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    single = folder / f"{name}.parquet"
    files = [*([single] if single.is_file() else []), *sorted((folder / name).rglob("*.parquet"))]
    tables = []
    for path in files:
        known = pq.read_schema(path).names
        wanted = [column for column in COLUMNS if column in known] if name == "rows" else None
        tables.append(read_batch(path, wanted))
    if not tables:
        return []
    found: list[Row] = pa.concat_tables(tables, promote_options="permissive").to_pylist()
    return found


def cell_name(condition: str) -> str:
    """What all draws of a condition have in common."""
    return str(replace(parse_condition(condition), draw=0))


def _family(key: tuple[str, str, str], rows: Sequence[Row], *, seconds: Mapping[CellKey, float]) -> Family:
    model, task, split = key
    by_draw: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row["problem"] in by_draw[row["condition"]]:
            raise UsageError(
                f"problem {row['problem']} of {model}, {task}, {split} stands twice under {row['condition']!r}; "
                "expected one row: keep the rows of one experiment in a folder"
            )
        by_draw[row["condition"]][row["problem"]] = row
    by_cell: dict[str, list[dict[int, Row]]] = defaultdict(list)
    for text in sorted(by_draw):
        by_cell[cell_name(text)].append(by_draw[text])
    problems = tuple(sorted(set.intersection(*(set(found) for found in by_draw.values()))))
    cells = [
        _cell(parse_condition(name), draws, problems=problems, seconds=seconds.get((model, task, name)))
        for name, draws in by_cell.items()
    ]
    return Family(
        model=model,
        task=task,
        split=split,
        causal=rows[0]["causal"],
        problems=problems,
        answered={cell.name: min(map(len, by_cell[cell.name])) for cell in sorted(cells, key=_place)},
        cells=tuple(sorted(cells, key=_place)) if problems else (),
    )


def _cell(
    condition: Condition, draws: Sequence[Mapping[int, Row]], *, problems: Sequence[int], seconds: float | None
) -> Cell:
    right = [sum(bool(one[problem]["right"]) for one in draws) for problem in problems]
    counted = [one[problem] for one in draws for problem in problems]
    measured = {name: _mean(row[name] for row in counted) for name in MEASURED}
    outcomes = Outcomes(right=np.array(right, np.int64), draws=len(draws))
    return Cell(condition=condition, outcomes=outcomes, seconds=seconds, **measured)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and not isnan(value)]
    return fsum(known) / len(known) if known else None  # exact: sums do not depend on the order of rows


def _place(cell: Cell) -> tuple[Any, ...]:
    """Unmasked, then the sinks, then the controls; within them by top, then epsilon."""
    one = cell.condition
    choice = ("none", *CHOICES).index(one.choose)
    return choice, one.epsilon is not None, one.top or 0, one.epsilon or 0.0, len(cell.name), cell.name
