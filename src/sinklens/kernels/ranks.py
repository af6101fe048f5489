"""Effective rank and size of what the heads of one call put out, in float32.

With O the output of a head [query, value_dim] and M_h = W_h^T W_h, the Gram matrix of its slice of the projection,

    sum of squares of W_h O = tr(O^T O M_h)
    their fourth powers     = tr((O^T O M_h)^2)

and the effective rank is the participation ratio of the squared singular values, tr^2 / tr of the square: 1 where every
query is given the same direction, at most the width of a head. Nothing of width `model` is made.

On a GPU one Triton kernel does all of it, from Hopper on: on older ones it needs more registers than there are.
"""

from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.kernels.norms import MOST_DIMS, Gram

ROOM = 200 * 1024  # bytes of shared memory a program may have: by this Hopper and newer are told, not by their names

RankAndSize = tuple[Float[Tensor, "batch head"], Float[Tensor, "batch head"]]


def rank_and_size(
    output: Float[Tensor, "batch head query value_dim"], gram: Gram | None, real: Bool[Tensor, "batch query"] | None
) -> RankAndSize:
    """Effective rank over the real queries, and the root mean square of the norm. `gram` None: of the output itself."""
    if output.is_cuda and output.shape[-1] <= MOST_DIMS and output.dtype != torch.float64 and _fits(output.device):
        from sinklens.kernels.ranks_triton import rank_and_size as fused

        return fused(output, gram, real)
    states, queries = _real(output.float(), real)
    product = states.transpose(-1, -2) @ states
    if gram is not None:
        product = product @ gram.whole
    total = product.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)
    fourth = (product * product.transpose(-1, -2)).sum((-2, -1))
    rank = torch.where(fourth > 0, total.square() / fourth, torch.nan)
    return rank, (total / queries).sqrt()


def _fits(device: torch.device) -> bool:
    room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return room >= ROOM and find_spec("triton") is not None


def _real(
    output: Float[Tensor, "batch head query value_dim"], real: Bool[Tensor, "batch query"] | None
) -> "tuple[Float[Tensor, 'batch head query value_dim'], Float[Tensor, 'batch 1'] | int]":
    """The output without its padding, and how many queries that leaves."""
    if real is None:
        return output, output.shape[2]
    return torch.where(real[:, None, :, None], output, 0.0), real.sum(1, keepdim=True).float()
