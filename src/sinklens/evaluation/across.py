"""Models against each other: does the removal of sinks do more to a causal model than to a diffusion model?

    interaction   (sinks - control) of the causal model  -  the same of the diffusion model, for each number of keys,
                  with the untouched model as control, and with random keys
    square        {causal, diffusion} x {cached, recomputed}: (sinks - unmasked | cached) - (sinks - unmasked |
                  recomputed), of each model, and the difference of that between the two

The untouched model computes the same with its keys cached or recomputed, so it cancels in a square's differences; it
stays as the baseline that has to reach the floor. Two families are compared on the problems that both have.

Holm's rule. The interactions of two models on one task share their level; so do the squares of two models on one task,
over all numbers of keys. Cached less recomputed of one model is a contrast of its family (`contrasts.py`, "keys"): its
points, p and adjusted p are those of the family, where it shares the level with all others.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from sinklens.sinks.resample import Interval

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


def squares(families: Sequence[Family], *, judged: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """One entry for each task, split and number of keys for which a model has both cached and recomputed keys.

    judged: the families' entries of the result, with their `contrasts`. What is not among them has no adjusted p.
    """
    contrasts = {(one["model"], one["task"], one["split"]): one["contrasts"] for one in judged}
    found = []
    for task, split in dict.fromkeys((one.task, one.split) for one in families):
        there = [one for one in families if (one.task, one.split) == (task, split) and one.unmasked is not None]
        across = _across_by_top(there)
        for top in sorted({top for one in there for top in _tops_of_both(one)}):
            both = [one for one in there if top in _tops_of_both(one)]
            within = [_within(one, top, contrasts=contrasts.get((one.model, task, split), ())) for one in both]
            found.append(
                {
                    "task": task,
                    "split": split,
                    "top": top,
                    "corners": [corner for one in both for corner in _corners(one, top)],
                    "within": within,
                    "across": across.get(top, []),
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


def _tops_of_both(family: Family) -> list[int]:
    """Numbers of sinks with cached as well as with recomputed keys."""
    tops = {cell.condition.top for cell in family.cells if cell.condition.choose == "sinks"}
    return sorted(top for top in tops if top is not None and None not in _by_keys(family, top).values())


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


def _within(family: Family, top: int, *, contrasts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """contrasts: those of the family, judged."""
    assert family.unmasked is not None
    (_, cached), (_, recomputed) = _known(family, top)
    unmasked = family.unmasked.outcomes
    found = interaction(
        ModelCells(treated=cached.outcomes, control=unmasked), ModelCells(treated=recomputed.outcomes, control=unmasked)
    )
    told = _told(found, n=len(family.problems), doses=[(cached.dose, recomputed.dose)])
    known = None if found.refused else _judged(contrasts, cached=cached.name, recomputed=recomputed.name)
    return {"model": family.model, "causal": family.causal, **told, **(known or {"adjusted_p": None})}


def _judged(contrasts: Sequence[Mapping[str, Any]], *, cached: str, recomputed: str) -> dict[str, Any] | None:
    """Cached less recomputed as the family has it, which may be the other way round; None where it has not."""
    for one in contrasts:
        if one["kind"] == "keys" and {one["a"], one["b"]} == {cached, recomputed}:
            interval = Interval(value=one["value"], low=one["low"], high=one["high"], n=one["n"])
            points = interval if one["a"] == cached else _turned(interval)
            return {"points": asdict(points), "p": one["p"], "adjusted_p": one["adjusted_p"]}
    return None


def _turned(interval: Interval) -> Interval:
    """Of b - a instead of a - b. 0 - x and not -x: no minus in front of 0."""
    value, low, high = (None if end is None else 0.0 - end for end in (interval.value, interval.high, interval.low))
    return Interval(value=value, low=low, high=high, n=interval.n)


def _across_by_top(families: Sequence[Family]) -> dict[int, list[dict[str, Any]]]:
    """The pairs of each number of keys; Holm's rule over the numbers of keys of a pair."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for pair in pairs_of(families):
        tops = sorted(set(_tops_of_both(pair.causal)) & set(_tops_of_both(pair.diffusion)))
        for top, entry in zip(tops, _adjusted([_across(pair, top) for top in tops]), strict=True):
            found[top].append(entry)
    return found


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
