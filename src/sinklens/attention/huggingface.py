"""The second door: transformers models, through the attention functions they already dispatch on (routes.py).

Each of the two functions here runs the very attention the model would have run, so nothing about it changes, and tells
the seam what that is. A keyword of the model's attention that is not known here is refused by name: dropping it could
change what the model computes.
"""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.listen import Listener
from sinklens.attention.seam import Kind, attend, scopes_of
from sinklens.errors import ObservationError

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


def note_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
    if uses_interface(module):  # others may pass what they like: that function takes it, or drops it
        _refuse_unknown(module, keywords)

    def complete(call: AttentionCall) -> AttentionCall:
        if call.query.shape[1] < query.shape[1]:
            call = _unpacked(call, query)
        if key.shape[1] < call.key.shape[1]:  # kv heads were repeated on the way; the model has these
            keys = call.key.shape[2]
            call = replace(call, key=key[:, :, :keys], value=value[:, :, :keys])
        return _complete(module, call)

    with Listener(module, kind=_kind(module), complete=complete):
        return own(module, query, key, value, attention_mask, **keywords)


def _unpacked(call: AttentionCall, query: Tensor) -> AttentionCall:
    """The call of all heads. From 5.23 on, transformers puts those of a kv head on the axis of a single query."""
    rows, heads, _, dim = call.query.shape[0], *query.shape[1:]
    mask = call.mask
    if mask is not None and mask.shape[1:3] != (1, 1):
        mask = mask.reshape(mask.shape[0], heads, 1, mask.shape[-1])
    return replace(call, query=query.expand(rows, heads, 1, dim), mask=mask)


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


DOORS = {"sdpa": _sdpa, "eager": _eager}
