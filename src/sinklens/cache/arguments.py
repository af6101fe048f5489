"""Arguments of a module's forward by name, however they are passed."""

import inspect
from functools import cache
from typing import Any

from torch import nn

_SEQUENCES = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids", "cache_position")  # one entry a token


@cache  # asked for before and after every attention module of every forward
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call of a module passes, by name."""
    kind: Any = type(module)
    return dict(zip(_names(kind), args, strict=False)) | kwargs


def replaced(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **changes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with some arguments changed, each where it stands."""
    kind: Any = type(module)
    names, positional = _names(kind), list(args)
    for name, value in changes.items():
        if names.index(name) < len(positional):
            positional[names.index(name)] = value
        else:
            kwargs = {**kwargs, name: value}
    return tuple(positional), kwargs


def tokens(given: dict[str, Any], start: int | None, stop: int | None) -> dict[str, Any]:
    """The arguments of a decoder for some of its tokens."""
    cut = dict(given)
    for name in _SEQUENCES:
        value = given.get(name)
        if value is not None:
            axis = 1 if name == "inputs_embeds" else -1
            cut[name] = value.narrow(axis, *_span(value.shape[axis], start, stop))
    return cut


def _span(length: int, start: int | None, stop: int | None) -> tuple[int, int]:
    first, end, _ = slice(start, stop).indices(length)
    return first, end - first
