"""Train, validation and test: part of a set, not of a run. An image's place depends on its own name and class alone."""

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Int

from sinklens.errors import UsageError

SPLITS = ("train", "validation", "test")
ALIASES = {"validation": ("validation", "val", "valid"), "test": ("test",), "train": ("train",)}


def split_of(
    labels: Any, split: str, *, has_test: bool, names: Sequence[str] | None = None
) -> Int[np.ndarray, " some"]:
    """Which images are in a split, in an order in which classes are mixed.

    Class by class, in the order of a hash of their names (their numbers, where they have none), a tenth is for
    validation and, unless the set has a test part of its own, a tenth for test. A class of one image is in training.
    """
    labels = np.asarray(labels)
    named = [str(number) for number in range(len(labels))] if names is None else names
    order = _order("split", named)
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        count = len(members)
        held_out = 0 if count == 1 else max(1, count // 10)
        test = 0 if has_test else held_out
        validation = held_out if count - test > 1 else 0
        cuts = {"test": (0, test), "validation": (test, test + validation), "train": (test + validation, count)}
        chosen[members[slice(*cuts[split])]] = True
    # Another order than the one that was cut: at its start, classes with an early cut would stand alone.
    mixed = _order("mixed", named)
    found: Int[np.ndarray, " some"] = mixed[chosen[mixed]]
    return found


def part_for(split: str, parts: Collection[str], *, name: str) -> tuple[str, bool | None]:
    """Which part of a set that comes in parts a split is taken from, and how: None is all of it, else `has_test`.

    A set with only one part besides training has it for test, and validation is taken out of training.
    """
    have = {split: next((alias for alias in ALIASES[split] if alias in parts), None) for split in SPLITS}
    train, others = have["train"], [part for part in (have["validation"], have["test"]) if part is not None]
    if train is None:
        raise UsageError(f"{name} has the parts {', '.join(sorted(parts))}; expected a part called train")
    if len(others) == 2:
        part = have[split]
        assert part is not None
        return part, None
    if len(others) == 1 and split == "test":
        return others[0], None
    return train, bool(others)


def _order(purpose: str, names: Sequence[str]) -> Int[np.ndarray, " all"]:
    digests = (blake2b(f"{purpose} {name}".encode(), digest_size=8).digest() for name in names)
    return np.argsort(np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64), kind="stable")
