"""Intervals by resampling prompts.

The unit is the sample, one prompt and its generation: heads, layers and steps of one run are not independent, so
whole samples are drawn with replacement and everything inside a sample stays together. The interval is the
percentile one: the 2.5th and 97.5th percentile of the statistic over the draws.

Its weakness is few samples: it knows no spread that the samples do not show, so it is too narrow. For a mean of
normal values it covers 0.84 instead of 0.95 at n = 5, 0.90 at 10 and 0.94 at 30 (benchmarks/coverage.py). With one
sample there is no interval at all: `low` and `high` are None.

Most statistics here are ratios of sums. Resampling them is a matrix product, [draw, sample] @ [sample, item], where
the weights say how often each sample was drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.errors import UsageError

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its interval over samples. None: undefined; `low` and `high` also with fewer than two samples."""

    value: float | None
    low: float | None
    high: float | None
    n: int  # samples that have a say in it


def bootstrap(
    values_by_sample: Any,
    statistic: Callable[[Float[np.ndarray, "sample ..."]], float | None] | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """The statistic of the samples, and its interval. `values_by_sample`: [sample, ...], one row a sample.

    statistic None: the mean over samples, all draws at once; a sample whose value is None or NaN has no say.
    Else it is called with the resampled rows, once a draw; draws for which it is undefined (None or NaN) are left
    out. Sums over sums: `bootstrap_ratios`, which is much faster. The order of the samples plays no part.
    """
    values = _numbers(values_by_sample, "values_by_sample")
    if statistic is None:
        if values.ndim != 1:
            raise UsageError(f"the mean takes one value a sample, got shape {values.shape}; pass a statistic")
        known = values[~np.isnan(values)]
        return bootstrap_ratios(known[:, None], np.ones(len(known)), draws=draws, seed=seed)[0]
    n = len(values)
    if n == 0:
        return Interval(value=None, low=None, high=None, n=0)
    values = values[_order(values)]
    weights = draw_weights(n, draws=draws, seed=seed)
    drawn = [statistic(np.repeat(values, counts, axis=0)) for counts in weights] if n > 1 else []
    return _interval(statistic(values), np.array(drawn, np.float64), n)


def bootstrap_ratios(
    numerators: Any,
    denominators: Any,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> list[Interval]:
    """For every item: the sum of its numerators over the sum of the denominators, over samples.

    numerators [sample, item]; denominators [sample, item], or [sample] for all items alike. A sample whose
    denominator is 0 has no say in that item and does not count in `n`. All items share their draws.
    """
    above = _numbers(numerators, "numerators")
    below = _numbers(denominators, "denominators")
    if above.ndim != 2 or below.shape not in {above.shape, above.shape[:1]}:
        raise UsageError(
            f"numerators {above.shape} and denominators {below.shape} do not fit; expected [sample, item] and "
            "[sample, item] or [sample]"
        )
    below = np.broadcast_to(below if below.ndim == 2 else below[:, None], above.shape)
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        raise UsageError("numerators and denominators must be finite; leave out samples that have no value")
    order = _order(np.concatenate([above, below], axis=1))
    above, below = above[order], below[order]
    weights = draw_weights(len(above), draws=draws, seed=seed).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = above.sum(axis=0) / below.sum(axis=0)
        drawn = (weights @ above) / (weights @ below)
    counted = np.count_nonzero(below, axis=0)
    return [_interval(value, row, int(n)) for value, row, n in zip(values, drawn.T, counted, strict=True)]


def draw_weights(samples: int, *, draws: int = 1000, seed: int = 0) -> Int[np.ndarray, "draw sample"]:
    """How often each sample is drawn, in every draw: each row sums to the number of samples."""
    if draws < 1:
        raise UsageError(f"draws is {draws}; expected at least 1, and 1000 or more for an interval to be read")
    if samples == 0:
        return np.zeros((draws, 0), np.int64)
    return np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=draws)


def _interval(value: float | None, drawn: Float[np.ndarray, " draw"], n: int) -> Interval:
    drawn = drawn[np.isfinite(drawn)]
    if value is None or not np.isfinite(value):
        return Interval(value=None, low=None, high=None, n=n)
    if n < 2 or not len(drawn):
        return Interval(value=float(value), low=None, high=None, n=n)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=float(value), low=float(low), high=float(high), n=n)


def _order(rows: Float[np.ndarray, "sample ..."]) -> Int[np.ndarray, " sample"]:
    """An order of the samples that depends on their values alone, so that the draws do too."""
    if rows.size == 0:
        return np.arange(len(rows))
    return np.lexsort(rows.reshape(len(rows), -1).T)


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} cannot be read as numbers ({error}); expected one row of equal shape a sample"
        ) from None
