"""The columns of a table of tracks, made from the cells of all tracks at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.chains import Chains
from sinklens.sinks.frontier import FRONTIERS
from sinklens.sinks.kinds import GROUPS, KINDS, Kinds
from sinklens.sinks.stays import Stays

NULL_COLUMNS = ("sample", "layer", "head", "kind", "velocity", "handoffs")
STAY = pa.struct(
    [
        ("position", pa.int32()),
        ("birth", pa.int32()),
        ("death", pa.int32()),
        ("lifetime", pa.int32()),
        ("born_before", pa.bool_()),
        ("alive_after", pa.bool_()),
    ]
)


def whose(chains: Chains, layer: LayerArrays, *, sample: int) -> dict[str, Any]:
    """Sample, layer and head."""
    tracks = len(chains)
    return {
        "sample": pa.array(np.full(tracks, sample, np.int32)),
        "layer": pa.array(np.full(tracks, layer.layer, np.int32)),
        "head": pa.array(layer.heads[chains.head].astype(np.int32)),
    }


def life(chains: Chains, layer: LayerArrays) -> dict[str, Any]:
    """Birth and death as numbers of steps, the lifetime, and which ends were not seen."""
    first, last = chains.first, chains.last
    return {
        "birth": pa.array(layer.steps[first].astype(np.int32)),
        "death": pa.array(layer.steps[last].astype(np.int32)),
        "lifetime": pa.array(((last - first + 1) * _stride(layer)).astype(np.int32)),
        "born_before": pa.array(first == 0),
        "alive_after": pa.array(last == chains.steps - 1),
    }


def cells(chains: Chains, layer: LayerArrays, *, canvases: Canvases, above: np.ndarray) -> dict[str, Any]:
    """Where the track was in every stored step of its life, its fair share there, and what stood there."""
    step, position = chains.step, chains.position
    head = np.repeat(chains.head, np.diff(chains.starts))
    expected = layer.expected[step, head if layer.expected.shape[1] > 1 else 0, position]
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = (layer.received[step, head, position] / expected).astype(np.float32)
    over = above[step, head, position].astype(np.float64)
    starts = chains.starts[:-1]
    known = np.add.reduceat(~np.isnan(over), starts, dtype=np.float64) if len(starts) else np.zeros(0)
    total = np.add.reduceat(np.nan_to_num(over), starts) if len(starts) else np.zeros(0)
    number = layer.steps[step]
    return {
        "positions": _lists(chains.starts, pa.array(position.astype(np.int32))),
        "scores": _lists(chains.starts, pa.array(scores, from_pandas=True)),
        "masked": _lists(chains.starts, pa.array(canvases.masked[number, position])),
        "tokens": _lists(chains.starts, pa.array(canvases.ids[number, position].astype(np.int32))),
        "mean_excess": pa.array((total / known).astype(np.float32)),
    }


def what(chains: Chains, kinds: Kinds) -> dict[str, Any]:
    """Kind, velocities and hand-offs."""
    speeds = ("velocity", "velocity_frontier", "velocity_commit")
    return {
        "kind": _words(KINDS, kinds.kind),
        **{name: pa.array(getattr(kinds, name), from_pandas=True) for name in speeds},  # NaN becomes null
        "frontier": _words(FRONTIERS, kinds.frontier),
        "split": _words(GROUPS, kinds.split),
        "handoffs": pa.array(np.diff(chains.move_starts).astype(np.int32)),
        "moves": _lists(chains.move_starts, pa.array(chains.moves.astype(np.int32))),
    }


def stay_lists(chains: Chains, stays: Stays, *, layer: LayerArrays) -> Any:
    """The stays that each track is made of."""
    own = stays.take(chains.stay)
    columns = {
        "position": own.position.astype(np.int32),
        "birth": layer.steps[own.first].astype(np.int32),
        "death": layer.steps[own.last].astype(np.int32),
        "lifetime": ((own.last - own.first + 1) * _stride(layer)).astype(np.int32),
        "born_before": own.first == 0,
        "alive_after": own.last == chains.steps - 1,
    }
    return _lists(
        chains.stay_starts, pa.StructArray.from_arrays([pa.array(columns[one.name]) for one in STAY], fields=list(STAY))
    )


def no_null(columns: Mapping[str, Any]) -> Any:
    """The table of the null without a row."""
    return pa.table({"draw": pa.array([], pa.int32())} | {name: columns[name].slice(0, 0) for name in NULL_COLUMNS})


def _stride(layer: LayerArrays) -> int:
    """Steps from one stored step to the next; the most frequent distance, should they differ."""
    return int(np.bincount(np.diff(layer.steps)).argmax()) if len(layer.steps) > 1 else 1


def _words(names: tuple[str, ...], index: np.ndarray) -> Any:
    words = np.array([*names, None], object)  # -1 is null
    return pa.array(words[index], pa.string())


def _lists(starts: np.ndarray, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values)
