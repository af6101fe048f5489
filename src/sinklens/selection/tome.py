"""Token merging (Bolya et al. 2023, "Token Merging: Your ViT But Faster"), in a short version of our own.

Tokens are put in two sets in turn; each of the first set finds its most similar one in the second (cosine of the
keys, mean over heads); the most similar pairs are merged to means, weighted by how many patches a token stands for.
A round merges at most half of the tokens, so there are as many rounds as it takes. With proportional attention,
softmax(q k + log size), merged tokens that were equal give exactly what they gave apart.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Merged:
    """Patch tokens of a batch, those that are left first; rows with fewer than the longest are padded (size 0)."""

    tokens: Float[Tensor, "batch patch width"]
    keys: Float[Tensor, "batch patch dim"]  # that they are compared by
    sizes: Float[Tensor, "batch patch"]  # patches that a token stands for; 0: padding
    places: Int[Tensor, "batch patch"]  # of one of these patches

    @property
    def left(self) -> Int[Tensor, " batch"]:
        return (self.sizes > 0).sum(dim=1)


def merge(merged: Merged, counts: Int[Tensor, " batch"]) -> Merged:
    """Merge until no row has more than its count of tokens; one is left at least."""
    counts = counts.clamp(min=1)
    while bool((merged.left > counts).any()):
        merged = _compact(_round(merged, (merged.left - counts).clamp(min=0)))
    return merged


def _round(merged: Merged, excess: Int[Tensor, " batch"]) -> Merged:
    """One bipartite matching; what was merged into another has size 0 afterwards."""
    directions = F.normalize(merged.keys.float(), dim=-1)
    first, second = (merged.sizes[:, start::2] for start in (0, 1))
    likeness = directions[:, ::2] @ directions[:, 1::2].transpose(1, 2)
    likeness = likeness.masked_fill(~((first > 0)[:, :, None] & (second > 0)[:, None]), -torch.inf)
    best, partner = likeness.max(dim=2)
    rank = torch.argsort(torch.argsort(best, dim=1, descending=True, stable=True), dim=1)
    gone = (rank < excess[:, None]) & (best > -torch.inf)
    moved = first * gone  # patches that change their token
    sizes = second.scatter_add(1, partner, moved)
    left = torch.empty_like(merged.sizes)
    left[:, ::2], left[:, 1::2] = first * ~gone, sizes
    return Merged(
        tokens=_means(merged.tokens, second, moved, partner=partner, sizes=sizes),
        keys=_means(merged.keys, second, moved, partner=partner, sizes=sizes),
        sizes=left,
        places=merged.places,
    )


def _means(values: Tensor, second: Tensor, moved: Tensor, *, partner: Tensor, sizes: Tensor) -> Tensor:
    """The second set with what was moved to it, weighted by size; the first as it was."""
    sums = values[:, 1::2] * second[..., None].to(values.dtype)
    index = partner[..., None].expand(-1, -1, values.shape[2])
    sums = sums.scatter_add(1, index, values[:, ::2] * moved[..., None].to(values.dtype))
    means = sums / sizes.clamp(min=1)[..., None].to(values.dtype)
    alone = second == sizes  # got nothing: not rounded either
    second_values = torch.where(alone[..., None], values[:, 1::2], means)
    pairs = torch.stack((values[:, : 2 * means.shape[1] : 2], second_values), dim=2).flatten(1, 2)
    return torch.cat((pairs, values[:, pairs.shape[1] :]), dim=1)


def _compact(merged: Merged) -> Merged:
    """What is left moves together, in the order it was in; the longest row sets the length."""
    longest = int(merged.left.max())
    order = torch.sort((merged.sizes == 0).to(torch.int8), dim=1, stable=True).indices[:, :longest]

    def taken(values: Tensor) -> Tensor:
        index = order if values.dim() == 2 else order[..., None].expand(-1, -1, values.shape[2])
        return values.gather(1, index)

    return Merged(
        tokens=taken(merged.tokens), keys=taken(merged.keys), sizes=taken(merged.sizes), places=taken(merged.places)
    )
