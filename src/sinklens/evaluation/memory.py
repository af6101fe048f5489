"""Batches that fit into memory: where one does not, its halves are tried, and those after it are no larger.

Whoever uses it records how many ran at a time. Nothing here loads torch.
"""

import gc
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")
_ON_A_CPU = "DefaultCPUAllocator: "  # torch raises a plain RuntimeError there


def is_out_of_memory(error: BaseException) -> bool:
    torch: Any = sys.modules.get("torch")
    ours = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, ours) or (isinstance(error, RuntimeError) and _ON_A_CPU in str(error))


class Room:
    """How many fit at a time: any number, until one proves too many. what: of them, for people."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.most: int | None = None

    def cut(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        """The items in their order, in as few parts as fit."""
        size = max(1, min(len(items), self.most or len(items)))
        return [items[start : start + size] for start in range(0, len(items), size)]

    def shrink(self, tried: int, error: Exception) -> None:
        """After `error`, with `tried` at a time: half of them, or the error again where that cannot help."""
        if tried < 2 or not is_out_of_memory(error):
            raise error
        self.most = (tried + 1) // 2
        why = str(error).partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"out of memory with {tried} {self.what} at a time ({why}); going on with {self.most}", stacklevel=3
        )

    def run(self, items: Sequence[Any], work: Callable[[Sequence[Any]], Result]) -> list[Result]:
        """`work` on all items, in parts that fit; what it gave for each part, in the order of the items."""
        found, waiting = [], deque(self.cut(items))
        while waiting:
            some = waiting.popleft()
            try:
                found.append(work(some))
                continue
            except Exception as error:
                self.shrink(len(some), error)
            release_memory()  # here, where nothing holds what the failed attempt had made
            waiting.extendleft(reversed(self.cut(some)))
        return found


def release_memory() -> None:
    """Give back what nothing holds any more."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
