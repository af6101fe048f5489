"""What uniform attention would give every key under the same mask, and how many queries may see it.

    expected[j] = sum over counted queries i that may see j of 1 / n_i,   n_i = keys that i may see

Attention received divided by this is the fair share: exactly 1 for uniform attention under any mask. Closed forms serve
the common cases (no mask, causal, padding); other masks are read a few rows at a time.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.kernels.mask import AnyMask, MaskRows

SLAB_ELEMENTS = 2**21  # mask entries held at once, as float64


@dataclass(frozen=True, kw_only=True, eq=False)
class Uniform:
    """Uniform attention received; the head axis is 1 unless the mask differs between heads."""

    by_group: Float[Tensor, "group batch heads_or_1 key"]
    viewers_by_group: Float[Tensor, "group batch heads_or_1 key"]  # counted queries that may see the key


def uniform(
    codes: Int[Tensor, "batch query"],
    *,
    groups: int,
    heads: int,
    keys: int,
    mask: AnyMask | None = None,
    is_causal: bool = False,
) -> Uniform:
    """`codes`: the group of each query, -1 for one that is not counted."""
    batch, queries = codes.shape
    rows = MaskRows.of(mask, is_causal=is_causal, shape=(batch, heads, queries, keys))
    one_hot = torch.stack([codes == group for group in range(groups)]).double()  # [group, batch, query]
    if rows.same_for_all_queries:
        sums, viewers = _same_rows(one_hot, rows, keys)
    elif mask is None:
        sums, viewers = _causal(one_hot, keys)
    else:
        sums, viewers = _row_by_row(one_hot, rows, keys)
    return Uniform(by_group=sums.float(), viewers_by_group=viewers.float())


def _same_rows(one_hot: Tensor, rows: MaskRows, keys: int) -> tuple[Tensor, Tensor]:
    counts = one_hot.sum(-1)[:, :, None, None]  # [group, batch, 1, 1]
    seen = rows.visible(0, 1, one_hot.device)
    if seen is None:
        share = counts.new_full((1, 1, keys), 1.0 / keys)
        visible = counts.new_ones((1, 1, keys))
    else:
        visible = seen[:, :, 0].double()
        if visible.shape[-1] == 1:
            visible = visible.expand(-1, -1, keys)
        share = visible / visible.sum(-1, keepdim=True).clamp(min=1)
    batch = one_hot.shape[1]
    share = share.expand(batch, *share.shape[1:])
    return counts * share, counts * visible.expand(batch, *visible.shape[1:])


def _causal(one_hot: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Query i sees keys 0..i: key j gets the sum of 1 / min(i + 1, keys) over counted i >= j."""
    queries = one_hot.shape[-1]
    sees = torch.arange(1, queries + 1, device=one_hot.device).clamp(max=keys).double()

    def from_j_on(per_query: Tensor) -> Tensor:
        tail = per_query.flip(-1).cumsum(-1).flip(-1)
        tail = torch.cat([tail, tail.new_zeros((*tail.shape[:-1], max(0, keys - queries)))], dim=-1)
        return tail[..., :keys].unsqueeze(-2)

    return from_j_on(one_hot / sees), from_j_on(one_hot)


def _row_by_row(one_hot: Tensor, rows: MaskRows, keys: int) -> tuple[Tensor, Tensor]:
    groups, batch, queries = one_hot.shape
    assert rows.mask is not None
    heads = rows.mask.shape[1]
    sums = one_hot.new_zeros((groups, batch, heads, keys))
    viewers = torch.zeros_like(sums)
    slab = max(1, SLAB_ELEMENTS // max(1, batch * heads * keys))
    for start in range(0, queries, slab):
        stop = min(start + slab, queries)
        seen = rows.visible(start, stop, one_hot.device)
        assert seen is not None
        visible = seen.double().expand(batch, heads, stop - start, keys)
        share = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        in_slab = one_hot[:, :, start:stop]
        sums += torch.einsum("gbq,bhqk->gbhk", in_slab, share)
        viewers += torch.einsum("gbq,bhqk->gbhk", in_slab, visible)
    return sums, viewers
