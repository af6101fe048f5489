"""Random draws that can be repeated: item i of a split follows from the task, the split, the seed and i alone.

Only `random.Random.random` is used: of all methods it alone is promised to give the same numbers under every
Python version.
"""

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from sinklens.errors import UsageError, choose
from sinklens.tasks.item import SPLITS

T = TypeVar("T")


class Draws:
    """A stream of draws for each item of one task, split and seed; `at(index)` goes to the start of one."""

    __slots__ = ("_base", "_rng", "unit")

    def __init__(self, task: str, split: str, *, seed: int) -> None:
        digest = hashlib.blake2b(f"{task}/{split}/{seed}".encode(), digest_size=8).digest()
        self._base = int.from_bytes(digest, "big") << 64
        self._rng = Random()
        self.unit = self._rng.random  # a draw from [0, 1)

    def at(self, index: int) -> None:
        self._rng.seed(self._base + index)

    def pick(self, among: Sequence[T]) -> T:
        return among[int(self.unit() * len(among))]

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.unit() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.unit() < probability


def begin_items(task: str, split: str, *, seed: Any, start: Any) -> Draws:
    """The draws of `items`, its arguments checked."""
    choose("split", split, SPLITS)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UsageError(f"seed is {seed!r}; give a whole number")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise UsageError(f"start is {start!r}; give the number of the first item, from 0 on")
    return Draws(task, split, seed=seed)
