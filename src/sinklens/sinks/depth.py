"""Does depth bring fewer, stronger sinks? Figures of each layer, and their rank correlation with its depth.

Per sample and layer, means over steps and heads:

    sinks      sinks a head and step
    absorbed   share of all attention that they take
    share      fair share of the greatest sink of each head, sink by the threshold or not
    mass       its share of the attention of the queries that may see it
    gini       inequality of the fair shares
    effective  effective number of tokens attended to

Spearman's correlation is taken over the layers of one sample, then averaged and resampled over samples: its interval
speaks of other prompts to the same model, not of other models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.profile import concentration, layer_mass, main_sink, mean_known
from sinklens.sinks.resample import Interval, bootstrap

QUANTITIES = ("sinks", "absorbed", "share", "mass", "gini", "effective")
MIN_LAYERS = 3  # two layers always correlate perfectly


@dataclass(frozen=True, kw_only=True)
class LayerDepth:
    """One layer of one sample."""

    layer: int
    values: Mapping[str, float | None]  # by QUANTITIES; None: not known


@dataclass(frozen=True, kw_only=True)
class DepthSummary:
    """All samples: every quantity in every layer, and its correlation with depth."""

    layers: list[int]
    by_layer: Mapping[str, list[Interval]]  # in the order of `layers`
    spearman: Mapping[str, Interval]


def depth_profile(
    layer: LayerArrays, sinks: Bool[np.ndarray, "step head key"], *, min_viewers: int = MIN_VIEWERS
) -> LayerDepth:
    """The quantities of one layer.

    On a trace of detail "sinks" the last two are None, and `share` and `mass` too unless the greatest sink is known
    in every head and step: a mean over those that stand out would grow as sinks get rarer.
    """
    main = main_sink(layer, min_viewers=min_viewers)
    values = {
        "sinks": float(sinks.sum(axis=-1).mean()) if sinks.size else np.nan,
        "absorbed": mean_known(layer_mass(layer, sinks)),
        "share": mean_known(main.score),
        "mass": mean_known(main.mass),
        "gini": np.nan,
        "effective": np.nan,
    }
    if layer.kept is None:
        spread = concentration(layer, min_viewers=min_viewers)
        values |= {"gini": mean_known(spread.gini), "effective": mean_known(spread.effective)}
    elif (main.position < 0).any():
        values |= {"share": np.nan, "mass": np.nan}
    return LayerDepth(layer=layer.layer, values={name: _known(value) for name, value in values.items()})


def combine_depth(parts_by_sample: Sequence[Sequence[LayerDepth]], *, draws: int = 1000, seed: int = 0) -> DepthSummary:
    """Every quantity by layer, and its correlation with depth, with intervals over samples."""
    layers = sorted({part.layer for parts in parts_by_sample for part in parts})
    column = {layer: index for index, layer in enumerate(layers)}
    values = np.full((len(QUANTITIES), len(parts_by_sample), len(layers)), np.nan)
    for row, parts in enumerate(parts_by_sample):
        for part in parts:
            values[:, row, column[part.layer]] = [_number(part.values[name]) for name in QUANTITIES]
    # Layers are compared over the same samples: one that knows a quantity in some layers only is left out of it.
    partly = np.isnan(values).any(axis=2, keepdims=True)
    values = np.where(partly, np.nan, values)
    by_layer, correlation = {}, {}
    for name, table in zip(QUANTITIES, values, strict=True):
        by_layer[name] = [bootstrap(each, draws=draws, seed=seed) for each in table.T]
        correlation[name] = bootstrap([spearman(layers, row) for row in table], draws=draws, seed=seed)
    return DepthSummary(layers=layers, by_layer=by_layer, spearman=correlation)


def spearman(first: Any, second: Any) -> float | None:
    """Spearman's rank correlation of the pairs that are known; ties get their average rank.

    None with fewer than three pairs, or when one side does not vary.
    """
    pairs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if pairs[0].shape != pairs[1].shape or pairs[0].ndim != 1:
        raise UsageError(f"shapes {pairs[0].shape} and {pairs[1].shape} are no pairs; expected two lists of one length")
    known = ~(np.isnan(pairs[0]) | np.isnan(pairs[1]))
    ranks = [average_ranks(side[known]) for side in pairs]
    if known.sum() < MIN_LAYERS or any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.clip(np.corrcoef(ranks[0], ranks[1])[0, 1], -1.0, 1.0))


def average_ranks(values: Float[np.ndarray, " value"]) -> Float[np.ndarray, " value"]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _number(value: float | None) -> float:
    return np.nan if value is None else value
