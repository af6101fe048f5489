"""How transformers models are routed through the seam while a scope is open.

The attention interface hands a watched module a function of ours instead of "sdpa" or "eager", and everybody else the
function as it is. Configs keep their names: some models branch on them. Older transformers have no such place to
step in; there the configs name registered functions of ours (routes_by_name), with the mask function under the same
name, without which transformers drops the padding mask silently.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any

from torch import nn

from sinklens.attention.huggingface import DOORS, note_arguments, uses_interface
from sinklens.errors import ObservationError

NAMES = {"sdpa": "sinklens_sdpa", "eager": "sinklens_eager"}


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
                stack.callback(module.register_forward_pre_hook(note_arguments, with_kwargs=True).remove)
        stack.enter_context(_route(model, list(configs.values())))
        yield


def _route(model: nn.Module, configs: list[Any]) -> AbstractContextManager[None]:
    from transformers import AttentionInterface

    if hasattr(AttentionInterface, "get_interface"):
        return routes_by_interface()
    _refuse_outside(model)
    return routes_by_name(configs)


def _refuse_outside(model: nn.Module) -> None:
    """Older transformers have models that know no names but their own: ModernBERT and T5 in 4.56."""
    found = [m for m in model.modules() if uses_interface(m) and "Attention" in type(m).__name__]
    if found and not any(hasattr(sys.modules.get(type(m).__module__), "ALL_ATTENTION_FUNCTIONS") for m in found):
        import transformers

        raise ObservationError(
            f"{type(found[0]).__name__} of transformers {transformers.__version__} computes attention outside the "
            "interface of that version; upgrade transformers (5 or newer)"
        )


@contextmanager
def routes_by_interface() -> Iterator[None]:
    """Step in where models ask for their attention function; scopes may nest, each stepping in once more.

    Code outside transformers asks by `ALL_ATTENTION_FUNCTIONS["sdpa"]`; its eager function is its own.
    """
    from transformers import AttentionInterface

    before, item = AttentionInterface.get_interface, AttentionInterface.__getitem__
    own_item = vars(AttentionInterface).get("__getitem__")  # None: inherited

    def stepping_in(own: Any, name: str) -> Any:
        door = DOORS.get(name)
        # An outer scope has stepped in already; the seam knows all scopes.
        return own if door is None or getattr(own, "func", None) in DOORS.values() else partial(door, own)

    def get_interface(self: Any, attn_implementation: str, default: Any) -> Any:
        return stepping_in(before(self, attn_implementation, default), attn_implementation)

    def get_item(self: Any, name: str) -> Any:
        found = item(self, name)
        return stepping_in(found, name) if name == "sdpa" else found

    AttentionInterface.get_interface, AttentionInterface.__getitem__ = get_interface, get_item
    try:
        yield
    finally:
        AttentionInterface.get_interface = before
        if own_item is None:
            del AttentionInterface.__getitem__
        else:
            AttentionInterface.__getitem__ = own_item


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
        return DOORS["eager"](_eager_beside(module), module, *args, **keywords)

    AttentionInterface.register(NAMES["sdpa"], partial(DOORS["sdpa"], sdpa_attention_forward))
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
