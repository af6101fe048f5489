"""Models against each other: does the removal of sinks do more to a causal model than to a diffusion model?

    interaction   (sinks - control) of the causal model  -  the same of the diffusion model, for each number of keys,
                  with the untouched model as control, and with random keys
    square        {causal, diffusion} x {cached, recomputed}: (sinks - unmasked | cached) - (sinks - unmasked |
                  recomputed), of each model, and the difference of that between the two

The untouched model computes the same with its keys cached or recomputed, so it cancels in a square's differences; it
stays as the baseline that has to reach the floor. Two families are compared on the problems that both have. The
interactions of two models on one task share their level by Holm's rule; so do the models of a square, and its pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from sinklens.evaluation.cells import Cell, Family
from sinklens.evaluation.contrasts import dose_differs
from sinklens.evaluation.interaction import Interaction, ModelCells, interaction
from sinklens.evaluation.multiple import holm
from sinklens.evaluation.outcomes import Outcomes, accuracy
from sinklens.evaluation.paired import paired_difference

KEYS = ("cached", "recomputed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A causal and a diffusion model on one task, and the problems that both answered."""

    causal: Family
    diffusion: Family

    @property
    def problems(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.causal.problems) & set(self.diffusion.problems)))

    def outcomes(self, family: Family, cell: Cell) -> Outcomes:
        shared = set(self.problems)
        keep = np.array([problem in shared for problem in family.problems])
        return Outcomes(right=cell.outcomes.right[keep], draws=cell.outcomes.draws)

    def cells(self, family: Family, *, treated: Cell, control: Cell, baseline: Cell) -> ModelCells:
        read = {"treated": treated, "control": control, "baseline": baseline}
        return ModelCells(**{name: self.outcomes(family, cell) for name, cell in read.items()})


def pairs_of(families: Sequence[Family]) -> list[Pair]:
    """Every causal with every diffusion model of the same task and split that share a problem."""
    pairs = [
        Pair(causal=one, diffusion=other)
        for one in families
        for other in families
        if one.causal is True and other.causal is False and (one.task, one.split) == (other.task, other.split)
    ]
    return [pair for pair in pairs if pair.problems]


def interactions(families: Sequence[Family]) -> list[dict[str, Any]]:
    """For every pair, number of keys and control that both models have, with the families' own settings."""
    found = []
    for pair in pairs_of(families):
        entries = [
            _interaction(pair, top, against)
            for top in _shared_tops(pair)
            for against in ("unmasked", "random")
            if all(_control(family, top, against) is not None for family in (pair.causal, pair.diffusion))
        ]
        found += _adjusted(entries)
    return found


def squares(families: Sequence[Family]) -> list[dict[str, Any]]:
    """One entry for each task, split and number of keys for which a model has both cached and recomputed keys."""
    found = []
    for task, split in dict.fromkeys((one.task, one.split) for one in families):
        there = [one for one in families if (one.task, one.split) == (task, split) and one.unmasked is not None]
        tops = {cell.condition.top for one in there for cell in one.cells if cell.condition.choose == "sinks"}
        for top in sorted(top for top in tops if top is not None):
            both = [one for one in there if None not in _by_keys(one, top).values()]
            if not both:
                continue
            found.append(
                {
                    "task": task,
                    "split": split,
                    "top": top,
                    "corners": [corner for one in both for corner in _corners(one, top)],
                    "within": _adjusted([_within(one, top) for one in both]),
                    "across": _adjusted([_across(pair, top) for pair in pairs_of(both)]),
                }
            )
    return found


def _shared_tops(pair: Pair) -> list[int]:
    tops = [
        {cell.condition.top for cell in family.cells if family.find("sinks", top=cell.condition.top) is not None}
        for family in (pair.causal, pair.diffusion)
    ]
    return sorted(top for top in set.intersection(*tops) if top is not None)


def _control(family: Family, top: int, against: str) -> Cell | None:
    if family.unmasked is None:
        return None
    return family.unmasked if against == "unmasked" else family.find("random", top=top)


def _interaction(pair: Pair, top: int, against: str) -> dict[str, Any]:
    sides, doses = [], []
    for family in (pair.causal, pair.diffusion):
        sinks, control = family.find("sinks", top=top), _control(family, top, against)
        assert sinks is not None and control is not None and family.unmasked is not None
        sides.append(pair.cells(family, treated=sinks, control=control, baseline=family.unmasked))
        doses.append([sinks.dose, *([] if against == "unmasked" else [control.dose])])
    return {
        "causal": pair.causal.model,
        "diffusion": pair.diffusion.model,
        "task": pair.causal.task,
        "split": pair.causal.split,
        "top": top,
        "against": against,
        **_told(interaction(*sides), n=len(pair.problems), doses=list(zip(*doses, strict=True))),
    }


def _by_keys(family: Family, top: int) -> dict[str, Cell | None]:
    return {keys: family.find("sinks", top=top, keys=keys) for keys in KEYS}


def _known(family: Family, top: int) -> Iterator[tuple[str, Cell]]:
    for keys, cell in _by_keys(family, top).items():
        assert cell is not None
        yield keys, cell


def _corners(family: Family, top: int) -> Iterator[dict[str, Any]]:
    assert family.unmasked is not None
    for keys, cell in _known(family, top):
        yield {
            "model": family.model,
            "causal": family.causal,
            "keys": keys,
            "condition": cell.name,
            "accuracy": asdict(accuracy(cell.outcomes)),
            "difference": asdict(paired_difference(cell.outcomes, family.unmasked.outcomes).interval),
            "dose": cell.dose,
        }


def _within(family: Family, top: int) -> dict[str, Any]:
    assert family.unmasked is not None
    (_, cached), (_, recomputed) = _known(family, top)
    unmasked = family.unmasked.outcomes
    found = interaction(
        ModelCells(treated=cached.outcomes, control=unmasked), ModelCells(treated=recomputed.outcomes, control=unmasked)
    )
    told = _told(found, n=len(family.problems), doses=[(cached.dose, recomputed.dose)])
    return {"model": family.model, "causal": family.causal, **told}


def _across(pair: Pair, top: int) -> dict[str, Any]:
    sides, doses = [], []
    for family in (pair.causal, pair.diffusion):
        assert family.unmasked is not None
        (_, cached), (_, recomputed) = _known(family, top)
        sides.append(pair.cells(family, treated=cached, control=recomputed, baseline=family.unmasked))
        doses += [cached.dose, recomputed.dose]
    told = _told(interaction(*sides), n=len(pair.problems), doses=[doses])
    return {"causal": pair.causal.model, "diffusion": pair.diffusion.model, **told}


def _told(found: Interaction, *, n: int, doses: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """doses: of cells that stand for the same in both models, such as the sinks of each."""
    entry = asdict(found) | {"baselines": list(found.baselines), "n": n, "dose": [list(alike) for alike in doses]}
    verdicts = [dose_differs(one, other) for alike in doses for one, other in combinations(alike, 2)]
    return entry | {"dose_differs": None if None in verdicts else any(verdicts)}


def _adjusted(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With Holm's p over those that have one."""
    adjusted = holm({str(place): entry["p"] for place, entry in enumerate(entries) if entry["p"] is not None})
    return [entry | {"adjusted_p": adjusted.get(str(place))} for place, entry in enumerate(entries)]
