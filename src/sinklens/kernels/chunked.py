"""Attention received in plain torch, a few query rows at a time: memory grows with the number of keys, not its square.

For a slab of rows the softmax is computed whole, added into the column sums and dropped. In a causal call keys behind
the last row of a slab are left out: half of the work. Sums are taken in float32 (float64 for float64 inputs) whatever
the inputs are, so bf16 inputs lose nothing beyond their own rounding.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.kernels.scores import Scores
from sinklens.kernels.sums import Sums

# Logits held at once, and as much again for one temporary: what a cache holds (4 MiB in float32), or more where that
# would be fewer rows than a product needs to be fast, up to 32 MiB.
SLAB_ELEMENTS, MOST_ELEMENTS, FAST_ROWS = 2**20, 2**23, 32


def received(scores: Scores, *, codes: Int[Tensor, "batch query"], groups: int, entropy: bool = False) -> Sums:
    """Column sums per query group; see reference.received."""
    query, (batch, heads, queries, keys) = scores.query, scores.shape
    kv_heads, dim = scores.key.shape[1], query.shape[-1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows = scores.mask_rows()
    keys_t = scores.key.to(dtype).transpose(-1, -2)
    counted = torch.stack([codes == group for group in range(groups)], dim=1).to(dtype)  # [batch, group, query]
    totals = query.new_zeros((batch, heads, groups, keys), dtype=dtype)
    nulls = query.new_zeros((batch, heads), dtype=dtype)
    entropies = query.new_empty((batch, heads, queries), dtype=dtype) if entropy else None
    row = max(1, batch * heads * keys)
    slab = max(1, min(max(SLAB_ELEMENTS, FAST_ROWS * row), MOST_ELEMENTS) // row)
    for start in range(0, queries, slab):
        stop = min(start + slab, queries)
        end = min(stop, keys) if scores.is_causal else keys  # what these rows may see lies before
        chunk = query[:, :, start:stop].to(dtype).mul(scores.softmax_scale)
        logits = (chunk.reshape(batch, kv_heads, -1, dim) @ keys_t[..., :end]).view(batch, heads, stop - start, end)
        if scores.softcap is not None:
            logits.div_(scores.softcap).tanh_().mul_(scores.softcap)
        added, seen = rows.additive(start, stop), rows.visible(start, stop, query.device)
        if added is not None:
            logits.add_(added[..., :end])
        if seen is not None:
            logits.masked_fill_(~seen[..., :end], -torch.inf)
        if scores.mask is None and scores.sink_logits is None:  # every row sees something
            weights, null = torch.softmax(logits, dim=-1), None
        else:
            weights, null = _softmax_(logits, scores.sink_logits)
        totals[..., :end] += counted[:, None, :, start:stop] @ weights
        if null is not None:
            nulls += (null * (codes[:, None, start:stop] >= 0)).sum(-1)
        if entropies is not None:
            rest = 0.0 if null is None else torch.special.entr(null)
            entropies[:, :, start:stop] = torch.special.entr(weights).sum(-1) + rest
    null_mass = None if scores.sink_logits is None else nulls
    return Sums(by_group=totals.permute(2, 0, 1, 3), null_mass=null_mass, entropy=entropies)


def _softmax_(logits: Tensor, sink_logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Softmax over the last axis, in place, and the null term's share; a row that sees nothing becomes 0."""
    peak = logits.amax(-1, keepdim=True)
    sees_none = peak == -torch.inf
    null = None
    if sink_logits is not None:
        null = sink_logits.to(logits.dtype).view(1, -1, 1, 1)
        peak = torch.maximum(peak, null)
    peak = peak.masked_fill(sees_none, 0.0)
    weights = logits.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    if null is not None:
        null = torch.where(sees_none, 0.0, (null - peak).exp())
        total = total + null
    total = total.masked_fill(sees_none, 1.0)
    return weights.div_(total), None if null is None else (null / total).squeeze(-1)
