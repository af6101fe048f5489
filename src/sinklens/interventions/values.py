"""Values taken away while the attention weights stay: set to nothing, or to the mean of what there is.

Minus infinity does two things: the value of a key is lost, and all other weights grow. These do the first alone, and
need no mask, so a fused kernel stays fused. Heads that share keys and values get their own.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.errors import UsageError
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.targeting import Targeting
from sinklens.interventions.views import looks_ahead, views


def choice(name: str, top: Any, of: Any) -> Targeting:
    """What to take the values of: the sinks, or as another intervention chooses."""
    if (top is None) == (of is None):
        raise UsageError(
            f"top is {top!r} and of is {of!r}; expected one of them: {name}(top=1), or {name}(of=RandomKeys(top=1))"
        )
    if of is None:
        return MaskSinks(top=top)
    if not isinstance(of, Targeting):
        raise UsageError(f"of is {of!r}; expected settings that choose keys, such as MaskSinks(top=1)")
    if of.follow:
        raise UsageError("follow=True: the weights stay as they are, so no attention goes anywhere; leave follow out")
    if of.drop:
        raise UsageError("drop=True: no key is denied; leave drop out")
    return of


def zero(call: AttentionCall, listed: Bool[Tensor, "batch head key"]) -> AttentionCall:
    """The call with nothing in place of the values of listed keys."""
    wide = own_heads(call)
    return replace(wide, value=wide.value.masked_fill(listed[..., None], 0.0))


def average(call: AttentionCall, listed: Bool[Tensor, "batch head key"]) -> AttentionCall:
    """The call with the mean of the visible values in place of the values of listed keys."""
    wide = own_heads(call)
    mean = _means(wide).to(wide.value.dtype)
    return replace(wide, value=torch.where(listed[..., None], mean, wide.value))


def own_heads(call: AttentionCall) -> AttentionCall:
    """The call with keys and values for every query head."""
    per_kv = call.scores.per_kv
    if per_kv == 1:
        return call
    key, value = (kv.repeat_interleave(per_kv, dim=1) for kv in (call.key, call.value))
    return replace(call, key=key, value=value)


def _means(call: AttentionCall) -> Float[Tensor, "batch head keys_or_1 value_dim"]:
    """The mean of the values that queries see. Among several queries of a causal call it goes up to the key's own
    position, so that nothing of later ones reaches an earlier query."""
    value = call.value.to(torch.promote_types(call.value.dtype, torch.float32))
    seen = views(call)
    if call.real_queries is not None and seen.shape[2] > 1:
        seen = seen & call.real_queries[:, None, :, None]
    counted = seen.any(2)
    if call.real_keys is not None:
        counted = counted & call.real_keys[:, None]
    weight = counted[..., None].to(value.dtype)
    if seen.shape[2] == 1 or capturing() or looks_ahead(call):  # no step of a causal model is captured
        return (value * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp(min=1)
    order = call.where_keys().argsort()
    sums, counts = ((x[:, :, order]).cumsum(2)[:, :, order.argsort()] for x in (value * weight, weight))
    return sums / counts.clamp(min=1)
