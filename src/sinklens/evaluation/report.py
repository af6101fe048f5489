"""The result of a masking experiment: one JSON document, from the rows of its folder alone.

    families       each model on each task: its cells, the primary contrast, all other contrasts
    interactions   causal against diffusion models
    squares        {causal, diffusion} x {cached, recomputed}
    flows          where the attention went, if the run followed it

Accuracies, differences and intervals are shares: 0.02 is two points. An interval is {value, low, high, n}, n problems.
What could not be measured is null.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from math import fsum
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.across import interactions, squares
from sinklens.evaluation.cells import Cell, CellKey, Family, cell_name, read_families, read_flows
from sinklens.evaluation.conditions import parse_condition
from sinklens.evaluation.contrasts import (
    DOSE_TOLERANCE,
    Contrast,
    contrasts_of,
    dose_differs,
    judge_contrasts,
    primary_of,
)
from sinklens.evaluation.equivalence import MARGIN
from sinklens.evaluation.interaction import FLOOR
from sinklens.evaluation.outcomes import accuracy, percentile_interval, resample
from sinklens.sinks.resample import LEVEL

EXPERIMENT = "experiment.json"
FLOWS = ("neighbours", "next_ranked", "others", "null", "new_sinks")


def summarise(folder: Path) -> dict[str, Any]:
    """The result of the experiment in a folder, finished or not."""
    experiment = read_experiment(folder)
    families = read_families(folder)
    told = experiment or {}
    primaries = [primary_of(family, told.get("primary")) for family in families]
    watched = None
    if told.get("stop_early"):  # what was declared counts, whether its rows are there or not
        watched = told.get("watched") or sum(contrast is not None for contrast, _ in primaries)
    judged = [
        _family(family, primary=primary, watched=watched) for family, primary in zip(families, primaries, strict=True)
    ]
    return {
        "experiment": experiment,
        "rules": {
            "level": LEVEL,
            "margin": MARGIN,
            "dose_tolerance": DOSE_TOLERANCE,
            "floor": FLOOR,
            "watched": watched,  # primary contrasts watched to stop early; null: the number of problems was fixed
        },
        "families": judged,
        "interactions": interactions(families),
        "squares": squares(families, judged=judged),
        "flows": _flows(folder),
    }


def read_experiment(folder: Path) -> dict[str, Any] | None:
    """What decided the rows, or None where the folder does not say."""
    path = folder / EXPERIMENT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); expected what `sinklens mask --to` wrote") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds a {type(found).__name__}; expected what `sinklens mask --to` wrote")
    return found


def _family(family: Family, *, primary: tuple[Contrast | None, str | None], watched: int | None) -> dict[str, Any]:
    contrast, why_not = primary
    first, others = judge_contrasts(contrasts_of(family), primary=contrast, watched=watched)
    n = len(family.problems)
    return {
        "model": family.model,
        "task": family.task,
        "split": family.split,
        "causal": family.causal,
        "n": n,
        "left_out": {name: answered - n for name, answered in family.answered.items() if answered > n},
        "cells": [_cell(family, cell) for cell in family.cells],
        "primary": first,
        "no_primary": why_not,  # null: there is one
        "contrasts": others,
    }


def _cell(family: Family, cell: Cell) -> dict[str, Any]:
    condition, outcomes = cell.condition, cell.outcomes
    sinks = None if condition.choose in ("none", "sinks") else family.find("sinks", like=condition)
    spread = resample([outcomes])[:, 0] / (outcomes.n * outcomes.draws) if outcomes.draws > 1 else None
    nested = None if spread is None else percentile_interval(outcomes.share, spread, n=outcomes.n)
    return {
        "condition": cell.name,
        "label": condition.label,
        "choose": condition.choose,
        "top": condition.top,
        "epsilon": condition.epsilon,
        "settings": {} if condition.choose == "none" else family.settings(condition),
        "plain": condition.choose != "none" and family.settings(condition) == family.settings(type(condition)()),
        "draws": outcomes.draws,
        "accuracy": asdict(accuracy(outcomes)),
        "bootstrap": None if nested is None else asdict(nested),  # problems, and draws within them
        "dose": cell.dose,
        "dose_differs": None if sinks is None else dose_differs(cell.dose, sinks.dose),  # from the sinks beside it
        "keys_removed": cell.keys_removed,
        "tokens": cell.tokens,
        "steps": cell.steps,
        "seconds": cell.seconds,
    }


def _flows(folder: Path) -> list[dict[str, Any]]:
    """Means over problems of each model, task and cell; new_sinks is a share of heads, the others of attention."""
    grouped: dict[CellKey, list[Mapping[str, Any]]] = defaultdict(list)
    for row in read_flows(folder):
        grouped[row["model"], row["task"], cell_name(row["condition"])].append(row)
    found = []
    for (model, task, condition), rows in sorted(grouped.items(), key=lambda one: one[0]):
        known = [row for row in rows if all(row[name] is not None for name in FLOWS)]
        counted = sum(row["problems"] for row in known)
        sums = {name: fsum(row[name] * row["problems"] for row in known) for name in FLOWS}
        told = {"model": model, "task": task, "condition": condition, "label": parse_condition(condition).label}
        found.append(
            {**told, "n": counted, **{name: total / counted if known else None for name, total in sums.items()}}
        )
    return found
