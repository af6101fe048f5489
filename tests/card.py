"""A processor in a card's place: graphs that are written down once and run again, in the same memory.

Whatever torch does between `capture_begin` and `capture_end` is noted, operation by operation. Nothing of it counts as
run: until the first replay the memory holds numbers that mean nothing. A replay does all of it again and puts what
comes out where it came out at first, as a card would, so whoever kept a view reads the numbers of a later run.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capturing import NoWaiting
from sinklens.attention import capture, observe, outbox, packed
from sinklens.recording import plan
from sinklens.sampling import generate
from sinklens.sampling.graphs import CapturedModel


class Event:
    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class Stream:
    def __init__(self, *_: Any) -> None:
        pass

    def wait_stream(self, _: "Stream") -> None:
        pass

    def wait_event(self, _: Event) -> None:
        pass

    def record_event(self) -> Event:
        return Event()


class Noting(TorchDispatchMode):
    """Every operation, with what it was given and what came out, and memory from before as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in written_to(func, args, kwargs or {}):
            where = address(tensor)
            if where not in self._own and where not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[where] = (whole, whole.clone())
        out = func(*args, **(kwargs or {}))
        self._own.update(address(tensor) for tensor in fresh(out, (args, kwargs)))
        if "empty" in func.overloadpacket.__name__:  # memory, and nothing that is done
            return out
        self.done.append((func, args, kwargs or {}, fresh(out, (args, kwargs))))
        return out


def tensors_of(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def fresh(out: Any, given: Any) -> list[Tensor]:
    """What lies in memory of its own."""
    known = {address(tensor) for tensor in tensors_of(given)}
    return [tensor for tensor in tensors_of(out) if address(tensor) not in known]


def written_to(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """What an operation changes in place."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    changed = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return tensors_of([named.get(name) for name in changed])


class Graph:
    """In place of torch.cuda.CUDAGraph."""

    def capture_begin(self, **_: Any) -> None:
        self._stack, self._noting = contextlib.ExitStack(), Noting()
        self._stack.enter_context(self._noting)
        self._stack.enter_context(NoWaiting())

    def capture_end(self) -> None:
        self._stack.close()
        for *_, made in self._noting.done:
            for tensor in made:
                spoil(tensor)
        for place, values in self._noting.before.values():  # nothing has run yet
            place.copy_(values)

    def replay(self) -> None:
        for func, args, kwargs, made in self._noting.done:
            out = func(*args, **kwargs)
            for place, tensor in zip(made, fresh(out, (args, kwargs)), strict=True):
                place.copy_(tensor)


def spoil(tensor: Tensor) -> None:
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype != torch.bool:
        tensor.fill_(0)  # a valid index
    else:
        tensor.fill_(False)


@contextlib.contextmanager
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Says how many runs of graphs there were since it was last asked."""
    replays = 0

    class Counted(Graph):
        def replay(self) -> None:
            nonlocal replays
            replays += 1
            super().replay()

    def asked() -> int:
        nonlocal replays
        found, replays = replays, 0
        return found

    for name, stand_in in {
        "CUDAGraph": Counted,
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "current_device": lambda: 0,
        "mem_get_info": lambda *_: (1, 1),
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda *_: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(outbox, "_pinned", torch.empty_like)
    monkeypatch.setattr(packed, "away", lambda _: True)
    monkeypatch.setattr(observe, "may_wait", lambda *_: False)
    monkeypatch.setattr(generate, "captured", CapturedModel)
    monkeypatch.setattr(plan, "captured", CapturedModel)
    capture._stream.cache_clear()
    yield asked
    capture._stream.cache_clear()
