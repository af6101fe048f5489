"""Intervals over images; whether kept tokens grow with the budget, and whether they follow difficulty."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.evaluation.selection_rows import CellRows
from sinklens.sinks.resample import LEVEL, Interval, draw_weights

DRAWS = 1000  # of the bootstrap


def monotone(gates: Mapping[float, CellRows], *, gated: Sequence[int], patches: int) -> list[dict[str, Any]]:
    """Per gate, over images and neighbouring budgets: how often less was kept at more, and which share was swapped.

    gates: the selector over a wire by budget, rising. `swapped`: of the patches kept at the smaller budget, those that
    the larger one does not keep.
    """
    falls, pairs = np.zeros(len(gated), np.int64), 0
    lost, held = np.zeros(len(gated), np.int64), np.zeros(len(gated), np.int64)
    for low, high in pairwise(rows for budget, rows in gates.items() if budget < 1):  # at 1 no gate runs
        less, more = low.in_common(high)
        falls += (high.kept[more] < low.kept[less]).sum(axis=0)
        pairs += len(less)
        small, large = low.masks(less, patches=patches), high.masks(more, patches=patches)
        lost += (small & ~large).sum(axis=(0, 2))
        held += small.sum(axis=(0, 2))
    return [
        {
            "block": block, "pairs": pairs, "falls": int(fall), "share": int(fall) / pairs if pairs else None,
            "swapped": int(gone) / int(kept) if kept else None,
        }
        for block, fall, gone, kept in zip(gated, falls, lost, held, strict=True)
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _draws(n: int, seed: int = 0) -> Float[np.ndarray, "draw n"]:
    """How often each image is drawn. Cells of an experiment have the same images, so they share their draws."""
    return draw_weights(n, draws=DRAWS, seed=seed).astype(np.float32)


def ratios(numerators: Float[np.ndarray, "n item"], denominators: Float[np.ndarray, "n item"]) -> list[Interval]:
    """For every item the sum of its numerators over that of its denominators, with the bootstrap over images."""
    weights = _draws(len(numerators))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = numerators.sum(axis=0) / denominators.sum(axis=0)
        drawn = (weights @ numerators.astype(np.float32)) / (weights @ denominators.astype(np.float32))
    counted = np.count_nonzero(denominators, axis=0)
    return [_interval(value, row, int(n)) for value, row, n in zip(values, drawn.T, counted, strict=True)]


def correlation(x: Any, y: Any) -> Interval:
    """Spearman's: the correlation of ranks, ties shared; the bootstrap draws images, with their ranks among all.

    >>> correlation([1, 2, 3, 4], [10, 20, 30, 25]).value
    0.8
    """
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    n = len(first)
    if n < 2:
        return Interval(value=None, low=None, high=None, n=n)
    # Centred, and of ranks as shares, so that the sums below are small; a draw has a mean of its own all the same.
    a, b = ((ranks - ranks.mean()) / n for ranks in (_ranks(first), _ranks(second)))
    value = round(float(_pearson(np.ones((1, n)), a, b)[0]), 12)
    return _interval(value, _pearson(_draws(n), a, b), n)


def _interval(value: float, drawn: Float[np.ndarray, " draw"], n: int) -> Interval:
    """Undefined draws are left out; of one image there is no interval."""
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(value):
        return Interval(value=None, low=None, high=None, n=n)
    if n < 2 or not len(drawn):
        return Interval(value=float(value), low=None, high=None, n=n)
    low, high = np.quantile(drawn.astype(np.float64), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=float(value), low=float(low), high=float(high), n=n)


def _pearson(
    weights: Float[np.ndarray, "draw n"], a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " draw"]:
    n = weights.shape[1]
    sums = weights @ np.stack([a, b, a * a, b * b, a * b], axis=1) / n
    mean_a, mean_b, aa, bb, ab = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = (ab - mean_a * mean_b) / np.sqrt((aa - mean_a**2) * (bb - mean_b**2))
    return found


def _ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """From 1; equal values share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: np.ndarray = (last - (counts - 1) / 2)[inverse]
    return ranks
