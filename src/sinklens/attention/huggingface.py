"""The second door: transformers models, through the attention interface they already dispatch on.

While a scope is open, the interface hands a watched module a function of ours instead of "sdpa" or "eager"; it runs the
very attention the model would have run, so nothing about it changes, and everybody else gets the function as it is.
Configs keep their names: some models branch on them. Older transformers have no such place to step in; there the
configs name registered functions of ours (routes_by_name), with the mask function under the same name, without which
transformers drops the padding mask silently. A keyword of the model's attention that is not known here is refused by
name: dropping it could change what the model computes.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.listen import Listener
from sinklens.attention.seam import Kind, attend, scopes_of
from sinklens.errors import ObservationError

NAMES = {"sdpa": "sinklens_sdpa", "eager": "sinklens_eager"}
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "o", "Wo", "wo", "dense")
_UNDERSTOOD = frozenset(
    (
        "dropout",
        "scaling",
        "is_causal",
        "position_bias",
        "softcap",
        "s_aux",
        "sliding_window",
        "output_attentions",
    )
)
_NOT_ARITHMETIC = frozenset(  # travel through the attention function without entering it
    ("use_cache", "cache_position", "position_ids", "position_embeddings", "return_dict", "output_hidden_states",
     "num_items_in_batch", "output_router_logits", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q",
     "max_length_k", "logits_to_keep", "layer_idx", "deterministic")
)  # fmt: skip

# What an attention module was given: whether it looks at another sequence, and how many tokens came before.
_arguments: "WeakKeyDictionary[nn.Module, tuple[Kind, int | None]]" = WeakKeyDictionary()


def uses_interface(module: nn.Module) -> bool:
    """True for a module of transformers' own code, whose attention goes through the interface."""
    return type(module).__module__.startswith("transformers.")


@contextmanager
def routed(model: nn.Module) -> Iterator[None]:
    """Route the attention of every transformers module in `model` through the seam."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if _implementation(m) is not None}
    if not configs:
        yield
        return
    for config in configs.values():
        _refuse_other_implementations(config)
    with ExitStack() as stack:
        for module in model.modules():
            if uses_interface(module) and "Attention" in type(module).__name__:
                stack.callback(module.register_forward_pre_hook(_note_arguments, with_kwargs=True).remove)
        stack.enter_context(_route(list(configs.values())))
        yield


def _route(configs: list[Any]) -> AbstractContextManager[None]:
    from transformers import AttentionInterface

    return routes_by_interface() if hasattr(AttentionInterface, "get_interface") else routes_by_name(configs)


@contextmanager
def routes_by_interface() -> Iterator[None]:
    """Step in where models ask for their attention function; scopes may nest, each stepping in once more."""
    from transformers import AttentionInterface

    before = AttentionInterface.get_interface

    def get_interface(self: Any, attn_implementation: str, default: Any) -> Any:
        own = before(self, attn_implementation, default)
        door = _DOORS.get(attn_implementation)
        # An outer scope has stepped in already; the seam knows all scopes.
        return own if door is None or getattr(own, "func", None) in _DOORS.values() else partial(door, own)

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = before


@contextmanager
def routes_by_name(configs: list[Any]) -> Iterator[None]:
    """For transformers that looks attention functions up by the name in the config."""
    _register_names()
    switched = []
    try:
        for config in configs:
            before = config._attn_implementation
            if before in NAMES:  # else an outer scope has switched it
                config._attn_implementation_internal = NAMES[before]
                switched.append((config, before))
        yield
    finally:
        for config, before in switched:
            config._attn_implementation_internal = before


@cache
def _register_names() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

    def eager(module: nn.Module, *args: Any, **keywords: Any) -> Any:
        return _eager(_eager_beside(module), module, *args, **keywords)

    AttentionInterface.register(NAMES["sdpa"], partial(_sdpa, sdpa_attention_forward))
    AttentionInterface.register(NAMES["eager"], eager)
    AttentionMaskInterface.register(NAMES["sdpa"], sdpa_mask)
    AttentionMaskInterface.register(NAMES["eager"], eager_mask)


def _eager_beside(module: nn.Module) -> Any:
    """The eager function in the file of a module's class, where it is not handed over."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise ObservationError(
        f"{type(module).__name__} has no eager_attention_forward beside it, so its eager attention cannot be "
        'followed; load the model with attn_implementation="sdpa"'
    )


def _implementation(module: nn.Module) -> str | None:
    config = getattr(module, "config", None)
    return getattr(config, "_attn_implementation", None) if hasattr(config, "model_type") else None


