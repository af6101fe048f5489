"""Which keys stand out at a step, and what denying them to queries means."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall, Site
from sinklens.interventions.views import views
from sinklens.kernels.received import Received, received_of
from sinklens.kernels.uniform import Uniform

Targets = Int[Tensor, "batch head top"]  # canvas positions, highest rank first; -1: there is none


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """The keys of one call and how much attention each gets, for the choice of what the next step is denied."""

    site: Site
    scores: Float[Tensor, "batch head key"]
    candidates: Bool[Tensor, "batch heads_or_1 key"]  # real, and visible to a query that counts
    positions: Int[Tensor, " key"]

    def highest(self, count: int) -> Targets:
        """The `count` highest candidates of every head; of equals, the lower position comes first."""
        order = self.positions.argsort()
        scores = torch.where(self.candidates, self.scores, -torch.inf)[..., order]
        found = scores.sort(dim=-1, descending=True, stable=True)
        values, index = found.values[..., :count], found.indices[..., :count]
        return self.positions[order][index].masked_fill(values == -torch.inf, -1)


def attention_paid(call: AttentionCall, *, visibility: Uniform | None = None) -> Received:
    """Attention received from the real queries of a call. `visibility`: who sees what, where it is known already."""
    codes = None if call.real_queries is None else call.real_queries.int() - 1  # padding: -1, else group 0
    return received_of(call.scores, codes=codes, expected=visibility)


def candidates(call: AttentionCall, paid: Received) -> Bool[Tensor, "batch heads_or_1 key"]:
    seen = paid.viewers > 0
    return seen if call.real_keys is None else seen & call.real_keys[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Denial:
    """Keys taken from the queries of a call. A query that would be left with nothing keeps the lowest ranked."""

    listed: Bool[Tensor, "batch head key"]
    spared: Bool[Tensor, "batch head rows key"] | None  # None: no query needs to be

    @property
    def hidden(self) -> Bool[Tensor, "batch head rows_or_1 key"]:
        hidden = self.listed[:, :, None]
        return hidden if self.spared is None else hidden & ~self.spared


def deny(call: AttentionCall, targets: Targets) -> Denial:
    """Take the keys at `targets` from every query of `call`; a target that is not among its keys is no loss."""
    rank = _ranks(targets, call.where_keys())
    listed, seen = rank >= 0, views(call)
    starved = seen.any(-1) & ~(seen & ~listed[:, :, None]).any(-1)
    if not bool(starved.any()):
        return Denial(listed=listed, spared=None)
    seen_ranks = torch.where(seen, rank[:, :, None], -1)
    kept = seen & (rank[:, :, None] == seen_ranks.amax(-1, keepdim=True))
    return Denial(listed=listed, spared=starved[..., None] & kept)


def _ranks(targets: Targets, positions: Int[Tensor, " key"]) -> Int[Tensor, "batch head key"]:
    """The rank of every key among the targets, from 0; -1 for the others."""
    width = int(torch.maximum(targets.amax(), positions.amax())) + 1
    canvas = targets.new_full((*targets.shape[:2], width + 1), -1)
    slots = targets.masked_fill(targets < 0, width)  # a slot that no key reads
    canvas.scatter_(-1, slots, torch.arange(targets.shape[-1], device=targets.device).expand_as(targets))
    return canvas[..., positions]
