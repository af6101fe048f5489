"""What a head puts out: the size of every value behind the output projection, and the rank of the whole output.

Nothing of width `model` is ever made. With M_h = W_h^T W_h, the Gram matrix of head h's slice of the output projection,

    || W_h v ||^2           = v^T M_h v
    sum of squares of W_h O = tr(O^T O M_h)
    their fourth powers     = tr((O^T O M_h)^2)

and the effective rank of the output is the participation ratio of its squared singular values, tr^2 / tr of the square:
1 where every query is given the same direction, at most the width of a head.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.kernels.norms import Gram, Norms, norms


class OutputMeter:
    """Keeps the Gram matrices between the calls of one observer."""

    def __init__(self) -> None:
        self._gram: dict[tuple[int, int, int], Gram] = {}

    def norms(self, call: AttentionCall) -> Norms:
        """Of keys and values, and of || W_h v_j || for every head where the projection is beside the attention."""
        return norms(call.key, call.value, self._gram_of(call))

    def rank_and_size(
        self, call: AttentionCall, output: Float[Tensor, "batch head query value_dim"]
    ) -> tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head"]]:
        """Effective rank over the real queries, and the root mean square of the output's norm."""
        states, queries = _real(output.float(), call.real_queries)
        product = states.transpose(-1, -2) @ states
        gram = self._gram_of(call)
        if gram is not None:
            product = product @ gram.whole
        total = product.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)
        fourth = (product * product.transpose(-1, -2)).sum((-2, -1))
        rank = torch.where(fourth > 0, total.square() / fourth, torch.nan)
        return rank, (total / queries).sqrt()

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


def _real(
    output: Float[Tensor, "batch head query value_dim"], real: Bool[Tensor, "batch query"] | None
) -> "tuple[Float[Tensor, 'batch head query value_dim'], Float[Tensor, 'batch 1'] | int]":
    """The output without its padding, and how many queries that leaves."""
    if real is None:
        return output, output.shape[2]
    return torch.where(real[:, None, :, None], output, 0.0), real.sum(1, keepdim=True).float()
