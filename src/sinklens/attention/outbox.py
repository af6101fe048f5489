"""Numbers on their way to host memory while the card goes on with the next step.

What a CUDA graph writes is copied aside on the card, which takes no time, and from there to pinned memory on a stream
of its own. A few such places are used in turn: what is still unread when its turn comes again moves on to ordinary
memory. Tensors that nobody overwrites need no place aside.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from threading import Lock
from typing import Any

import torch
from torch import Tensor

FEWEST, MOST = 2, 8  # places
PINNED_BYTES = 2**26  # that they take, unless the fewest take more

Arriving = Callable[[], list[Tensor]]  # waits for them


@dataclass(kw_only=True, eq=False)
class _Place:
    pinned: list[Tensor]
    arrived: Any = None  # the event behind the last copy to it
    parcel: "weakref.ref[Parcel] | None" = None  # whose numbers it holds; dead: nobody will read them


class Parcel:
    """The numbers of one run."""

    def __init__(self, place: _Place) -> None:
        self._place: _Place | None = place
        self._copies: list[Tensor] = []
        self._opening = Lock()  # the run and whoever writes behind it may both come

    def open(self) -> list[Tensor]:
        """In ordinary memory; waits until they are there."""
        with self._opening:
            if self._place is not None:
                self._place.arrived.synchronize()
                self._copies = [tensor.clone() for tensor in self._place.pinned]
                self._place = None
            return self._copies


class Outbox:
    """Of the tensors of one graph, which every run overwrites."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._aside = [torch.empty_like(tensor) for tensor in tensors]
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for aside in self._aside:
            aside.record_stream(self._stream)  # nobody else gets its memory while a copy from it is under way
        size = sum(tensor.nbytes for tensor in tensors)
        places = max(FEWEST, min(MOST, PINNED_BYTES // max(1, size)))
        self._turns = cycle([_Place(pinned=[_pinned(tensor) for tensor in tensors]) for _ in range(places)])
        self._last: Any = None  # the event behind the last copy from aside

    def send(self) -> Parcel:
        """After a run was launched. Nothing waits but, on the card, for the copies of the run before."""
        place = next(self._turns)
        unread = None if place.parcel is None else place.parcel()
        if unread is not None:
            unread.open()
        main = torch.cuda.current_stream()
        if self._last is not None:
            main.wait_event(self._last)
        for aside, tensor in zip(self._aside, self._tensors, strict=True):
            aside.copy_(tensor)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            for pinned, aside in zip(place.pinned, self._aside, strict=True):
                pinned.copy_(aside, non_blocking=True)
            self._last = place.arrived = self._stream.record_event()
        parcel = Parcel(place)
        place.parcel = weakref.ref(parcel)
        return parcel


class Courier:
    """Of tensors that nobody overwrites, one step's after the other's."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def send(self, *tensors: Tensor) -> Arriving:
        """What is in host memory already is not copied. A copy in the order of the run would wait for its next step."""
        away = [tensor for tensor in tensors if tensor.is_cuda]
        if not away:
            return lambda: [tensor.cpu() for tensor in tensors]
        if self._stream is None:
            self._stream = torch.cuda.Stream(away[0].device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(away[0].device))
        with torch.cuda.stream(self._stream):
            copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # to pinned memory
            arrived = self._stream.record_event()
        for tensor in away:
            tensor.record_stream(self._stream)  # whose memory is nobody else's until then

        def wait() -> list[Tensor]:
            arrived.synchronize()
            return copies

        return wait


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
