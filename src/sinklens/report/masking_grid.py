"""A masking result in the shape of the paper's Table 1, before it is typeset.

One block a model: the sinks first, each control beneath. One column for each task and number of keys; the untouched
model is the column 0 of the sinks. Only cells with the family's own settings stand here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinklens.evaluation.conditions import CHOICES
from sinklens.evaluation.contrasts import dose_differs

Result = Mapping[str, Any]
Entry = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    task: str  # with its split where there are several
    top: int  # 0: nothing is masked


@dataclass(frozen=True, kw_only=True)
class Line:
    """A choice of keys in all columns; None where there is no such cell."""

    choose: str
    cells: tuple[Entry | None, ...]

    @property
    def label(self) -> str:
        return CHOICES[self.choose][2]


@dataclass(frozen=True, kw_only=True)
class Grid:
    columns: tuple[Column, ...]
    blocks: Mapping[str, tuple[Line, ...]]  # by model

    @property
    def tasks(self) -> dict[str, int]:
        """How many columns each task has."""
        return {task: sum(one.task == task for one in self.columns) for task in dict.fromkeys(_tasks(self.columns))}

    @property
    def flagged(self) -> bool:
        """Whether a dose differs from that of the sinks in its column."""
        return any(
            cell and cell["dose_differs"] for lines in self.blocks.values() for line in lines for cell in line.cells
        )

    def doses_apart(self) -> list[Column]:
        """Columns in which the sinks of two models have different doses."""
        found = []
        for place, column in enumerate(self.columns):
            sinks = [line.cells[place] for lines in self.blocks.values() for line in lines if line.choose == "sinks"]
            doses = [cell["dose"] for cell in sinks if cell is not None and cell["dose"] is not None]
            if doses and dose_differs(max(doses), min(doses)):
                found.append(column)
        return found

    def restricted(self, tasks: Sequence[str]) -> "Grid":
        """The columns of some tasks, with the lines that have a cell there."""
        keep = [place for place, column in enumerate(self.columns) if column.task in tasks]
        blocks = {
            model: tuple(
                Line(choose=line.choose, cells=tuple(line.cells[place] for place in keep))
                for line in lines
                if any(line.cells[place] for place in keep)
            )
            for model, lines in self.blocks.items()
        }
        columns = tuple(self.columns[place] for place in keep)
        return Grid(columns=columns, blocks={model: lines for model, lines in blocks.items() if lines})


def grid_of(result: Result) -> Grid:
    """The cells of a result with a number of keys, by model, choice, task and number."""
    found: dict[tuple[str, str, str, int], Entry] = {}
    for family in result["families"]:
        for cell in family["cells"]:
            if cell["choose"] == "none":
                found[family["model"], "sinks", task_name(result, family), 0] = cell
            elif cell["plain"] and cell["top"] is not None:
                found.setdefault((family["model"], cell["choose"], task_name(result, family), cell["top"]), cell)
    columns = tuple(Column(task=task, top=top) for task, top in sorted({(task, top) for _, _, task, top in found}))
    return Grid(
        columns=columns,
        blocks={
            model: tuple(
                Line(choose=choose, cells=tuple(found.get((model, choose, one.task, one.top)) for one in columns))
                for choose in CHOICES
                if any(key[:2] == (model, choose) for key in found)
            )
            for model in models_of(result)
            if any(key[0] == model for key in found)
        },
    )


def models_of(result: Result) -> list[str]:
    return list(dict.fromkeys(family["model"] for family in result["families"]))


def task_name(result: Result, entry: Entry) -> str:
    """The task of a family, an interaction or a square; its split too where the experiment has several."""
    several = len({family["split"] for family in result["families"]}) > 1
    return f"{entry['task']} ({entry['split']})" if several else str(entry["task"])


def primary_tops(result: Result) -> list[int]:
    """The numbers of keys of the primary contrasts, mostly one."""
    primaries = [(family, family["primary"]) for family in result["families"] if family["primary"]]
    tops = {cell["top"] for family, one in primaries for cell in family["cells"] if cell["condition"] == one["a"]}
    return sorted(tops)


def family_kind(causal: bool | None) -> str:
    return {True: "causal", False: "diffusion", None: "kind not known"}[causal]


def _tasks(columns: Iterable[Column]) -> list[str]:
    return [one.task for one in columns]
