"""What two orders hear of attention while a cache is compressed: what entries receive, and what the queries are.

Exact, through the seam and the kernel of attention received: no eager attention, no query x key matrix.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Intervention, Kind, Seen
from sinklens.attention.watch import Watch
from sinklens.cache.entries import QueryStatistics
from sinklens.cache.layer import CutLayer
from sinklens.cache.queries import Angles, QuerySums, Rotation
from sinklens.kernels.received import received_of


class Listening:
    """A scope that adds up, for each layer, what its order asks for."""

    intervention: Intervention | None = None
    wants_lse = True

    def __init__(self, model: nn.Module, order: str) -> None:
        self.watch, self.order = Watch(model), order
        self._model = model
        self._owner: nn.Module | None = None
        self._layers: dict[nn.Module, tuple[CutLayer, Angles | None]] = {}
        self._rotations: dict[nn.Module, Rotation] = {}

    def expect(self, owner: nn.Module, layer: CutLayer, angles: Any) -> None:
        """Before the attention of `owner` runs: the layer that it fills, and its angles of RoPE."""
        self._layers[owner] = (layer, angles)

    def describe(self, call: AttentionCall, owner: nn.Module, kind: Kind) -> AttentionCall:
        self._owner = owner
        return self.watch.describe(call, owner, kind)

    @torch.no_grad()
    def see(self, seen: Seen) -> None:
        assert self._owner is not None
        owner, call = self._owner, seen.effective
        layer, angles = self._layers.pop(owner, (None, None))
        if layer is None:  # a layer that is skipped
            return
        if self.order == "received":
            layer.add_received(_received(seen, layer))
            return
        real = call.real_queries
        if real is None:
            real = torch.ones((call.query.shape[0], call.query.shape[2]), dtype=torch.bool, device=call.query.device)
        query = self._rotation(owner).back(call.query, angles)
        layer.queries = QuerySums.add(layer.queries, query, real=real, scale=call.scores.softmax_scale)

    def statistics(self, owner: nn.Module, layer: CutLayer) -> QueryStatistics | None:
        """Of the queries so far, for "expected"."""
        sums = layer.queries
        if sums is None:
            return None
        return sums.statistics(self._rotation(owner).ahead(sums.met, sums.total.shape[-1]))

    def _rotation(self, owner: nn.Module) -> Rotation:
        if owner not in self._rotations:
            self._rotations[owner] = Rotation(owner, self._model)
        return self._rotations[owner]


def _received(seen: Seen, layer: CutLayer) -> Tensor:
    """Column sums over the real queries, averaged over the query heads of each group."""
    call, codes = seen.effective, None
    if call.real_queries is not None:
        codes = torch.where(call.real_queries, 0, -1).to(torch.int32)
    total = received_of(call.scores, codes=codes, lse=seen.forward.lse).total.float()
    kv_heads = layer.columns["received"].shape[1]
    return total.view(total.shape[0], kv_heads, -1, total.shape[-1]).mean(2)
