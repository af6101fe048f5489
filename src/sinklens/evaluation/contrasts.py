"""Which cells of a family are compared, and what comes of it.

    unmasked   every cell that denies something  -  the untouched model
    control    sinks  -  each control with the same budget and settings
    act, scope, keys, ...   sinks with one setting changed  -  sinks with the family's own choice of it

Primary, and apart from all others: the contrast that was declared before the run (grid.py). Until its rows are there,
with all draws, there is none. Where nothing was declared, it is chosen from the cells by the same rule. The rest shares
its level by Holm's rule.

Fixed n or watched. Where the run might have stopped early, intervals and p made for a fixed n do not hold. Then the
interval is the confidence sequence, and p is 1 / the largest wealth so far, which is at most alpha with a chance of at
most alpha whenever one looks. The primary p is multiplied by the number of primary contrasts that were watched at once.

Dose. Two cells that both deny something are flagged where their doses differ by more than a tenth: they differ in
strength before they differ in kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

from sinklens.evaluation.cells import Cell, Family
from sinklens.evaluation.equivalence import MARGIN, judge_equivalence
from sinklens.evaluation.grid import CHANGED, PRIMARY
from sinklens.evaluation.multiple import ALPHA, holm
from sinklens.evaluation.paired import PairedDifference, paired_difference
from sinklens.evaluation.sequential import compare_sequentially, log_wealth
from sinklens.sinks.resample import LEVEL

DOSE_TOLERANCE = 0.1  # doses further apart are flagged
ROUNDING = 1e-9  # of means of doses: .9 and .8 differ by a tenth, not by more


@dataclass(frozen=True, kw_only=True, eq=False)
class Contrast:
    """accuracy(a) - accuracy(b)."""

    kind: str  # "unmasked", "control", or the setting that is changed
    a: Cell
    b: Cell


Declared = Mapping[str, Mapping[str, Mapping[str, Any] | None]]  # by model and task: what grid.declare_primary says
_NO_PAIR = "no cells of sinks and as many random keys"
_NO_PROBLEM = "no problem that all cells have"


def primary_of(family: Family, declared: Declared | None) -> tuple[Contrast | None, str | None]:
    """The primary contrast, or why there is none; declared: None where the folder does not say."""
    if declared is not None:
        return _declared(family, declared)
    tops = {cell.condition.top for cell in family.cells if cell.condition.top is not None}
    for top in sorted(tops, key=lambda top: (top != PRIMARY, -top)):
        sinks, random = (family.find(choose, top=top) for choose in ("sinks", "random"))
        if sinks is not None and random is not None:
            return Contrast(kind="control", a=sinks, b=random), None
    return None, _NO_PAIR if family.cells else _NO_PROBLEM


def _declared(family: Family, declared: Declared) -> tuple[Contrast | None, str | None]:
    if family.task not in declared.get(family.model, {}):
        return None, f"none was declared for {family.model} on {family.task}"
    contrast = declared[family.model][family.task]
    if contrast is None:
        return None, f"none was declared: {_NO_PAIR}"
    cells = {cell.name: cell for cell in family.cells}
    a, b, draws = contrast["a"], contrast["b"], contrast["draws"]
    missing = [name for name in (a, b) if name not in family.answered]
    if missing:
        why = f"there are no rows yet of {', '.join(missing)}"
    elif not cells:
        why = _NO_PROBLEM
    elif cells[b].outcomes.draws < draws:
        why = f"{b} has {cells[b].outcomes.draws} of {draws} draws yet"
    else:
        return Contrast(kind="control", a=cells[a], b=cells[b]), None
    return None, f"declared as {a} - {b}; {why}"


def contrasts_of(family: Family) -> list[Contrast]:
    """Every contrast of a family, the primary one among them, in the order of its cells."""
    found: list[Contrast] = []
    for cell in family.cells:
        one = cell.condition
        if one.choose == "none":
            continue
        if family.unmasked is not None:
            found.append(Contrast(kind="unmasked", a=cell, b=family.unmasked))
        if one.choose == "sinks":
            found += [Contrast(kind="control", a=cell, b=other) for other in _controls(family, cell)]
            found += _changed_settings(family, cell)
    return found


def _controls(family: Family, sinks: Cell) -> list[Cell]:
    one = sinks.condition
    choices = dict.fromkeys(cell.condition.choose for cell in family.cells)
    found = (family.find(choose, like=one) for choose in choices if choose not in ("none", "sinks"))
    return [cell for cell in found if cell is not None]


def _changed_settings(family: Family, cell: Cell) -> list[Contrast]:
    """The cell against those that leave one of its settings to the family."""
    found = []
    for name in CHANGED:
        if family.settings(cell.condition, **{name: None}) != family.settings(cell.condition):
            other = family.find("sinks", like=cell.condition, **{name: None})
            found += [] if other is None else [Contrast(kind=name, a=cell, b=other)]
    return found


def judge_contrasts(
    contrasts: Sequence[Contrast], *, primary: Contrast | None, watched: int | None
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The primary contrast, and all others, as entries of the result.

    watched: how many primary contrasts the run watched to stop early; None where n was fixed beforehand.
    """
    others = [one for one in contrasts if primary is None or (one.a, one.b) != (primary.a, primary.b)]
    entries = [_entry(one, watched=None if watched is None else 1) for one in others]
    adjusted = holm({str(place): entry["p"] for place, entry in enumerate(entries)})
    for entry, p in zip(entries, adjusted.values(), strict=True):
        entry |= {"adjusted_p": p, "rejected": p <= ALPHA}
    if primary is None:
        return None, entries
    first = _entry(primary, watched=watched)
    p = min(1.0, first["p"] * (watched or 1))
    return first | {"adjusted_p": p, "rejected": p <= ALPHA}, entries