def _refuse_other_implementations(config: Any) -> None:
    name = config._attn_implementation
    if name not in NAMES and name not in NAMES.values():
        raise ObservationError(
            f"this {config.model_type} model runs attn_implementation={name!r}, which sinklens cannot look into; "
            'load it with attn_implementation="sdpa" (or "eager")'
        )
    if name == "eager" and getattr(config, "reorder_and_upcast_attn", False):
        raise ObservationError(
            "reorder_and_upcast_attn=True computes attention outside transformers' interface; "
            'load the model with attn_implementation="sdpa", or set it to False'
        )


def _note_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    other = kwargs.get("key_value_states")
    if other is None:
        other = kwargs.get("encoder_hidden_states")
    crosses = (
        other is not None
        or bool(getattr(module, "is_cross_attention", False))
        or "CrossAttention" in type(module).__name__
    )
    past = kwargs.get("past_key_values", kwargs.get("past_key_value"))
    length = None
    if past is not None and not crosses and hasattr(past, "get_seq_length"):
        length = int(past.get_seq_length(getattr(module, "layer_idx", None) or 0))
    _arguments[module] = ("cross" if crosses else "self", length)


def _refuse_unknown(module: nn.Module, keywords: dict[str, Any]) -> None:
    given = {name for name, value in keywords.items() if value is not None}
    unknown = sorted(given - _UNDERSTOOD - _NOT_ARITHMETIC)
    if unknown:
        raise ObservationError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention function, which sinklens does "
            "not know and will not drop; it knows " + ", ".join(sorted(_UNDERSTOOD))
        )


def _complete(module: nn.Module, call: AttentionCall) -> AttentionCall:
    """Add what only the module knows: where the keys stand, and the projection that follows."""
    kind, past = _arguments.get(module, ("self", None))
    queries, keys = call.query.shape[2], call.key.shape[2]
    key_positions = query_positions = None
    if kind == "self" and past is not None:
        first = max(0, past + queries - keys)  # a sliding cache has forgotten the first ones
        key_positions = torch.arange(first, first + keys, device=call.key.device)
        query_positions = torch.arange(past, past + queries, device=call.key.device)
    elif kind == "cross":
        query_positions = torch.arange(queries, device=call.key.device)
    return replace(
        call,
        key_positions=key_positions,
        query_positions=query_positions,
        output_weight=_output_weight(module, call.query.shape[1] * call.value.shape[-1]),
    )


def _output_weight(module: nn.Module, features: int) -> Tensor | None:
    for name in _OUTPUT_PROJECTIONS:
        projection = getattr(module, name, None)
        weight = getattr(projection, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2:
            if type(projection).__name__ == "Conv1D":  # GPT-2 stores [in, out]
                weight = weight.T
            if weight.shape[1] == features:
                return weight.detach()
    return None


def _kind(module: nn.Module) -> Kind:
    return _arguments.get(module, ("self", None))[0]


def _sdpa(
    own: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **keywords: Any,
) -> Any:
    """transformers' own sdpa function, overheard: what reaches SDPA is what the seam sees."""
    if not scopes_of(module):
        return own(module, query, key, value, attention_mask, **keywords)
    _refuse_unknown(module, keywords)

    def complete(call: AttentionCall) -> AttentionCall:
        if key.shape[1] < call.key.shape[1]:  # kv heads were repeated on the way; the model has these
            keys = call.key.shape[2]
            call = replace(call, key=key[:, :, :keys], value=value[:, :, :keys])
        return _complete(module, call)

    with Listener(module, kind=_kind(module), complete=complete):
        return own(module, query, key, value, attention_mask, **keywords)


def _eager(
    own: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **keywords: Any,
) -> tuple[Tensor, Tensor | None]:
    """The model's own eager function; the call beside it is what that function computes."""
    if not scopes_of(module):
        return own(module, query, key, value, attention_mask, **keywords)  # type: ignore[no-any-return]
    _refuse_unknown(module, keywords)
    mask = attention_mask
    if mask is not None and mask.shape[-1] > key.shape[2]:
        mask = mask[..., : key.shape[2]]
    bias = keywords.get("position_bias")
    if bias is not None:
        mask = bias if mask is None else bias + mask
    sinks = keywords.get("s_aux")
    call = AttentionCall(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scale=keywords.get("scaling"),
        dropout=float(keywords.get("dropout") or 0.0) if module.training else 0.0,
        softcap=keywords.get("softcap"),
        sink_logits=None if sinks is None else sinks.reshape(-1),
    )
    original: list[tuple[Tensor, Tensor | None]] = []

    def run() -> Tensor:
        original.append(own(module, query, key, value, attention_mask, **keywords))
        return original[0][0].transpose(1, 2)

    output = attend(_complete(module, call), module, kind=_kind(module), run=run)
    if original:
        return original[0]
    return output.transpose(1, 2).contiguous(), None


_DOORS = {"sdpa": _sdpa, "eager": _eager}
