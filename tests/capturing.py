"""A processor in a card's place: what is captured in a CUDA graph runs here, and may not wait."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sinklens.attention import capture

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh"}


@contextlib.contextmanager
def as_if_captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_under_way", True)
        yield


class NoWaiting(TorchDispatchMode):
    """Refuses whatever asks for a value, or makes a tensor out of the host's numbers."""

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._refused = WAITING - set(allowed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self._refused, name
        if name in {"index", "index_put", "index_put_"}:
            assert all(index is None or index.dtype != torch.bool for index in args[1]), name
        return func(*args, **(kwargs or {}))
