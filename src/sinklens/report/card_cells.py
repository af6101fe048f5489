"""What a card says from the rows of its experiment: what removing sinks costs, and what is lost with them.

A cell is one way to treat attention: unmasked; the top k sinks of every layer and head at minus infinity; as many
random keys; the same sinks with their value set to zero, or to the mean. All cells share their units: problems, scored
0 or 1, or chunks of text, scored by a negative log-likelihood. Only units that every cell has count.

    cost = accuracy(unmasked) - accuracy(cell), or nll(cell) - nll(unmasked), paired by unit; above 0: it hurts

An ELBO has a Monte-Carlo error too, from the random masks of a chunk. Every chunk has its own masks, so the spread over
chunks, and with it every interval, holds that error already; `error` says how much of a cell's uncertainty is due to
it. Cells share the masks of a chunk, so most of it is absent from a cost.

The reading compares what is lost when the value alone goes (weights stay) with what is lost when the key goes. A cost
is shown if its 95 % interval lies above 0; it is small beside another if its upper end is below half of that one:

    no cost shown   minus infinity does not show a cost
    no-op           with a value of zero the cost is small beside minus infinity: attention was parked there
    bias            a value of zero costs, and the mean value is small beside it: any value like the others' will do
    broadcast       minus infinity, zero and mean all cost, and most heads with a sink write one direction for all
                    queries (`sinks/mechanism.py`): its own value is read, everywhere alike
    content         they all cost, and the heads write several directions
    undecided       anything else, fewer than 10 units, or an untouched model that solves less than a fifth
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.errors import UsageError
from sinklens.evaluation.outcomes import accuracy
from sinklens.evaluation.paired import paired_difference
from sinklens.sinks.resample import bootstrap

Interval = Mapping[str, Any]  # value, low, high, n
Key = tuple[str, int | None, str]  # choose, top, act
UNMASKED: Key = ("none", None, "mask")
READINGS = ("no cost shown", "no-op", "bias", "broadcast", "content", "undecided")
SMALL = 0.5
NOTHING_TO_LOSE = 0.2  # accuracy unmasked below which a cost says little
FEW = 10  # units: below, a percentile interval is clearly too narrow to read anything from


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a row is scored by."""

    name: str  # "accuracy", "nll" or "elbo"
    column: str  # of the rows
    unit: str  # column that tells units apart: "problem" or "chunk"

    @property
    def share(self) -> bool:
        """Whether scores are 0 or 1, and more is better."""
        return self.name == "accuracy"


ACCURACY = Measure(name="accuracy", column="right", unit="problem")
NLL = Measure(name="nll", column="nll", unit="chunk")
ELBO = Measure(name="elbo", column="nll", unit="chunk")  # the bound with its sign turned: less is better, as with nll
MEASURES = {one.name: one for one in (ACCURACY, NLL, ELBO)}


def summarise_cells(rows: Sequence[Mapping[str, Any]], measure: Measure) -> dict[str, Any]:
    """The entry `cost` of a card: every cell with its interval, its cost, and what it is to be compared with."""
    scores = _scores(rows, measure)
    if UNMASKED not in scores:
        raise UsageError("the rows have no unmasked cell; nothing can be compared with it: measure it too")
    known = {
        "dose": _means(rows, "dose"),
        "keys_removed": _means(rows, "keys_removed"),
        "error": _errors(rows, measure),
    }
    cells = [_cell(key, scores, measure, known) for key in sorted(scores, key=_order)]
    return {
        "measure": measure.name,
        "unit": measure.unit,
        "n": len(scores[UNMASKED]),
        "tops": sorted({key[1] for key in scores if key[1] is not None}),
        "cells": cells,
    }


def read_value_effect(cells: Sequence[Mapping[str, Any]], verdicts: Mapping[str, int]) -> dict[str, Any]:
    """Minus infinity, zero and mean value of the same sinks side by side, and their reading (see above).

    verdicts: how many heads are of each verdict.
    """
    by_key = {(one["choose"], one["top"], one["act"]): one for one in cells}
    tops = [top for choose, top, act in by_key if choose == "sinks" and act == "zero"]
    if not tops:
        return {"top": None, "acts": {}, "reading": None}
    acts = {act: by_key["sinks", tops[0], act] for act in ("mask", "zero", "mean")}
    costs = {act: one["cost"] for act, one in acts.items()}
    share = costs["mask"]["p"] is not None  # scores are 0 or 1
    skilled = not share or by_key[UNMASKED]["value"]["value"] >= NOTHING_TO_LOSE
    alike = 2 * verdicts.get("broadcast", 0) > sum(verdicts.get(name, 0) for name in ("no-op", "broadcast", "mixed"))
    return {
        "top": tops[0],
        "acts": {act: {"cost": costs[act], "less_than_mask": one["less_than_mask"]} for act, one in acts.items()},
        "reading": _reading(**costs, alike=alike) if skilled else "undecided",
    }


