"""The definition, written plainly: the whole softmax, then its column sums. Needs query x key memory.

    p[i, j]     = exp(s[i, j]) / (sum over visible j of exp(s[i, j]) + exp(sink logit))
    received[j] = sum over counted queries i of p[i, j]

with s = q k^T * scale, soft-capped first and masked after. The faster implementations are measured against it, and
chosen maps come from it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.kernels.scores import Scores
from sinklens.kernels.sums import Sums


def probabilities(
    scores: Scores, *, dtype: torch.dtype = torch.float64
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query"]]:
    """Attention maps and the mass of the null term (0 without sink logits). A row that sees nothing is all 0."""
    batch, heads, queries, _ = scores.shape
    keys = scores.key.to(dtype).repeat_interleave(scores.per_kv, dim=1)
    logits = scores.query.to(dtype) @ keys.transpose(-1, -2) * scores.softmax_scale
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    rows = scores.mask_rows()
    added, seen = rows.additive(0, queries), rows.visible(0, queries, logits.device)
    if added is not None:
        logits = logits + added.to(dtype)
    if seen is not None:
        logits = logits.masked_fill(~seen, -torch.inf)
    null = logits.new_full((batch, heads, queries, 1), -torch.inf)
    if scores.sink_logits is not None:
        null = scores.sink_logits.to(dtype).view(1, heads, 1, 1).expand_as(null)
    weights = torch.softmax(torch.cat([logits, null], dim=-1), dim=-1)
    if seen is not None:  # a row that may see nothing has no softmax
        weights = torch.where(seen.any(-1, keepdim=True), weights, 0.0)
    return weights[..., :-1], weights[..., -1]


def received(scores: Scores, *, codes: Int[Tensor, "batch query"], groups: int, entropy: bool = False) -> Sums:
    """Column sums per query group, in the precision of the inputs or float32, whichever is finer."""
    dtype = torch.promote_types(scores.query.dtype, torch.float32)
    weights, null = probabilities(scores, dtype=dtype)
    one_hot = torch.stack([codes == group for group in range(groups)]).to(dtype)
    counted = (codes >= 0).to(dtype)[:, None]
    return Sums(
        by_group=torch.einsum("gbq,bhqk->gbhk", one_hot, weights),
        null_mass=None if scores.sink_logits is None else (null * counted).sum(-1),
        entropy=torch.special.entr(weights).sum(-1) + torch.special.entr(null) if entropy else None,
    )
