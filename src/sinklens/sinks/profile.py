"""How attention received is spread over tokens: histogram, main sink, share absorbed, concentration.

Every function takes one layer of one sample and returns something small that adds up or averages over layers and
samples. Scores are fair shares, received / expected, 1 for uniform attention under any mask; see `arrays.Received`.

A fair share formed by a handful of queries says little (the last token of a causal run is seen by itself alone and
easily gets fifty fair shares of that one row), so keys that fewer than `min_viewers` queries may see are left out of
scores throughout, as they are when sinks are detected.

A trace of detail "sinks" keeps only what stands out: the other keys hold their common mean. What needs them one by
one is refused there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.metrics import absorbed
from sinklens.sinks.resample import Interval, bootstrap_ratios

EDGES = np.linspace(0.0, 50.0, 501)  # of the histogram, in fair shares; what lies above is counted too
EPSILONS = np.linspace(0.0, 10.0, 101)
KEPT_ABOVE = 1.0  # a trace of detail "sinks" keeps what exceeds the others' mean by this many fair shares


@dataclass(frozen=True, kw_only=True, eq=False)
class MainSink:
    """The greatest sink of every head at every step, whether or not it passes a threshold."""

    position: Int[np.ndarray, "step head"]  # -1: not known, or no key has enough viewers
    score: Float[np.ndarray, "step head"]  # fair share; NaN where the position is -1
    mass: Float[np.ndarray, "step head"]  # received / viewers; likewise


@dataclass(frozen=True, kw_only=True, eq=False)
class Concentration:
    """How unequally attention falls on the keys. NaN where there is none."""

    gini: Float[np.ndarray, "step head"]  # of fair shares: 0 all equal, towards 1 all on one key
    effective: Float[np.ndarray, "step head"]  # number of tokens attended to: 1 all on one key, n all equal
    uniform: Float[np.ndarray, "step heads_or_1"]  # the effective number of uniform attention under the same mask


def score_histogram(
    layer: LayerArrays, edges: Any = EDGES, *, min_viewers: int = MIN_VIEWERS
) -> Int[np.ndarray, " edge"]:
    """How many fair shares, over all steps, heads and keys, lie between one edge and the next.

    Entry i counts edges[i] <= share < edges[i + 1]; the last one counts what is at or above the last edge.
    """
    _refuse_kept(layer, "a histogram of scores")
    bounds = _increasing("edges", edges)
    if bounds[0] > 0:
        raise UsageError(f"edges begin at {bounds[0]:g}; fair shares begin at 0, so the first edge must be 0 or below")
    share = layer.fair_share
    scores = np.sort(share[_scored(layer, share, min_viewers)])
    return np.diff(np.searchsorted(scores, bounds, side="left"), append=len(scores))


def share_not_sinks(
    layer: LayerArrays, epsilons: Any = EPSILONS, *, min_viewers: int = MIN_VIEWERS
) -> tuple[Int[np.ndarray, " epsilon"], int]:
    """At each epsilon how many of the visible (step, head, key) are not sinks, and how many there are in all.

    A sink's fair share exceeds the mean of the others' by more than epsilon; a key with too few viewers is none.
    """
    bounds = _increasing("epsilons", epsilons)
    if bounds[0] < KEPT_ABOVE:
        _refuse_kept(layer, f"the share of non-sinks at epsilon {bounds[0]:g}", below=KEPT_ABOVE)
    over = layer.excess
    total = int(np.count_nonzero(~np.isnan(layer.received) & (layer.expected > 0)))
    candidates = np.flatnonzero((over > bounds[0]) & (layer.viewers >= min_viewers))  # quicker than a bool index
    above = np.sort(over.ravel()[candidates])
    sinks = len(above) - np.searchsorted(above, bounds, side="right")
    return total - sinks, total


def not_sinks_curve(
    parts_by_sample: Sequence[tuple[Int[np.ndarray, " epsilon"], int]], *, draws: int = 1000, seed: int = 0
) -> list[Interval]:
    """The share of non-sinks at each epsilon, from what `share_not_sinks` gave for each sample (its layers summed)."""
    if not parts_by_sample:
        raise UsageError("no samples came; expected what share_not_sinks returns, one pair a sample")
    counts = np.stack([not_sinks for not_sinks, _ in parts_by_sample])
    return bootstrap_ratios(counts, np.array([total for _, total in parts_by_sample]), draws=draws, seed=seed)


def main_sink(layer: LayerArrays, *, min_viewers: int = MIN_VIEWERS) -> MainSink:
    """The key with the greatest fair share; of equal ones the first.

    On a trace of detail "sinks" it is known only where it exceeds the others' mean by more than one fair share.
    """
    share = layer.fair_share
    scores = np.where(_scored(layer, share, min_viewers), share, np.float32(-np.inf))
    position = np.argmax(scores, axis=-1)
    at = position[..., None]
    best = np.take_along_axis(scores, at, axis=-1)[..., 0]
    known = np.isfinite(best)
    if layer.kept is not None:
        known &= np.take_along_axis(layer.excess, at, axis=-1)[..., 0] > KEPT_ABOVE
    with np.errstate(invalid="ignore", divide="ignore"):
        viewers = np.broadcast_to(layer.viewers, scores.shape)
        mass = (np.take_along_axis(layer.received, at, axis=-1) / np.take_along_axis(viewers, at, axis=-1))[..., 0]
    nothing = np.float32(np.nan)
    return MainSink(
        position=np.where(known, position, -1),
        score=np.where(known, best, nothing),
        mass=np.where(known, mass, nothing),
    )


def layer_mass(layer: LayerArrays, sinks: Bool[np.ndarray, "step head key"]) -> Float[np.ndarray, " head"]:
    """The share of all attention that the sinks absorb, mean over steps. NaN for a head without any attention."""
    by_head: np.ndarray = mean_known(absorbed(layer, sinks), axis=0)
    return by_head


def concentration(layer: LayerArrays, *, min_viewers: int = MIN_VIEWERS) -> Concentration:
    """Gini coefficient of the fair shares, and exp(entropy) of received / its sum.

        gini = sum_i (2 i - n - 1) x_i / (n sum_i x_i),   x sorted upwards, i = 1..n

    The effective number takes every visible key. Under a causal mask early keys have more viewers, so that even
    uniform attention stays below n; `uniform` is what it gives, to compare with.
    """
    _refuse_kept(layer, "concentration")
    share = layer.fair_share
    return Concentration(
        gini=_gini(share, _scored(layer, share, min_viewers)),
        effective=_effective(np.where(np.isnan(share), np.float32(0), layer.received)),
        uniform=_effective(np.nan_to_num(layer.expected)),
    )


def mean_known(values: Float[np.ndarray, "..."], axis: int | None = None) -> Any:
    """The mean of what is not NaN; NaN, without a warning, where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, values, 0).sum(axis=axis, dtype=np.float64) / known.sum(axis=axis)


