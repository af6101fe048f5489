"""torch's own attention modules, which hide their attention from everybody.

`nn.MultiheadAttention` calls SDPA behind a function that switches modes off, and with `need_weights` not at all;
`nn.TransformerEncoder` and its layers have fused paths that any hook or mode turns off. So all of them compute what
they always compute, with nobody listening, and the attention of the same inputs is then replayed once for the
observers. Under an intervention the replay is the result. Cost: the attention of such modules runs twice.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.listen import Listener, intervenes, open_multi_head_attention, replaying
from sinklens.attention.seam import Kind
from sinklens.attention.wrapping import Forward
from sinklens.errors import ObservationError


class _ReplayListener(Listener):
    """Inside a replay, the closed function is opened instead of run and replayed once more."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            with self:
                return open_multi_head_attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def wrappers(model: nn.Module) -> dict[nn.Module, Callable[[Forward], Forward]]:
    """What to make of the forward of every such module in `model`."""
    heard: set[nn.Module] = set()  # attention modules that were seen in the forward under way
    made: dict[nn.Module, Callable[[Forward], Forward]] = {}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            made[module] = partial(_multi_head, module, heard)
        elif isinstance(module, nn.TransformerEncoderLayer):
            made[module] = partial(_encoder_layer, module, heard)
        elif isinstance(module, nn.TransformerEncoder):
            made[module] = partial(_encoder, module)
    return made


def _multi_head(module: nn.MultiheadAttention, heard: set[nn.Module], forward: Forward) -> Forward:
    def watched(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        changed = intervenes(module)
        if changed and given.get("need_weights", True):
            raise ObservationError(
                "an intervention cannot return the weights of nn.MultiheadAttention; call it with need_weights=False"
            )
        output = None
        if not changed:
            with torch._C.DisableTorchFunction():
                output = forward(query, key, value, **given)
        kind: Kind = "self" if query is key else "cross"
        listener = _ReplayListener(
            module, kind=kind, complete=lambda call: _complete(module, call, given.get("key_padding_mask"), kind)
        )
        with replaying(module.training, changed=changed), listener:
            replayed = forward(query, key, value, **{**given, "need_weights": False})
        heard.add(module)
        return replayed if changed else output

    return watched


def _complete(
    module: nn.MultiheadAttention, call: AttentionCall, key_padding_mask: Tensor | None, kind: Kind
) -> AttentionCall:
    positions = None if kind == "self" else torch.arange(call.query.shape[2], device=call.query.device)
    call = replace(call, query_positions=positions, output_weight=module.out_proj.weight)
    if key_padding_mask is None:
        return call
    real = ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == 0
    real = real.reshape(-1, real.shape[-1])
    added = call.key.shape[2] - real.shape[1]  # add_bias_kv and add_zero_attn append keys of their own
    return replace(call, real_keys=F.pad(real, (0, added), value=True), real_queries=real if kind == "self" else None)


def _encoder(module: nn.TransformerEncoder, forward: Forward) -> Forward:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if intervenes(module):  # a mode keeps rows of different length from being nested
            with Listener(module):
                return forward(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return forward(*args, **kwargs)

    return watched


def _encoder_layer(module: nn.TransformerEncoderLayer, heard: set[nn.Module], forward: Forward) -> Forward:
    def watched(
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        if intervenes(module):  # a mode switches the fast path off: the attention module is called
            with Listener(module):
                return forward(src, src_mask, src_key_padding_mask, is_causal)
        heard.discard(module.self_attn)
        with torch._C.DisableTorchFunction():
            output = forward(src, src_mask, src_key_padding_mask, is_causal)
        if module.self_attn in heard:  # the slow path was taken, and its attention module has been seen
            return output
        states, padding = _padded(src, src_key_padding_mask)
        with torch.no_grad():
            states = module.norm1(states) if module.norm_first else states
            module._sa_block(states, src_mask, padding, is_causal=is_causal)
        return output

    return watched


def _padded(src: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A nested batch (rows of different length) as a padded one."""
    if not src.is_nested:
        return src, padding
    lengths = torch.tensor([row.shape[0] for row in src.unbind()], device=src.device)
    states = src.to_padded_tensor(0.0)
    return states, torch.arange(states.shape[1], device=src.device) >= lengths[:, None]
