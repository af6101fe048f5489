"""Replace `forward` on single modules, and put back what was there.

A wrapper with try/finally is left on every kind of exception; torch runs no hooks on Ctrl-C, and any hook switches the
fused path of torch's own encoder layers off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

Forward = Callable[..., Any]
_MARK = "wrapped_by_sinklens"


@contextmanager
def wrapped(modules: dict[nn.Module, Callable[[Forward], Forward]]) -> Iterator[None]:
    """`modules`: for each module, what to make of its forward. A module wrapped by an outer scope is left alone."""
    before: list[tuple[nn.Module, Any]] = []
    try:
        for module, make in modules.items():
            if not getattr(module.forward, _MARK, False):
                before.append((module, module.__dict__.get("forward")))
                forward = wraps(module.forward)(make(module.forward))
                setattr(forward, _MARK, True)
                module.__dict__["forward"] = forward
        yield
    finally:
        for module, previous in before:
            if previous is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = previous
