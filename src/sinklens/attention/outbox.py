"""Numbers on their way to host memory while the card goes on with the next step.

What a CUDA graph writes is copied aside on the card, which takes no time, and from there to pinned memory on a stream
of its own, all tensors in one piece. There are as many such places as are needed, up to a few: then what has waited for
longest moves on to ordinary memory. Tensors that nobody overwrites need no place aside.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from threading import RLock
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

FEWEST, MOST = 2, 11  # places
ALIGNED = 16  # bytes: where a tensor may begin
PINNED_BYTES = 2**26  # that they take, unless the fewest take more

Arriving = Callable[[], list[Tensor]]  # waits for them


@dataclass(kw_only=True, eq=False)
class _Place:
    pinned: Tensor
    arrived: Any = None  # the event behind the last copy to it
    parcel: "weakref.ref[Parcel] | None" = None  # whose numbers it holds; dead: nobody will read them


class Layout:
    """Where tensors lie in one piece of memory, one behind the other."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = [(tensor.nbytes, tensor.dtype, tensor.shape) for tensor in tensors]
        ends = list(accumulate(-(-size // ALIGNED) * ALIGNED for size, _, _ in self._like))
        self.bytes = ends[-1] if ends else 0
        self._starts = [0, *ends[:-1]]

    def apart(self, whole: UInt8[Tensor, " byte"]) -> list[Tensor]:
        """The tensors in `whole`."""
        return [
            whole[start : start + size].view(dtype).view(shape)
            for start, (size, dtype, shape) in zip(self._starts, self._like, strict=True)
        ]


class Parcel:
    """The numbers of one run."""

    def __init__(self, place: _Place, layout: Layout) -> None:
        self._place: _Place | None = place
        self._layout = layout
        self._copies: list[Tensor] = []
        self._lent = False
        self._opening = RLock()  # the run and whoever writes behind it may both come

    @property
    def moved(self) -> bool:
        """Its place is free."""
        return self._place is None

    def open(self) -> list[Tensor]:
        """In ordinary memory; waits until they are there."""
        with self._opening:
            if self._place is not None:
                self._place.arrived.synchronize()
                copies = self._layout.apart(self._place.pinned.clone())
                if self._lent:  # by this thread, which goes on reading there
                    return copies
                self._copies, self._place = copies, None
            return self._copies

    @contextmanager
    def lent(self) -> Iterator[list[Tensor]]:
        """Where they arrived, until the context closes: no copy is made, and nobody else gets the place meanwhile."""
        with self._opening:
            if self._place is None:
                yield self._copies
            else:
                self._place.arrived.synchronize()
                self._lent = True
                try:
                    yield self._layout.apart(self._place.pinned)
                finally:
                    self._lent = False


class Outbox:
    """Of the tensors of one graph, which every run overwrites."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._layout = list(tensors), Layout(tensors)
        self._aside = torch.empty(self._layout.bytes, dtype=torch.uint8, device=tensors[0].device)
        self._parts = self._layout.apart(self._aside)
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._aside.record_stream(self._stream)  # nobody else gets its memory while a copy from it is under way
        self._most = max(FEWEST, min(MOST, PINNED_BYTES // max(1, self._layout.bytes)))
        self._places: deque[_Place] = deque()  # the one whose numbers were sent first is in front
        self._last: Any = None  # the event behind the last copy from aside

    def send(self) -> Parcel:
        """After a run was launched. Nothing waits but, on the card, for the copies of the run before."""
        place = self._place()
        main = torch.cuda.current_stream()
        if self._last is not None:
            main.wait_event(self._last)
        for part, tensor in zip(self._parts, self._tensors, strict=True):
            part.copy_(tensor)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            place.pinned.copy_(self._aside, non_blocking=True)
            self._last = place.arrived = self._stream.record_event()
        parcel = Parcel(place, self._layout)
        place.parcel = weakref.ref(parcel)
        self._places.append(place)
        return parcel

    def _place(self) -> _Place:
        """One that nobody will read, or a new one, or the oldest."""
        for place in self._places:
            parcel = None if place.parcel is None else place.parcel()
            if parcel is None or parcel.moved:
                self._places.remove(place)
                return place
        if len(self._places) < self._most:
            return _Place(pinned=_pinned(self._aside))
        oldest = self._places.popleft()
        unread = None if oldest.parcel is None else oldest.parcel()
        if unread is not None:
            unread.open()
            if not unread.moved:  # whoever sends has lent it
                self._places.append(oldest)
                return _Place(pinned=_pinned(self._aside))
        return oldest


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
