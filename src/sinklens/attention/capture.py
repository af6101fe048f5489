"""A forward that is being captured in a CUDA graph: it is written down once, and run by the card alone afterwards.

Inside, nothing may wait for the card. Checks that would are made before, on the same input; measurements stand in the
graph beside the model's own next layers, on a stream of their own, and join at the end of the forward.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

_under_way = False
SCARCE = 0.25  # of a card's memory: with less at hand, memory that is held for later use is given back before a capture


def capturing() -> bool:
    """True while a forward is captured."""
    return _under_way


@contextmanager
def capture(graph: Any) -> Iterator[None]:
    """Everything that is launched inside becomes part of `graph`, and is not run."""
    global _under_way  # noqa: PLW0603 - as the card's own state is
    _under_way = True
    try:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        if free < total * SCARCE:
            torch.cuda.empty_cache()
        # Not torch.cuda.graph, which gives back all memory that is held for later use, on the card and pinned memory.
        with torch.cuda.stream(_stream(torch.cuda.current_device())):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):  # that something was left unfinished, which hides why
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        _under_way = False


@cache
def _stream(device: int) -> Any:
    """One a card for all captures: libraries hold work space for every stream that they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Beside:
    """A branch of the graph that runs beside what follows. One at a time: the next waits for the last."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._held: tuple[Any, tuple[object, ...]] | None = None

    @contextmanager
    def branch(self, *held: object) -> Iterator[None]:
        """`held`: what the branch reads. It stays until the branch has joined, so that nothing overwrites it."""
        self.join()
        main = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
        self._held = (self._stream.record_event(), held)

    def join(self) -> None:
        """Wait, on the card, for the branch."""
        if self._held is not None:
            torch.cuda.current_stream().wait_event(self._held[0])
            self._held = None
