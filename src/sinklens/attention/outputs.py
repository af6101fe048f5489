"""What a head puts out: the size of every value behind the output projection, and the rank of the whole output.

Nothing of width `model` is ever made: M_h = W_h^T W_h, the Gram matrix of head h's slice of the output projection, says
how long W_h v is (|| W_h v ||^2 = v^T M_h v) and what W_h does to the whole output (kernels/ranks.py).
"""

from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.kernels.norms import Gram, Norms, norms
from sinklens.kernels.ranks import RankAndSize, rank_and_size


class OutputMeter:
    """Keeps the Gram matrices between the calls of one observer."""

    def __init__(self) -> None:
        self._gram: dict[tuple[int, int, int], Gram] = {}

    def norms(self, call: AttentionCall) -> Norms:
        """Of keys and values, and of || W_h v_j || for every head where the projection is beside the attention."""
        return norms(call.key, call.value, self._gram_of(call))

    def rank_and_size(self, call: AttentionCall, output: Float[Tensor, "batch head query value_dim"]) -> RankAndSize:
        """Effective rank over the real queries, and the root mean square of the output's norm."""
        return rank_and_size(output, self._gram_of(call), call.real_queries)

    def _gram_of(self, call: AttentionCall) -> Gram | None:
        weight = call.output_weight
        if weight is None:
            return None
        heads, dim = call.query.shape[1], call.value.shape[-1]
        version = 0 if weight.is_inference() else weight._version  # a training step makes a new version
        key = (weight.data_ptr(), version, heads)
        if key not in self._gram:
            slices = weight.float().view(weight.shape[0], heads, dim).permute(1, 0, 2)
            self._gram[key] = Gram(whole=slices.transpose(-1, -2) @ slices)
        return self._gram[key]
