"""The cells that sink status is explained on: how often each was a sink, and its level of every factor.

A cell is one (sample, step, key). Its response is binomial: in how many heads it is a sink, out of those in which it
can be one. Cells with the same levels are merged, which is all that a fit needs.

    position  the first position, and `bins` equal stretches of the canvas
    token     the id, -1 where it is masked
    mask      masked or not
    region    prompt, answer, block, future (`statistics.region_of`)
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.statistics import region_of

FACTORS = ("position", "token", "mask", "region")
TOKEN = FACTORS.index("token")


@dataclass(frozen=True, kw_only=True, eq=False)
class CellCounts:
    """The cells of one sample, in one layer or several. Counts of several layers of that sample add up."""

    sample: int
    keys: int
    levels: Int[np.ndarray, "combination 4"]  # of FACTORS, as they occur together; the token of a masked cell is -1
    combination: Int[np.ndarray, " cell"]  # which of them each cell has
    sinks: Int[np.ndarray, " cell"]  # heads in which it is a sink
    seen: Int[np.ndarray, " cell"]  # heads in which it can be one

    def __add__(self, other: "CellCounts") -> "CellCounts":
        if self.sample != other.sample or not np.array_equal(self.combination, other.combination):
            raise UsageError(
                f"cells of samples {self.sample} and {other.sample} do not match; add layers of one sample, counted "
                "over the same steps"
            )
        return CellCounts(
            sample=self.sample,
            keys=self.keys,
            levels=self.levels,
            combination=self.combination,
            sinks=self.sinks + other.sinks,
            seen=self.seen + other.seen,
        )

    def merge(self) -> "MergedCells":
        """Cells with the same levels as one: all that a fit needs, and small."""
        size = len(self.levels)
        return MergedCells(
            keys=self.keys,
            levels=self.levels,
            sinks=np.bincount(self.combination, self.sinks, size),
            seen=np.bincount(self.combination, self.seen, size),
            cells=int((self.seen > 0).sum()),
            best=_best_likelihood(self.sinks, self.seen),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedCells:
    """The cells of one sample by combination of levels."""

    keys: int
    levels: Int[np.ndarray, "combination 4"]
    sinks: Float[np.ndarray, " combination"]
    seen: Float[np.ndarray, " combination"]
    cells: int  # how many there were
    best: float  # their log-likelihood when every cell has its own rate


def count_cells(
    layer: LayerArrays,
    sinks: Bool[np.ndarray, "step head key"],
    *,
    canvases: Canvases,
    bins: int = 32,
    min_viewers: int = MIN_VIEWERS,
) -> CellCounts:
    """The cells of one layer of one sample. `min_viewers`: as the sinks were detected; other heads are not counted."""
    if bins < 1:
        raise UsageError(f"bins is {bins}; expected at least 1 stretch of positions")
    ids, masked = canvases.ids[layer.steps], canvases.masked[layer.steps]
    place = np.arange(ids.shape[1])
    position = np.where(place == 0, 0, 1 + place * bins // len(place))
    factors = (
        np.broadcast_to(position, ids.shape),
        np.where(masked, -1, ids),
        masked,
        region_of(canvases, layer.steps),
    )
    there = ids >= 0
    columns = np.stack([factor[there] for factor in factors], axis=1).astype(np.int64)
    combination, first = combine(columns)
    can = ~np.isnan(layer.received) & (layer.expected > 0) & (layer.viewers >= min_viewers)
    return CellCounts(
        sample=canvases.sample,
        keys=len(place),
        levels=columns[first],
        combination=combination,
        sinks=(sinks & can).sum(1)[there],
        seen=can.sum(1)[there],
    )


def combine(columns: Int[np.ndarray, "row factor"]) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " combination"]]:
    """Which combination of levels each row has, and the first row of every combination."""
    code = np.zeros(len(columns), np.int64)
    for column in columns.T:
        low = column.min(initial=0)
        code = code * (column.max(initial=0) - low + 1) + column - low
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return index, first


def _best_likelihood(sinks: Int[np.ndarray, " cell"], seen: Int[np.ndarray, " cell"]) -> float:
    """Of one rate for every cell: sum of k log(k / n) + (n - k) log((n - k) / n)."""
    total = 0.0
    for part in (sinks, seen - sinks):
        some = part > 0
        total += float(part[some] @ np.log(part[some] / seen[some]))
    return total
