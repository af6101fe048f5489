"""torch's own attention modules, which hide their attention from everybody.

`nn.MultiheadAttention` calls SDPA behind a function that switches modes off, and with `need_weights` not at all;
`nn.TransformerEncoderLayer` has a fused fast path that any hook turns off. So both compute what they always compute,
with nobody listening, and the attention of the same inputs is then replayed once for the observers. Under an
intervention the replay is the result. Cost: the projections and the attention of such modules run twice.
"""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.listen import Listener, intervenes
from sinklens.attention.seam import Kind
from sinklens.errors import ObservationError

# The body of the function without its question whether a mode is listening: inside it, SDPA can be heard.
_open_multi_head_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda _: False},
    "open_multi_head_attention",
    F.multi_head_attention_forward.__defaults__,
    F.multi_head_attention_forward.__closure__,
)
_open_multi_head_attention.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


WATCHED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


class _ReplayListener(Listener):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            with self:
                return _open_multi_head_attention(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def overheard(model: nn.Module, around: Callable[[nn.Module, Callable[[], Any]], Any]) -> Iterator[None]:
    """Watch every MultiheadAttention and TransformerEncoderLayer of `model`.

    Their `forward` is replaced on the instance: hooks would switch the fast path off. `around(module, forward)` runs
    the forward of the observed root itself, if it is one of them.
    """
    wrapped: list[nn.Module] = []
    heard: set[nn.Module] = set()
    try:
        for module in model.modules():
            forward = _watched(module, heard)
            if forward is not None and "forward" not in module.__dict__:
                if module is model:
                    forward = _rooted(model, forward, around)
                module.forward = forward
                wrapped.append(module)
        yield
    finally:
        for module in wrapped:
            del module.forward


def _watched(module: nn.Module, heard: set[nn.Module]) -> Callable[..., Any] | None:
    if isinstance(module, nn.MultiheadAttention):
        return _multi_head(module, module.forward, heard)
    if isinstance(module, nn.TransformerEncoderLayer):
        return _encoder_layer(module, module.forward, heard)
    return None


def _rooted(
    model: nn.Module, forward: Callable[..., Any], around: Callable[[nn.Module, Callable[[], Any]], Any]
) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(model, lambda: forward(*args, **kwargs))


def _multi_head(
    module: nn.MultiheadAttention, forward: Callable[..., Any], heard: set[nn.Module]
) -> Callable[..., Any]:
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
            module,
            kind=kind,
            complete=lambda call: _complete(module, call, given.get("key_padding_mask"), kind),
        )
        with (
            torch._C._EnableTorchFunction(),  # inside an encoder layer they are off
            torch.set_grad_enabled(changed and torch.is_grad_enabled()),
            torch.random.fork_rng(enabled=module.training and not changed),  # dropout draws as ever
            listener,
        ):
            replayed = forward(query, key, value, **{**given, "need_weights": False})
        heard.add(module)
        return replayed if changed else output

    return watched


def _complete(
    module: nn.MultiheadAttention, call: AttentionCall, key_padding_mask: Tensor | None, kind: Kind
) -> AttentionCall:
    positions = None if kind == "self" else torch.arange(call.query.shape[2], device=call.query.device)
    call = replace(call, query_positions=positions, output_weight=module.out_proj.weight.detach())
    if key_padding_mask is None:
        return call
    real = ~key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == 0
    real = real.reshape(-1, real.shape[-1])
    return replace(call, real_keys=real, real_queries=real if kind == "self" else None)


def _encoder_layer(
    module: nn.TransformerEncoderLayer, forward: Callable[..., Any], heard: set[nn.Module]
) -> Callable[..., Any]:
    def watched(
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        if intervenes(module):  # a mode above switches the fast path off: the attention module is called
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
