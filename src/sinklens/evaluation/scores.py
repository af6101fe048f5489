"""What the rows of an evaluation come to: for each task and condition the share of right answers, by every grader.

Shares have Wilson's interval over problems. Each condition stands for itself, each draw of a random control too;
differences between conditions need the pairing of paired.py.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import parse_condition
from sinklens.sinks.intervals import wilson

Row = Mapping[str, Any]
MEASURED = ("dose", "keys_removed", "tokens", "steps")  # averaged over the rows that have them


def scores(rows: Iterable[Row], timings: Iterable[Row] = ()) -> list[dict[str, Any]]:
    """One entry for each model, task, split and condition, in the order they are met; `right` is the task's own grader.

    timings: rows of the table of that name; seconds are a problem's, of generating alone.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("model", "task", "split", "condition")), []).append(row)
    spent: dict[tuple[str, ...], list[Row]] = {}
    for one in timings:
        spent.setdefault((one["model"], one["task"], one["condition"]), []).append(one)
    return [_entry(key, some, spent.get((key[0], key[1], key[3]), [])) for key, some in groups.items()]


def _entry(key: tuple[str, ...], rows: Sequence[Row], timings: Sequence[Row]) -> dict[str, Any]:
    model, task, split, condition = key
    problems = [row["problem"] for row in rows]
    if len(set(problems)) < len(problems):
        twice = next(problem for problem in problems if problems.count(problem) > 1)
        raise UsageError(
            f"problem {twice} of {model}, {task}, {split} stands twice under {condition!r}; expected one row: keep the "
            "rows of one experiment in a folder"
        )
    grades = [json.loads(row["grades"]) for row in rows]
    timed = sum(one["problems"] for one in timings)
    return {
        "model": model,
        "task": task,
        "split": split,
        "condition": condition,
        "label": parse_condition(condition).label,
        "problems": len(rows),
        "right": _share([row["right"] for row in rows]),
        "graders": {name: _share([one[name] for one in grades]) for name in grades[0]},
        **{name: _mean([row[name] for row in rows]) for name in MEASURED},
        "seconds": sum(one["seconds"] for one in timings) / timed if timed else None,
    }


def _share(right: Sequence[bool]) -> dict[str, Any]:
    return asdict(wilson(sum(right), len(right)))


def _mean(values: Sequence[Any]) -> float | None:
    """Of the values that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
