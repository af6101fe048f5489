"""How long sinks live: Kaplan-Meier, with lives that are cut off at either end of the trace.

    S(a) = product over ages x <= a of (1 - deaths at age x / lives seen to reach age x)

is the share that lives longer than a steps. A life that is still going on in the last stored step counts among those at
risk up to the age it was seen to reach, and never dies. A life that was there in the first stored step has an unknown
age, so it can stand in no risk set: it is left out, and how many were is told.

Intervals are over prompts: whole samples are drawn again and the curve is made anew. Greenwood's formula is not used;
it takes every life as independent, and those of one generation are not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError, choose
from sinklens.sinks.resample import LEVEL, draw_weights

OF = ("tracks", "stays")


@dataclass(frozen=True, kw_only=True)
class Survival:
    """One curve, as plain numbers. Intervals are None with fewer than two samples."""

    group: str | None  # value of the column that it was split by
    ages: list[int]  # steps; begins with 0
    survival: list[float]  # share that lives longer than that
    low: list[float | None] | None  # None within: the age is not reached in enough draws
    high: list[float | None] | None
    median: float | None  # first age that at most half outlive; None: not reached
    median_low: float | None
    median_high: float | None  # None as well where it is not reached
    n: int  # samples
    lives: int  # with a birth that was seen
    censored: int  # of these, still alive at the end
    left_out: int  # born before the first stored step


def survival(
    tracks: Any, *, of: str = "tracks", by: str | None = None, draws: int = 1000, seed: int = 0
) -> list[Survival]:
    """One curve, or one for every value of the column `by` ("kind", "layer", ...), in its order.

    tracks: the table of `track_sinks`, or its columns as a mapping. of: whole tracks, or the stays they are made of.
    """
    choose("of", of, OF)
    table = tracks if isinstance(tracks, pa.Table) else pa.table(dict(tracks))
    needed = ["sample", *(["lifetime", "born_before", "alive_after"] if of == "tracks" else ["stays"])]
    missing = [name for name in [*needed, *([by] if by else [])] if name not in table.column_names]
    if missing:
        raise UsageError(f"the table has no {missing}; expected the columns of track_sinks")
    lives = _of_stays(table, by) if of == "stays" else table
    columns = {name: lives[name].to_numpy() for name in ("sample", "lifetime", "born_before", "alive_after")}
    if by is None:
        return [_curve(None, **columns, draws=draws, seed=seed)]
    groups = np.array(lives[by].to_pylist(), object)
    names = sorted({name for name in groups if name is not None})
    return [
        _curve(str(name), **{key: one[groups == name] for key, one in columns.items()}, draws=draws, seed=seed)
        for name in names
    ]


def _of_stays(table: Any, by: str | None) -> Any:
    """One row a stay, with the sample and the group of its track."""
    lists = table["stays"].combine_chunks()
    track = np.repeat(np.arange(len(table)), np.diff(lists.offsets.to_numpy()))
    stays = pa.Table.from_struct_array(lists.flatten()).select(["lifetime", "born_before", "alive_after"])
    stays = stays.append_column("sample", table["sample"].take(track))
    return stays.append_column(by, table[by].take(track)) if by else stays


def _curve(
    group: str | None,
    *,
    sample: Int[np.ndarray, " life"],
    lifetime: Int[np.ndarray, " life"],
    born_before: Bool[np.ndarray, " life"],
    alive_after: Bool[np.ndarray, " life"],
    draws: int,
    seed: int,
) -> Survival:
    seen = ~born_before
    ages = np.unique(lifetime[seen & ~alive_after])
    names = np.unique(sample)
    deaths, risk = np.zeros((2, len(names), len(ages)))
    for row, name in enumerate(names):
        own = seen & (sample == name)
        ended = np.sort(lifetime[own & ~alive_after])
        reached = np.sort(lifetime[own])
        deaths[row] = np.searchsorted(ended, ages, "right") - np.searchsorted(ended, ages, "left")
        risk[row] = len(reached) - np.searchsorted(reached, ages, "left")
    curve = _product(deaths.sum(axis=0), risk.sum(axis=0))
    drawn = np.zeros((0, len(ages)))
    if len(names) > 1:
        weights = draw_weights(len(names), draws=draws, seed=seed).astype(np.float64)
        drawn = _product(weights @ deaths, weights @ risk)
    low, high = _band(drawn)
    medians = np.array([_median(ages, row) for row in drawn])
    return Survival(
        group=group,
        ages=[0, *ages.tolist()],
        survival=[1.0, *curve.tolist()],
        low=None if low is None else [1.0, *low],
        high=None if high is None else [1.0, *high],
        median=_finite(_median(ages, curve)),
        median_low=_finite(np.quantile(medians, (1 - LEVEL) / 2, method="lower")) if medians.size else None,
        median_high=_finite(np.quantile(medians, (1 + LEVEL) / 2, method="higher")) if medians.size else None,
        n=len(names),
        lives=int(seen.sum()),
        censored=int((seen & alive_after).sum()),
        left_out=int(born_before.sum()),
    )


def _product(deaths: Float[np.ndarray, "... age"], risk: Float[np.ndarray, "... age"]) -> Float[np.ndarray, "... age"]:
    """NaN from the age on that no life is seen to reach: unless all had died before, nothing is known there."""
    with np.errstate(invalid="ignore", divide="ignore"):
        curve = np.cumprod(1 - deaths / risk, axis=-1)
    lowest = np.fmin.accumulate(curve, axis=-1)  # carries a curve that has come down to 0
    return np.where(np.isnan(curve) & (lowest == 0), 0.0, curve)


def _band(drawn: Float[np.ndarray, "draw age"]) -> tuple[list[float | None] | None, list[float | None] | None]:
    if not len(drawn):
        return None, None
    ends: list[list[float | None]] = [[], []]
    for column in drawn.T:
        known = column[~np.isnan(column)]
        enough = 2 * len(known) > len(column)
        for end, at in zip(ends, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), strict=True):
            end.append(float(np.quantile(known, at)) if enough else None)
    return ends[0], ends[1]


def _median(ages: Int[np.ndarray, " age"], curve: Float[np.ndarray, " age"]) -> float:
    """Infinite where the curve stays above one half."""
    reached = np.flatnonzero(curve <= 0.5 * (1 + 1e-9))  # a product that is a half but for rounding
    return float(ages[reached[0]]) if reached.size else np.inf


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
