"""The definitions of a sink in use, side by side: which keys each selects, and how much of the attention they absorb.

METRICS is the one table. Each rule reads one layer (`LayerArrays`, or one of its readings) and selects keys. The number
of queries of a row is the sum of `expected`, because each query spreads exactly 1. A sink is above the threshold, not
at it. A threshold that no key could exceed is an error, as is one that a trace of detail "sinks" is too coarse for.

How the definitions relate to each other is in `agreement.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinklens.errors import UsageError, choose
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS, detect_sinks, eligible_keys, top_sinks

LEFT_OUT = 1.0  # fair shares above the others' mean: what a trace of detail "sinks" leaves out has no more
FLAT = 1e-5  # standard deviation of fair shares that are equal up to float32 rounding
Rule = Callable[[LayerArrays, float, int], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One definition."""

    name: str
    default: float
    unit: str  # of the value
    description: str  # a sink is a key that ...
    rule: Rule


def select(
    layer: LayerArrays, metric: str = "epsilon", value: Any = None, *, min_viewers: int = MIN_VIEWERS
) -> Bool[np.ndarray, "step head key"]:
    """The keys that a definition calls sinks. value None: its default. Few viewers: as in `detect_sinks`."""
    chosen = METRICS[choose("metric", metric, tuple(METRICS))]
    threshold = chosen.default if value is None else value
    if not isinstance(threshold, Real) or not 0 <= float(threshold) < math.inf:
        raise UsageError(f"the value of metric {metric!r} is {threshold!r}; expected a finite number, 0 or more")
    return chosen.rule(layer, float(threshold), min_viewers)


def absorbed(layer: LayerArrays, selected: Bool[np.ndarray, "step head key"]) -> Float[np.ndarray, "step head"]:
    """Share of all attention of the row's queries that goes to the selected keys; NaN where there are no queries.

    With a null term in the softmax, what it takes is part of the whole, so that all keys together stay below 1.
    """
    taken = np.where(selected, np.nan_to_num(layer.received), 0).sum(-1, dtype=np.float64)
    queries = _queries(layer)[..., 0]
    return np.where(queries > 0, taken / np.where(queries > 0, queries, 1), np.nan).astype(np.float32)


def sink_rate(layer: LayerArrays, *, position: int = 0, threshold: float = 0.3) -> Float[np.ndarray, " step"]:
    """Share of the heads whose mass at one position exceeds the threshold, step by step; NaN where it is not there.

    This is Sink_k^epsilon of Gu et al. (arXiv 2410.10781), for one layer: their alpha_k = sum over i >= k of A[i, k] /
    (T - k + 1), with k from 1, is the mass in causal attention. Their number for a model is the mean over layers and
    samples, of one forward of T = 64 tokens with threshold 0.3: read step 0, the prefill, of an autoregressive trace
    whose prompts have 64 tokens. alpha depends on T, so that numbers of other lengths are not comparable with theirs.
    """
    keys = layer.received.shape[-1]
    if not 0 <= position < keys:
        raise UsageError(f"position {position} is not among the {keys} keys; expected 0 to {keys - 1}")
    at = np.arange(keys) == position
    _refuse_coarse(layer, "sink_rate", threshold, per_share=_mass_per_share(layer), where=at)
    mass = layer.mass[..., position]
    there = ~np.isnan(mass)
    heads = there.sum(-1)
    share = (there & (np.nan_to_num(mass) > threshold)).sum(-1) / np.maximum(heads, 1)
    return np.where(heads > 0, share, np.nan)


# --- the rules --------------------------------------------------------------------------------------------------------


