"""What a head puts out: the size of every value behind the output projection, and the rank of the whole output.

Nothing of width `model` is ever made: M_h = W_h^T W_h, the Gram matrix of head h's slice of the output projection, says
how long W_h v is (|| W_h v ||^2 = v^T M_h v) and what W_h does to the whole output (kernels/ranks.py).
"""

from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.kernels.norms import Gram, Norms, norms
from sinklens.kernels.ranks import RankAndSize, rank_and_size

Projections = list[tuple["ref[Tensor]", int]]  # weights, each with the number of its heads


class OutputMeter:
    """Keeps the Gram matrices between the calls of one observer."""

    def __init__(self) -> None:
        self._grams: dict[tuple[int, int, int], Gram] = {}
        self.projections: Projections = []  # those they are of

    def norms(self, call: AttentionCall) -> Norms:
        """Of keys and values, and of || W_h v_j || for every head where the projection is beside the attention."""
        return norms(call.key, call.value, self._gram_of(call))

    def rank_and_size(self, call: AttentionCall, output: Float[Tensor, "batch head query value_dim"]) -> RankAndSize:
        """Effective rank over the real queries, and the root mean square of the output's norm."""
        return rank_and_size(output, self._gram_of(call), call.real_queries)

    def _gram_of(self, call: AttentionCall) -> Gram | None:
        weight = call.output_weight
        return None if weight is None else self._gram(weight, call.query.shape[1])

    def prepare(self, projections: Projections) -> bool:
        """All that will be asked of these, made ahead. False: some are gone."""
        weights = [(weight(), heads) for weight, heads in projections]
        for weight, heads in weights:
            if weight is not None:
                _ = self._gram(weight, heads).parts
        return all(weight is not None for weight, _ in weights)

    def _gram(self, weight: Float[Tensor, "model width"], heads: int) -> Gram:
        """Of every head's slice of an output projection."""
        version = 0 if weight.is_inference() else weight._version  # a training step makes a new version
        key = (weight.data_ptr(), version, heads)
        if key not in self._grams:
            with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
                slices = weight.float().view(weight.shape[0], heads, -1).permute(1, 0, 2)
                self._grams[key] = Gram(whole=slices.transpose(-1, -2) @ slices)
            self.projections.append((ref(weight), heads))
        return self._grams[key]