def dose_differs(a: float | None, b: float | None) -> bool | None:
    """More than a tenth apart; None where either is not known."""
    return None if a is None or b is None else abs(a - b) > DOSE_TOLERANCE + ROUNDING


def _entry(contrast: Contrast, *, watched: int | None) -> dict[str, Any]:
    a, b = contrast.a, contrast.b
    difference = paired_difference(a.outcomes, b.outcomes)
    return {
        "kind": contrast.kind,
        "a": a.name,
        "b": b.name,
        "label": f"{a.condition.label} - {b.condition.label}",
        **(_fixed(difference) if watched is None else _watched(contrast, watched)),
        "gained": difference.gained,
        "lost": difference.lost,
        "n": difference.n,
        "draws": [difference.draws_a, difference.draws_b],
        "dose": [a.dose, b.dose],
        "dose_differs": False if b.condition.choose == "none" else dose_differs(a.dose, b.dose),
    }


def _fixed(difference: PairedDifference) -> dict[str, Any]:
    equivalence = judge_equivalence(difference)
    return {
        "value": difference.value,
        "low": difference.interval.low,
        "high": difference.interval.high,
        "level": LEVEL,
        "interval": "bootstrap",
        "p": difference.p,
        "test": difference.test,
        "robust": equivalence.robust,
        "equivalence": asdict(equivalence),
    }


def _watched(contrast: Contrast, contrasts: int) -> dict[str, Any]:
    """Problems in the order of their numbers, in which they were run."""
    a, b = contrast.a.outcomes, contrast.b.outcomes
    found = compare_sequentially(a, b, contrasts=contrasts)
    inside = found.low is not None and found.high is not None and found.low >= -MARGIN and found.high <= MARGIN
    most = float(log_wealth(a.right / a.draws - b.right / b.draws).max())
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "level": 1 - found.alpha,
        "interval": "confidence sequence",
        "p": min(1.0, exp(-most)),
        "test": "wealth",
        "robust": inside,
        "equivalence": None,
        "stopped_at": found.stopped_at,
    }
