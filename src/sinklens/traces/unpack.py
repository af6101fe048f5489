"""List columns as arrays [row, key], without a loop over rows; keys that a trace left out hold their mean."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

Dense = Float[np.ndarray, "row key"]
UNSEEN = 2**16  # positions that steps may have written whose attention was not recorded


def lengths_of(column: Any) -> Int[np.ndarray, " row"]:
    """How long the list of each row is."""
    return np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks] or [np.zeros(0, np.int32)])


def check_width(column: Any, width: int) -> None:
    """Before arrays of that width are made: of the keys of a step, no more than some steps' worth are left out."""
    longest = int(max(lengths_of(column), default=0))
    if not longest <= width <= longest + UNSEEN:
        raise ValueError(f"{width} positions, and lists of up to {longest}")


def values_of(column: Any, kind: Any = np.float32) -> Shaped[np.ndarray, " value"]:
    """The elements of all lists, one list behind the other; null is NaN."""
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate([part.astype(kind, copy=False) for part in parts] or [np.zeros(0, kind)])


def dense(column: Any, width: int, *, fill: Any = np.nan, kind: Any = np.float32) -> Shaped[np.ndarray, "row key"]:
    """One row a list; `fill` behind the end of those shorter than `width`."""
    values, lengths = values_of(column, kind), lengths_of(column)
    if (lengths == width).all():
        return values.reshape(len(lengths), width)
    filled = np.full((len(lengths), width), fill, kind)
    filled[np.arange(width) < lengths[:, None]] = values
    return filled


def at_positions(positions: Any, width: int) -> Bool[np.ndarray, "row key"]:
    """True at the positions that each row lists."""
    found = np.zeros((len(positions), width), bool)
    found[np.repeat(np.arange(len(positions)), lengths_of(positions)), values_of(positions, np.int64)] = True
    return found


def with_rest(column: Any, *, kept: Bool[np.ndarray, "row key"], rest: Dense) -> Dense:
    """The listed values where they were kept, `rest` elsewhere. Lists are in the order of their positions."""
    filled = np.array(rest, np.float32)
    filled[kept] = values_of(column)
    return filled
