"""A control: for every sink, a random key about as far from where the model is writing, in the same mask state.

    distance = position - anchor     anchor: the first position of the block, the first mask, or the newest query
    bucket   = sign(distance) * floor(log2(|distance| + 1))     0, 1..2, 3..6, 7..14, ... on either side

A partner is no sink of the head and no other sink's partner. Where no key of the bucket and the state is left, the
nearest bucket of the same state is taken, and only then the other state.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.interventions.draws import noise
from sinklens.interventions.plan import check_seed
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting

OTHER_STATE = 1000.0  # more than any number of buckets


@dataclass(frozen=True, kw_only=True)
class PositionMatched(Targeting):
    """Settings as for `MaskSinks`; draws as for `RandomKeys`."""

    seed: Any = 0  # an integer, or a tuple with one for each row

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)

    def choose(self, ranking: Ranking) -> Targets:
        sinks = self.sinks(ranking)
        where, draws = ranking.index_of(sinks), noise(ranking, self.seed)
        bucket, state = _buckets(ranking), ranking.mask_state
        free = ranking.candidates & ~ranking.marks(sinks)
        partners = []
        for rank in range(sinks.shape[-1]):
            sink = where[..., rank : rank + 1].clamp(min=0)
            rows = bucket[:, None].expand_as(draws)
            apart = (rows - rows.gather(-1, sink)).abs()
            if state is not None:
                states = state[:, None].expand_as(draws)
                apart = apart + OTHER_STATE * (states != states.gather(-1, sink))
            found = (apart + draws).masked_fill(~free, torch.inf).min(dim=-1, keepdim=True)
            there = found.values.isfinite() & (sinks[..., rank : rank + 1] >= 0)
            free.scatter_(-1, found.indices, free.gather(-1, found.indices) & ~there)
            partners.append(ranking.positions[found.indices].masked_fill(~there, -1))
        return torch.cat(partners, dim=-1)


def _buckets(ranking: Ranking) -> Float[Tensor, "batch key"]:
    distance: Int[Tensor, "batch key"] = ranking.positions - ranking.anchor[:, None]
    return distance.sign() * (distance.abs().double() + 1).log2().floor()
