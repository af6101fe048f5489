"""The steps of a sample of which only what stands out is kept, on their way: found and packed in threads, in order.

A step is packed when the one behind it is known: a key that stands out there, or in the one before, is kept here too.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from sinklens.errors import UsageError
from sinklens.traces.pack import Kept, Packed, as_stored, pack, standing_out, widen
from sinklens.traces.rows import AttentionRows
from sinklens.traces.storage import Storage

Found = Future[tuple[AttentionRows, Kept]]
# As an executor's: first come, first served, so that whoever waits is not waited for.
Submit = Callable[..., Future[Any]]


class Sifter:
    """Takes steps in order and gives them back in order, packed."""

    def __init__(self, submit: Submit, *, storage: Storage, model_heads: int) -> None:
        self._submit, self._storage, self._model_heads = submit, storage, model_heads
        self._before: Found | None = None
        self._last: tuple[int, int, Found] | None = None  # waits for the step behind it: its number, size and rows
        self._packing: deque[tuple[int, int, Future[dict[str, Packed]]]] = deque()

    def add(self, step: int, rows: AttentionRows) -> None:
        found: Found = self._submit(_find, rows, self._storage)
        self._release(found)
        size = sum(part.received.nbytes for part in rows.readings.values())
        self._last = (step, max(1, size), found)

    def end(self) -> None:
        """There is no step behind the last."""
        self._release(None)

    def take(self, *, room: int = 0) -> Iterator[tuple[int, dict[str, Packed]]]:
        """The oldest steps, until no more than `room` bytes are on their way. How many depends on no thread."""
        while sum(size for _, size, _ in self._packing) > room:
            step, _, packing = self._packing[0]
            try:
                packed = packing.result()  # an interrupt in here loses nothing
            except UsageError as error:
                raise UsageError(f"step {step}: {error}") from error
            self._packing.popleft()
            yield step, packed

    def _release(self, following: Found | None) -> None:
        if self._last is None:
            return
        step, size, found = self._last
        self._packing.append((step, size, self._submit(_pack, self._before, found, following, self._model_heads)))
        self._before, self._last = found, None


def _find(rows: AttentionRows, storage: Storage) -> tuple[AttentionRows, Kept]:
    """What stands out is told from what is read back."""
    stored = as_stored(rows, storage)
    return stored, standing_out(stored)


def _pack(before: Found | None, found: Found, following: Found | None, model_heads: int) -> dict[str, Packed]:
    rows, kept = found.result()
    neighbours = [None if other is None else other.result()[1] for other in (before, following)]
    return pack(rows, kept=widen(kept, *neighbours), model_heads=model_heads)
