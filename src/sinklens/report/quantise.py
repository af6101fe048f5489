"""Attention received in 8 bits: a table of 256 fair shares, and the code of the nearest one.

    q x step                                        up to BEND fair shares, or the last multiple of step before it
    bend x (high / bend) ** ((q - b) / (255 - b))   from there on, to the greatest share of all; b: the code of bend

So the crowd has an absolute error, and sinks have a relative one. With the finest step both parts meet without a kink:
near the threshold of a sink, where errors would change what is found, this is about twice as exact as levels at equal
ratios throughout. A larger step spends fewer bits on the crowd and is still finer on sinks. That is for attention
that is noise from one step to the next, which does not compress. Code 0 stands for nothing: a key that is not there, or
a fair share below half a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from sinklens.errors import UsageError

CODES = 256
DIGITS = 6  # of a level: it is written out in the page
BEND = 3.0  # fair shares: the usual epsilon, below which nothing is a sink
STEPS = tuple(n / 40 for n in range(1, 21))  # 0.025 to 0.5 fair shares, from fine to coarse


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """What every code means, and where each begins."""

    table: Float[np.ndarray, " code"]  # fair shares; ascending, the first is 0
    edges: Float[np.ndarray, " edge"]  # the least value of codes 1, 2, ...
    bend: float  # the error is relative from here on, absolute below

    def encode(self, values: Float[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
        """The codes; NaN is 0."""
        codes: np.ndarray = np.searchsorted(self.edges, np.nan_to_num(values, nan=0.0), side="right").astype(np.uint8)
        return codes

    def decode(self, codes: UInt8[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """What the page shows."""
        shown: np.ndarray = self.table[codes]
        return shown

    def document(self) -> dict[str, Any]:
        """As it stands in the payload."""
        return {
            "kind": "linear_log",
            "table": self.table.tolist(),
            "zero_below": float(self.edges[0]),
            "low": float(self.table[1]),
            "high": float(self.table[-1]),
            "levels": len(self.table) - 1,
            "relative_from": self.bend,
        }


def finest_step(high: float) -> float:
    """The step with which the two parts of the table meet without a kink.

    n steps make up the linear part, n = BEND / step, and the others each add the same ratio, which is 1 + 1 / n there.
    """
    return BEND * (1 + math.log(_top(high) / BEND)) / (CODES - 1)


def make_scale(high: float, *, step: float) -> Scale:
    """The table for fair shares up to `high`."""
    linear = step * np.arange(1, math.floor(BEND / step + 1e-9) + 1)
    upper = np.geomspace(linear[-1], _top(high), CODES - len(linear))[1:]
    levels = np.array([float(f"{level:.{DIGITS}g}") for level in (*linear, *upper)])
    below, above = levels[:-1], levels[1:]
    bend = float(levels[len(linear) - 1])
    middle = np.where(below >= bend, np.sqrt(below * above), (below + above) / 2)  # nearest by ratio, or by difference
    return Scale(table=np.concatenate([[0.0], levels]), edges=np.concatenate([[levels[0] / 2], middle]), bend=bend)


def candidates(high: float) -> Sequence[Scale]:
    """From the most faithful to the smallest."""
    finest = finest_step(high)
    return [make_scale(high, step=step) for step in (finest, *(step for step in STEPS if step > finest))]


def _top(high: float) -> float:
    if not 0 <= high < float("inf"):
        raise UsageError(f"the largest fair share is {high}; expected a finite number, 0 or more: the trace is damaged")
    return max(high, 2 * BEND)


@dataclass(kw_only=True)
class Loss:
    """The largest errors met while encoding."""

    relative_from: float
    max_relative: float = field(default=0.0)  # of values from `relative_from` on
    max_absolute_below: float = field(default=0.0)  # of smaller ones, in fair shares

    def add(self, values: Float[np.ndarray, "..."], shown: Float[np.ndarray, "..."]) -> None:
        off = np.abs(np.nan_to_num(values, nan=0.0) - shown)
        large = values >= self.relative_from  # False at NaN
        self.max_relative = max(self.max_relative, float((off[large] / values[large]).max(initial=0.0)))
        self.max_absolute_below = max(self.max_absolute_below, float(off[~large].max(initial=0.0)))

    def document(self) -> dict[str, float]:
        return {
            "relative_from": self.relative_from,
            "max_relative": self.max_relative,
            "max_absolute_below": self.max_absolute_below,
        }
