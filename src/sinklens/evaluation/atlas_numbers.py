"""Rows of an atlas as arrays, their means over units with intervals, and bands of what chance gives.

The unit of every interval is the chunk or prompt: layers, heads and steps of one run are not independent.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.sinks.resample import LEVEL, bootstrap_ratios

DRAWS = 1000
Entry = dict[str, Any]  # an interval: value, low, high, n


def cube(table: Any, column: str, axes: Sequence[str]) -> Float[np.ndarray, "..."]:
    """A column over the axes, NaN where there is no row; a column of lists has one axis more."""
    places = [table[axis].to_numpy() for axis in axes]
    names = [np.unique(place) for place in places]
    if axes[0] == "unit":  # units keep their order; all others count from 0
        names[1:] = [np.arange(place.max() + 1) for place in places[1:]]
    index = tuple(np.searchsorted(name, place) for name, place in zip(names, places, strict=True))
    values = _values(table[column])
    found = np.full((*map(len, names), *values.shape[1:]), np.nan)
    found[index] = values
    return found


def _values(column: Any) -> Float[np.ndarray, "row ..."]:
    import pyarrow as pa

    column = column.combine_chunks()
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float64)
    return flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 0)


def mean_known(values: Float[np.ndarray, "..."], axis: int | tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """The mean of what is not NaN; NaN where nothing is."""
    known = np.isfinite(values)
    counts = np.asarray(known.sum(axis=axis))
    means = np.full(counts.shape, np.nan)
    np.divide(np.where(known, values, 0.0).sum(axis=axis), counts, out=means, where=counts > 0)
    return means


def over_units(values: Float[np.ndarray, "unit ..."], *, below: Float[np.ndarray, "unit ..."] | None = None) -> Any:
    """Intervals of the means over units, in nested lists of the other axes; with `below`, of sums over sums."""
    flat = values.reshape(len(values), -1)
    under = np.ones_like(flat) if below is None else below.reshape(len(values), -1)
    known = np.isfinite(flat) & np.isfinite(under)
    found = bootstrap_ratios(np.where(known, flat, 0.0), np.where(known, under, 0.0), draws=DRAWS)
    return _nested([asdict(one) for one in found], values.shape[1:])


def null_band(values: Float[np.ndarray, "unit *items draw"], *, seed: int = 0) -> Any:
    """Where chance puts the mean over units: of each unit one random order a draw, in nested lists of the items."""
    units, orders = len(values), values.shape[-1]
    flat = values.reshape(units, -1, orders)
    picks = np.random.default_rng(seed).integers(orders, size=(DRAWS, units))
    sums, counts = np.zeros((DRAWS, flat.shape[1])), np.zeros((DRAWS, flat.shape[1]))
    for unit, pick in enumerate(picks.T):
        taken = flat[unit][:, pick].T
        known = np.isfinite(taken)
        sums += np.where(known, taken, 0.0)
        counts += known
    drawn = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=drawn, where=counts > 0)
    low, high = (_quantile(drawn, level) for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return _nested(
        [{"low": number(one), "high": number(other)} for one, other in zip(low, high, strict=True)], values.shape[1:-1]
    )


def _quantile(drawn: Float[np.ndarray, "draw item"], level: float) -> Float[np.ndarray, " item"]:
    """Of items that chance has a value for; the others stay NaN."""
    known = np.isfinite(drawn).all(0)
    found = np.full(drawn.shape[1], np.nan)
    if known.any():
        found[known] = np.quantile(drawn[:, known], level, axis=0)
    return found


def number(value: Any) -> float | None:
    """As JSON holds it."""
    return float(value) if np.isfinite(value) else None


def numbers(values: Float[np.ndarray, "..."]) -> Any:
    """An array as nested lists, None for NaN."""
    return _nested([number(value) for value in values.ravel()], values.shape)


def below_zero(entry: Entry) -> bool:
    """The whole interval is."""
    return entry["high"] is not None and entry["high"] < 0


def above_zero(entry: Entry) -> bool:
    return entry["low"] is not None and entry["low"] > 0


def shown(entry: Entry) -> str:
    """0.123 [0.100, 0.150], the interval left out where there is none."""
    if entry["value"] is None:
        return "unknown"
    if entry["low"] is None:
        return f"{entry['value']:.3f}"
    return f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]"


def _nested(items: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return items[0]
    size = len(items) // shape[0] if shape[0] else 0
    return [_nested(items[start * size : (start + 1) * size], shape[1:]) for start in range(shape[0])]