def _gini(
    share: Float[np.ndarray, "step head key"], scored: Bool[np.ndarray, "step head key"]
) -> Float[np.ndarray, "step head"]:
    """Keys without a score become zeros: they sort to the front, add nothing, and shift the ranks of the others."""
    ordered = np.sort(np.where(scored, share, np.float32(0)), axis=-1)
    keys = ordered.shape[-1]
    count = scored.sum(axis=-1)
    total = ordered.sum(axis=-1, dtype=np.float64)
    by_rank = ordered @ np.arange(1, keys + 1, dtype=np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        gini: np.ndarray = (2.0 * by_rank - (2 * keys - count + 1) * total) / (count * total)
    return gini.clip(min=0.0)  # rounding alone goes below


def _effective(values: Float[np.ndarray, "step row key"]) -> Float[np.ndarray, "step row"]:
    """exp(entropy) of values / sum: with R the sum, log R - sum_j r_j log r_j / R."""
    total = values.sum(axis=-1, dtype=np.float64)
    logs = np.log(np.maximum(values, np.finfo(np.float32).tiny))  # 0 log 0 = 0
    with np.errstate(invalid="ignore", divide="ignore"):
        effective: np.ndarray = np.exp(np.log(total) - np.einsum("srk,srk->sr", values, logs) / total)
    return effective


def _scored(
    layer: LayerArrays, share: Float[np.ndarray, "step head key"], min_viewers: int
) -> Bool[np.ndarray, "step head key"]:
    scored: np.ndarray = ~np.isnan(share) & (layer.viewers >= min_viewers)
    return scored


def _increasing(name: str, values: Any) -> Float[np.ndarray, " value"]:
    bounds = np.atleast_1d(np.asarray(values, np.float64))
    if bounds.ndim != 1 or not len(bounds) or not (np.diff(bounds) > 0).all():
        raise UsageError(f"{name} {values!r} are not increasing numbers; pass at least one, each above the last")
    return bounds


def _refuse_kept(layer: LayerArrays, what: str, *, below: float | None = None) -> None:
    if layer.kept is None:
        return
    instead = "" if below is None else f", or ask for {below:g} and above"
    raise UsageError(
        f"{what} needs the score of every key, but this trace has detail 'sinks' and kept only those that stand out; "
        f"record one with detail 'full'{instead}"
    )