def _reading(*, mask: Interval, zero: Interval, mean: Interval, alike: bool) -> str:
    if mask["n"] < FEW:
        return "undecided"
    if not _shown(mask):
        return "no cost shown"
    if _small(zero, mask):
        return "no-op"
    if _shown(zero) and _small(mean, zero):
        return "bias"
    if _shown(zero) and _shown(mean):
        return "broadcast" if alike else "content"
    return "undecided"


def _shown(cost: Interval) -> bool:
    return cost["low"] is not None and cost["low"] > 0


def _small(cost: Interval, beside: Interval) -> bool:
    return cost["high"] is not None and cost["high"] < SMALL * beside["value"]


def _cell(
    key: Key,
    scores: Mapping[Key, Float[np.ndarray, "unit draw"]],
    measure: Measure,
    known: Mapping[str, Mapping[Key, float]],  # by column
) -> dict[str, Any]:
    choose, top, act = key
    mine = scores[key]

    hidden = ("sinks", top, "mask")
    return {
        "choose": choose,
        "top": top,
        "act": act,
        "draws": mine.shape[1],
        "value": _value(mine, measure),
        "cost": None if key == UNMASKED else _saving(scores[UNMASKED], mine, measure),
        "less_than_mask": _saving(mine, scores[hidden], measure) if choose == "sinks" and act != "mask" else None,
        "more_than_random": _more_than_random(key, scores, measure),
        **{name: by_key.get(key) for name, by_key in known.items()},
    }


def _more_than_random(key: Key, scores: Mapping[Key, Any], measure: Measure) -> dict[str, Any] | None:
    """What the sinks cost beyond as many random keys, treated alike."""
    choose, top, act = key
    random = ("random", top, act)
    return _saving(scores[random], scores[key], measure) if choose == "sinks" and random in scores else None


def _value(scores: Float[np.ndarray, "unit draw"], measure: Measure) -> dict[str, Any]:
    return asdict(accuracy(scores) if measure.share else bootstrap(scores.mean(axis=1)))


def _saving(
    better: Float[np.ndarray, "unit draw_better"], worse: Float[np.ndarray, "unit draw_worse"], measure: Measure
) -> dict[str, Any]:
    """How much `better` is better than `worse`, paired by unit; p where scores are 0 or 1."""
    if not measure.share:
        return asdict(bootstrap(worse.mean(axis=1) - better.mean(axis=1))) | {"p": None}
    found = paired_difference(better, worse)
    return asdict(found.interval) | {"p": found.p}


def _scores(rows: Sequence[Mapping[str, Any]], measure: Measure) -> dict[Key, Float[np.ndarray, "unit draw"]]:
    """[unit, draw] of every cell, over the units that all draws of all cells have, in their order."""
    found: dict[Key, dict[int, dict[int, float]]] = {}
    for row in rows:
        draws = found.setdefault(_key(row), {})
        draws.setdefault(int(row["draw"]), {})[int(row[measure.unit])] = float(row[measure.column])
    every = [set(units) for draws in found.values() for units in draws.values()]
    shared = sorted(set.intersection(*every)) if every else []
    if not shared:
        raise UsageError(f"no {measure.unit} has a row in every cell; finish the experiment first")
    return {
        key: np.array([[draws[draw][unit] for draw in sorted(draws)] for unit in shared])
        for key, draws in found.items()
    }


def _means(rows: Sequence[Mapping[str, Any]], column: str) -> dict[Key, float]:
    """The mean of what is known, by cell."""
    known: dict[Key, list[float]] = {}
    for row in rows:
        if row.get(column) is not None:
            known.setdefault(_key(row), []).append(float(row[column]))
    return {key: float(np.mean(values)) for key, values in known.items()}


def _errors(rows: Sequence[Mapping[str, Any]], measure: Measure) -> dict[Key, float]:
    """The Monte-Carlo error of every cell's mean, where all of its rows know theirs.

    Those of units are independent. Draws of a unit share its masks: their mean has at most the mean of their errors.
    """
    found: dict[Key, dict[int, list[float | None]]] = {}
    for row in rows:
        found.setdefault(_key(row), {}).setdefault(int(row[measure.unit]), []).append(row.get("error"))
    told: dict[Key, float] = {}
    for key, units in found.items():
        errors = [[error for error in draws if error is not None] for draws in units.values()]
        if all(len(mine) == len(draws) for mine, draws in zip(errors, units.values(), strict=True)):
            told[key] = float(np.linalg.norm([np.mean(mine) for mine in errors]) / len(errors))
    return told


def _key(row: Mapping[str, Any]) -> Key:
    if row["choose"] == "none":
        return UNMASKED
    return str(row["choose"]), int(row["top"]), str(row["act"])


def _order(key: Key) -> tuple[bool, int, bool, str, str]:
    """Unmasked first, then by k: sinks before controls, minus infinity before the values."""
    choose, top, act = key
    return key != UNMASKED, top or 0, choose != "sinks", choose, {"mask": "", "zero": "1", "mean": "2"}.get(act, act)
