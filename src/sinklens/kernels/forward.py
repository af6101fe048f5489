"""Attention itself: SDPA, with the log-sum-exp of every row where the fused kernel computes one anyway.

On a GPU, SDPA's own choice of kernel is asked for and that very kernel is called, so the output keeps its bits and the
log-sum-exp comes for free. Where SDPA picks a kernel that gives none (or on a CPU), `lse` is None and whoever needs it
takes a pass of its own. Soft-capped logits and learned sink logits, which SDPA cannot express, are computed plainly.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sinklens.kernels.reference import probabilities
from sinklens.kernels.scores import Scores

_FLASH, _CUDNN = 1, 3  # torch's numbers for its SDPA backends


@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """The output of one attention call, and how it came about."""

    output: Float[Tensor, "batch head query value_dim"]
    lse: Float[Tensor, "batch head query"] | None
    kernel: str  # "sdpa", "sdpa:flash", "sdpa:cudnn", "plain", or "model": the model's own


def run_attention(
    scores: Scores,
    value: Float[Tensor, "batch kv_head key value_dim"],
    *,
    dropout: float = 0.0,
    wants_lse: bool = False,
) -> Forward:
    """softmax(logits) v."""
    if scores.softcap is not None or scores.sink_logits is not None:
        weights, _ = probabilities(scores, dtype=torch.float32)
        weights = F.dropout(weights.to(value.dtype), dropout, training=dropout > 0)
        return Forward(output=weights @ value.repeat_interleave(scores.per_kv, dim=1), lse=None, kernel="plain")
    key, grouped = scores.key, scores.per_kv > 1
    if grouped and scores.mask is not None:  # fused kernels take grouped heads or a mask, not both
        key, value = (kv.repeat_interleave(scores.per_kv, dim=1) for kv in (key, value))
        grouped = False
    if wants_lse and key.is_cuda:
        fused = _fused_with_lse(scores, value, dropout)
        if fused is not None:
            return fused
    output = F.scaled_dot_product_attention(
        scores.query,
        key,
        value,
        attn_mask=scores.mask,
        dropout_p=dropout,
        is_causal=scores.is_causal,
        scale=scores.scale,
        enable_gqa=grouped,
    )
    return Forward(output=output, lse=None, kernel="sdpa")


def _fused_with_lse(scores: Scores, value: Tensor, dropout: float) -> Forward | None:
    """The kernel SDPA would pick, called so that it also returns the log-sum-exp; None when it cannot."""
    query, key, is_causal, scale = scores.query, scores.key, scores.is_causal, scores.scale
    if scores.mask is not None or query.shape[-1] % 8 or query.shape[-1] != value.shape[-1]:
        return None
    choice = torch._fused_sdp_choice(
        query, key, value, None, dropout, is_causal, scale=scale, enable_gqa=scores.per_kv > 1
    )
    if choice == _CUDNN:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, dropout, is_causal, False, scale=scale
        )
        return Forward(output=output, lse=lse.reshape(query.shape[:3]), kernel="sdpa:cudnn")
    if choice == _FLASH:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal, False, scale=scale
        )
        return Forward(output=output, lse=lse[..., : query.shape[2]], kernel="sdpa:flash")
    return None