def _epsilon(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    if value < LEFT_OUT:
        _refuse_cut(layer, "epsilon", value, least=LEFT_OUT)
    sinks: np.ndarray = detect_sinks(
        layer.received, layer.expected, value, min_viewers=min_viewers, viewers=layer.viewers
    )
    return sinks


def _ratio(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    return _above(layer, "ratio", value, per_share=np.ones_like(layer.expected), min_viewers=min_viewers)


def _gu(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    return _above(layer, "gu", value, per_share=_mass_per_share(layer), min_viewers=min_viewers)


def _mass(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    queries = _queries(layer)
    per_share = layer.expected / np.where(queries > 0, queries, 1)
    return _above(layer, "mass", value, per_share=per_share, min_viewers=min_viewers)


def _above(layer: LayerArrays, name: str, value: float, *, per_share: np.ndarray, min_viewers: int) -> np.ndarray:
    """Keys whose fair share x `per_share` exceeds the value."""
    eligible = _eligible(layer, min_viewers)
    if not eligible.any():
        return eligible
    most = layer.viewers / np.where(layer.expected > 0, layer.expected, 1) * per_share  # if all viewers give all
    _refuse_out_of_reach(name, value, float(np.where(eligible, most, 0).max()))
    _refuse_coarse(layer, name, value, per_share=per_share, where=eligible)
    return np.asarray(eligible & (np.nan_to_num(layer.fair_share) * per_share > value))


def _sigma(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    _refuse_cut(layer, "sigma", value)
    eligible = _eligible(layer, min_viewers)
    if not eligible.any():
        return eligible
    share = layer.fair_share
    there = ~np.isnan(share)
    count = np.maximum(there.sum(-1, keepdims=True), 1)
    # One key among n is at most sqrt(n - 1) standard deviations above the mean: all others equal.
    _refuse_out_of_reach("sigma", value, math.sqrt(float(count[eligible.any(-1)].max()) - 1))
    above = np.where(there, share - _mean(share), 0)
    sigma = np.sqrt((above**2).sum(-1, keepdims=True) / count)
    return np.asarray(eligible & (above > value * sigma) & (sigma > FLAT))


def _top(layer: LayerArrays, value: float, min_viewers: int) -> np.ndarray:
    if value != int(value):
        raise UsageError(f"the value of metric 'top' is {value:g}; expected a whole number of keys")
    sinks: np.ndarray = top_sinks(
        layer.received, layer.expected, k=int(value), min_viewers=min_viewers, viewers=layer.viewers
    )
    if layer.kept is not None and not (layer.excess[sinks] > LEFT_OUT).all():
        _refuse_cut(layer, "top", value)  # a key that was left out may be higher
    return sinks


def _eligible(layer: LayerArrays, min_viewers: int) -> np.ndarray:
    keys: np.ndarray = eligible_keys(layer.received, layer.expected, min_viewers=min_viewers, viewers=layer.viewers)
    return keys


def _queries(layer: LayerArrays) -> np.ndarray:
    """[step, heads_or_1, 1]: how many queries the sums are made of."""
    return np.asarray(np.where(layer.expected > 0, layer.expected, 0).sum(-1, keepdims=True, dtype=np.float64))


def _mass_per_share(layer: LayerArrays) -> np.ndarray:
    return np.asarray(layer.expected / np.where(layer.viewers > 0, layer.viewers, 1))


def _mean(share: np.ndarray) -> np.ndarray:
    """Mean of a row's visible keys, [step, head, 1]."""
    count = np.maximum((~np.isnan(share)).sum(-1, keepdims=True), 1)
    return np.asarray(np.nan_to_num(share).sum(-1, keepdims=True, dtype=np.float64) / count)


def _refuse_out_of_reach(name: str, value: float, most: float) -> None:
    if value >= most:
        raise UsageError(
            f"{name} {value:g} cannot be exceeded in these rows: at most {most:.4g} is possible; use a smaller value"
        )


def _refuse_coarse(layer: LayerArrays, name: str, value: float, *, per_share: np.ndarray, where: np.ndarray) -> None:
    """Refuse a threshold on fair share x per_share which a key that was left out might exceed."""
    if layer.kept is None:
        return
    unseen = (_mean(layer.fair_share) + LEFT_OUT) * np.nan_to_num(per_share)
    least = float(np.where(where & ~layer.kept & ~np.isnan(layer.fair_share), unseen, 0).max(initial=0.0))
    if value < least:
        _refuse_cut(layer, name, value, least=least)


def _refuse_cut(layer: LayerArrays, name: str, value: float, *, least: float | None = None) -> None:
    if layer.kept is None:
        return
    instead = "" if least is None else f", or a value of {math.ceil(least * 1000) / 1000:g} or more"
    raise UsageError(
        f"{name} {value:g} needs keys that this trace left out (detail 'sinks' keeps what exceeds the others' mean by "
        f"more than one fair share); use a trace of detail 'full'{instead}"
    )


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            name="epsilon",
            default=3.0,
            unit="fair shares",
            description="receives more fair shares than the mean of the others, by more than this",
            rule=_epsilon,
        ),
        Metric(
            name="ratio",
            default=4.0,
            unit="fair shares",
            description="receives more than this many times what uniform attention would give it",
            rule=_ratio,
        ),
        Metric(
            name="gu",
            default=0.3,
            unit="share",
            description="receives more than this share of the attention of the queries that see it",
            rule=_gu,
        ),
        Metric(
            name="mass",
            default=0.05,
            unit="share",
            description="receives more than this share of all attention of the row",
            rule=_mass,
        ),
        Metric(
            name="sigma",
            default=3.0,
            unit="standard deviations",
            description="has a fair share above the row's mean by more than this many standard deviations",
            rule=_sigma,
        ),
        Metric(
            name="top",
            default=1.0,
            unit="keys",
            description="is among this many with the highest fair share of the row",
            rule=_top,
        ),
    )
}
