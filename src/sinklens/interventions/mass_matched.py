"""A control: random keys that together received as much attention as the sinks did, sinks excepted.

Keys are taken in a random order as long as their mass stays below that of the sinks; then, one by one, the key that
fills the rest best, as long as that gets closer. There are more of them than sinks, and where sinks hold more than half
of a head's attention all the others together do not reach it: `lab.matches` says how often.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinklens.errors import UsageError
from sinklens.interventions.draws import noise
from sinklens.interventions.masking import Masking
from sinklens.interventions.memory import Memory
from sinklens.interventions.plan import check_seed
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting

SHORT = 0.05  # of the sinks' mass: a match that misses more is counted as not reached


@dataclass(frozen=True, kw_only=True)
class Match:
    """How well the keys chosen at one step and layer match, as means over heads and rows."""

    run: int
    step: int  # of the choice; the keys are denied at the next
    layer: int
    wanted: float  # what the sinks received, in the unit of the ranking: attention summed over queries
    reached: float  # what the chosen keys received
    short: float  # share of heads and rows that miss it by more than SHORT of it


@dataclass(frozen=True, kw_only=True)
class MassMatched(Targeting):
    """Settings as for `MaskSinks`, with `top`; draws as for `RandomKeys`."""

    seed: Any = 0  # an integer, or a tuple with one for each row

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        if self.epsilon is not None:
            raise UsageError(f"epsilon={self.epsilon!r} for MassMatched, whose dose is relative to top keys; use top")

    def start(self, model: nn.Module) -> "Matching":
        return Matching(self, model)

    def choose(self, ranking: Ranking) -> Targets:
        sinks = ranking.marks(self.sinks(ranking))
        mass = ranking.scores.double()
        free = ranking.candidates & ~sinks
        taken = _match(mass, free, (mass * sinks).sum(-1, keepdim=True), noise(ranking, self.seed))
        width = max(1, int(taken.sum(-1).max()))
        return replace(ranking, candidates=taken).highest(width)


class Matching(Masking):
    """The intervention under way, with a record of how well the masses matched."""

    def __init__(self, settings: MassMatched, model: nn.Module) -> None:
        super().__init__(settings, model)
        self._matches: list[tuple[int, int, int, Tensor]] = []

    @property
    def matches(self) -> list[Match]:
        """One entry for every step and layer at which keys were chosen."""
        found = []
        for run, step, layer, means in self._matches:
            wanted, reached, short = means.tolist()
            found.append(Match(run=run, step=step, layer=layer, wanted=wanted, reached=reached, short=short))
        return found

    def _choose(self, ranking: Ranking, memory: Memory) -> Targets:
        targets = super()._choose(ranking, memory)
        top = self.settings.top
        assert top is not None
        wanted, reached = (
            (ranking.scores.double() * ranking.marks(keys)).sum(-1) for keys in (ranking.highest(top), targets)
        )
        short = ((reached - wanted).abs() > SHORT * wanted).double()
        means = torch.stack([wanted.mean(), reached.mean(), short.mean()])
        self._matches.append((memory.run, memory.step, ranking.site.layer, means))
        return targets


def _match(
    mass: Float[Tensor, "batch head key"],
    free: Bool[Tensor, "batch head key"],
    wanted: Float[Tensor, "batch head 1"],
    draws: Float[Tensor, "batch head key"],
) -> Bool[Tensor, "batch head key"]:
    order = draws.masked_fill(~free, torch.inf).argsort(dim=-1)
    in_order = (mass * free).gather(-1, order)
    before = in_order.cumsum(-1) <= wanted
    taken = torch.zeros_like(free).scatter(-1, order, before) & free
    while True:
        gap = wanted - (mass * taken).sum(-1, keepdim=True)
        misses = (gap - mass).abs().masked_fill(~free | taken, torch.inf)
        best = misses.min(dim=-1, keepdim=True)
        closer = best.values < gap.abs() * (1 - 1e-12)
        if not bool(closer.any()):
            return taken
        taken = taken.scatter(-1, best.indices, taken.gather(-1, best.indices) | closer)
