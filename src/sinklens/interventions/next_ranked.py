"""A control: the keys that rank behind the sinks, k + 1 to 2k. Nearly as much content, less of the sink."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from sinklens.interventions.ranking import Ranking, Targets, first_of
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class NextRanked(Targeting):
    """Settings as for `MaskSinks`."""

    steady: ClassVar[bool] = True

    def choose(self, ranking: Ranking) -> Targets:
        sinks = self.sinks(ranking)
        counts = (sinks >= 0).sum(-1, keepdim=True)
        ranked = ranking.highest(2 * sinks.shape[-1])
        behind = counts + torch.arange(sinks.shape[-1], device=counts.device)
        there = behind < ranked.shape[-1]
        found = ranked.gather(-1, behind.clamp(max=ranked.shape[-1] - 1)).masked_fill(~there, -1)
        return first_of(found, counts.squeeze(-1))
