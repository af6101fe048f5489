"""The first look at a sample: how strong the sinks of every head are, their tracks, and who may be seen at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int, UInt8

from sinklens.errors import UsageError
from sinklens.report.encode import pack
from sinklens.sinks.arrays import Canvases, LayerArrays, Received, TraceLike
from sinklens.sinks.detect import MIN_VIEWERS, excess
from sinklens.sinks.kinds import KINDS, MOVING
from sinklens.sinks.track import TrackRule, track_layer
from sinklens.traces.storage import round_mantissa

GROUPS = ("masked", "unmasked")
SCORE_BITS = 8  # mantissa bits of the scores of tracks, which are drawn; the exact ones are in the trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Surveyed:
    """One sample over the layers asked for."""

    layers: Sequence[int]
    heads: Sequence[int]
    steps: Int[np.ndarray, " step"]  # the stored ones
    strength: Float[np.ndarray, "layer head"]  # the greatest excess of an eligible key, mean over steps
    moving: tuple[int, int] | None  # (layer, head) of the track that moves with the greatest scores in all
    high: dict[str, float]  # the greatest fair share, by reading
    top_excess: dict[
        str, Float[np.ndarray, "layer step head"]
    ]  # by group: the greatest excess of an eligible key, or 0
    seen: UInt8[np.ndarray, "layer step heads_or_1 key"]  # 0: no such key. 1: visible. 2: by enough queries for a sink
    tracks: dict[str, Any]

    def worth_seeing(self, count: int) -> list[tuple[int, int]]:
        """(layer, head): first the one whose sink moves, then those with the strongest; of equals those further up."""
        order = np.argsort(-self.strength, axis=None, kind="stable")
        rows, columns = np.unravel_index(order, self.strength.shape)
        strongest = [(self.layers[row], self.heads[column]) for row, column in zip(rows, columns, strict=True)]
        first = [] if self.moving is None else [self.moving]
        return list(dict.fromkeys(first + strongest))[:count]


def survey_sample(
    trace: TraceLike, canvases: Canvases, *, layers: Sequence[int], epsilon: float, tell: Callable[[], None]
) -> Surveyed:
    """Read every layer once."""
    rule = TrackRule(epsilon=epsilon)
    strength, seen, tables, steps = [], [], [], np.zeros(0, np.int64)
    high: dict[str, float] = {}
    tops: dict[str, list[np.ndarray]] = {}
    for number in layers:
        layer = trace.layer(canvases.sample, number, groups=True)
        steps = layer.steps
        if not len(steps):
            raise UsageError(f"sample {canvases.sample} has no stored step; choose another, or resume the trace")
        strength.append(_greatest(layer).mean(axis=0))
        seen.append(_seen(layer))
        for name, reading in {"received": layer, **layer.groups}.items():
            high[name] = max(high.get(name, 0.0), float(np.nanmax(reading.fair_share, initial=0.0)))
        for name in GROUPS:
            if name in layer.groups:
                tops.setdefault(name, []).append(_greatest(layer.groups[name]))
        tables.append(track_layer(layer, canvases, rule=rule).tracks)
        tell()
    return Surveyed(
        layers=list(layers),
        heads=list(trace.heads),
        steps=steps,
        strength=np.stack(strength),
        moving=_moving(tables),
        high=high,
        top_excess={name: np.stack(values) for name, values in tops.items()},
        seen=np.stack(seen),
        tracks=track_lists(tables, steps, epsilon=epsilon),
    )


def _greatest(reading: Received) -> Float[np.ndarray, "step head"]:
    """The greatest excess among keys that enough queries see; 0 where there is none above the others."""
    above = reading.excess if isinstance(reading, LayerArrays) else excess(reading.received, reading.expected)
    counted = ~np.isnan(above) & (reading.viewers >= MIN_VIEWERS)
    greatest: np.ndarray = np.where(counted, above, 0.0).max(axis=-1, initial=0.0)
    return greatest


def _seen(layer: LayerArrays) -> UInt8[np.ndarray, "step heads_or_1 key"]:
    there = ~np.isnan(layer.received).all(axis=1, keepdims=True) & (layer.expected > 0)
    seen: np.ndarray = there.astype(np.uint8) + (there & (layer.viewers >= MIN_VIEWERS))
    return seen


def _moving(tables: Sequence[Any]) -> tuple[int, int] | None:
    """A track that jumps may be chance; one with a direction hardly is."""
    columns = ["layer", "head", "kind", "scores"]
    directed = pc.is_in(pc.field("kind"), pa.array([kind for kind in MOVING if kind != "jumping"]))
    moving = [track for table in tables for track in table.select(columns).filter(directed).to_pylist()]
    best = max(moving, key=lambda track: np.nansum(np.array(track["scores"], float)), default=None)
    return None if best is None else (best["layer"], best["head"])


def track_lists(tables: Sequence[Any], steps: Int[np.ndarray, " step"], *, epsilon: float) -> dict[str, Any]:
    """The tracks of all layers, column by column; births and deaths are indices of stored steps.

    A track has one position and one score for every stored step from its birth to its death: those of track i are
    entries starts[i] to starts[i + 1] of `positions` and `scores`. velocity: positions a step; NaN: it did not move.
    """
    table = pa.concat_tables(tables).combine_chunks()
    births, deaths = (np.searchsorted(steps, table[name].to_numpy()) for name in ("birth", "death"))
    kinds = table["kind"].to_pylist()
    return {
        "epsilon": epsilon,
        "count": len(table),
        "kinds": KINDS,
        "kind": pack([KINDS.index(one) for one in kinds], "u1"),
        **{name: pack(table[name].to_numpy(), "i4") for name in ("layer", "head")},
        "birth": pack(births, "i4"),
        "death": pack(deaths, "i4"),
        "velocity": pack(table["velocity"].to_numpy(), "f4"),
        "starts": pack(np.concatenate([[0], np.cumsum(deaths - births + 1)]), "i4"),
        "positions": pack(_flat(table["positions"]), "i4"),
        "scores": pack(round_mantissa(_flat(table["scores"]).astype(np.float32), SCORE_BITS), "f4"),
    }


def _flat(lists: Any) -> np.ndarray:
    """All entries of a column of lists, one list after the other."""
    values: np.ndarray = lists.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values
