"""One step's attention as rows of the tables: lists per (layer, row), all keys or only those that stand out.

With detail "sinks" a row keeps the keys whose excess over the others' mean is above KEEP fair shares in any reading, in
this stored step or in the one before or behind it: what a sink had before it rose and after it fell is then exact too,
and so are the tracks. Of the others the mean is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sinklens.sinks.detect import excess
from sinklens.traces.rows import AttentionRows, GroupRows
from sinklens.traces.schema import ALL, column
from sinklens.traces.storage import Storage

KEEP = 1.0  # fair shares above the others' mean

Kept = Bool[np.ndarray, "layer head key"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """A list column: for every layer the values of its rows, one row behind the other."""

    values: Sequence[Shaped[np.ndarray, " _"]] | Shaped[np.ndarray, "layer _"]  # an array: all layers have as many
    lengths: Int[np.ndarray, "layer row"]

    @classmethod
    def of(cls, values: Shaped[np.ndarray, "layer row key"], kept: Bool[np.ndarray, "layer row key"] | None) -> "Lists":
        """All keys, or those kept."""
        layers, rows, keys = values.shape
        if kept is None:
            return cls(values=values.reshape(layers, -1), lengths=np.full((layers, rows), keys))
        lengths = kept.sum(-1)
        return cls(values=np.split(values[kept], np.cumsum(lengths.sum(-1))[:-1]), lengths=lengths)


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """The rows of one step in one table. Columns that are missing here are null."""

    layers: Sequence[int]
    rows: Sequence[int]  # heads or kv heads; a single row where the table has neither
    row_name: str | None
    lists: Mapping[str, Lists]
    scalars: Mapping[str, Shaped[np.ndarray, "layer row"]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for lists in self.lists.values() for array in lists.values)


def as_stored(rows: AttentionRows, storage: Storage) -> AttentionRows:
    """A copy whose numbers are those that will be read back."""

    def changed(part: Any, names: Sequence[str], change: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: change(getattr(part, name)) for name in names if getattr(part, name) is not None}

    def group(part: GroupRows) -> dict[str, Any]:
        exact = changed(part, ("expected", "viewers"), lambda values: np.array(values, np.float32))
        return exact | changed(part, ("received",), storage.received)

    norms = ("key_norm", "value_norm", "output_norm", "hidden_norm")
    exact = ("output_rank", "output_size", "null_mass")
    return replace(
        rows,
        **group(rows),
        **changed(rows, norms, storage.norms),
        **changed(rows, exact, lambda values: np.array(values, np.float32)),
        groups={name: GroupRows(**group(part)) for name, part in rows.groups.items()},
        maps={site: storage.received(values) for site, values in rows.maps.items()},
    )


def standing_out(rows: AttentionRows) -> Kept:
    """Keys whose excess is above KEEP in any reading."""
    found = np.zeros(rows.received.shape, bool)
    for part in rows.readings.values():
        with np.errstate(invalid="ignore"):
            found |= excess(part.received, part.expected) > KEEP
    return found


def widen(kept: Kept, *neighbours: Bool[np.ndarray, "layer head _"] | None) -> Kept:
    """Kept here or in a neighbouring step, whose canvas may be longer or shorter."""
    wide = kept.copy()
    for other in neighbours:
        if other is not None:
            shared = min(wide.shape[-1], other.shape[-1])
            wide[..., :shared] |= other[..., :shared]
    return wide


def pack(rows: AttentionRows, *, kept: Kept | None, model_heads: int) -> dict[str, Packed]:
    """The rows of every table that has a layer column. `kept` None: all keys."""
    tables = {"attention": _attention(rows, kept), "uniform": _uniform(rows)}
    norms = {name: getattr(rows, name) for name in ("key_norm", "value_norm") if getattr(rows, name) is not None}
    if norms:
        kv_heads = next(iter(norms.values())).shape[1]
        union = None if kept is None else _by_kv_head(kept, rows.heads, kv_heads, model_heads)
        tables["norms"] = _of_norms(rows, norms, rows=range(kv_heads), row_name="kv_head", kept=union)
    if rows.hidden_norm is not None:
        by_any = None if kept is None else np.any(kept, axis=1, keepdims=True)
        hidden = {"hidden_norm": rows.hidden_norm[:, None]}
        tables["hidden"] = _of_norms(rows, hidden, rows=(0,), row_name=None, kept=by_any)
    return tables


def _attention(rows: AttentionRows, kept: Kept | None) -> Packed:
    lists = {column("received", name): Lists.of(part.received, kept) for name, part in rows.readings.items()}
    scalars = {
        name: getattr(rows, name)
        for name in ("null_mass", "output_rank", "output_size")
        if getattr(rows, name) is not None
    }
    if rows.output_norm is not None:
        lists["output_norm"] = Lists.of(rows.output_norm, kept)
    if kept is not None:
        lists["position"] = _positions(kept)
        seen = (rows.expected > 0) & np.isfinite(rows.received)
        scalars["keys"] = seen.sum(-1)
        for name, part in rows.readings.items():
            scalars[column("rest_share", name)] = _mean(_share(part), ~kept)
        if rows.output_norm is not None:
            scalars["rest_output_norm"] = _mean(rows.output_norm, ~kept)
    return Packed(layers=rows.layers, rows=rows.heads, row_name="head", lists=lists, scalars=scalars)


def _uniform(rows: AttentionRows) -> Packed:
    """One row for all layers, and for all heads, where they are the same."""
    arrays = {
        column(name, group): getattr(part, name)
        for group, part in rows.readings.items()
        for name in ("expected", "viewers")
    }
    heads = max(values.shape[1] for values in arrays.values())
    layers = list(rows.layers)
    if all(np.array_equal(values, np.broadcast_to(values[:1], values.shape)) for values in arrays.values()):
        arrays, layers = {name: values[:1] for name, values in arrays.items()}, [ALL]
    arrays = {
        name: np.broadcast_to(values, (values.shape[0], heads, values.shape[2])) for name, values in arrays.items()
    }
    return Packed(
        layers=layers,
        rows=[ALL] if heads == 1 else rows.heads,
        row_name="head",
        lists={name: Lists.of(values, None) for name, values in arrays.items()},
        scalars={"queries": np.full((len(layers), heads), rows.queries)},
    )


def _of_norms(
    attention: AttentionRows,
    arrays: Mapping[str, Float[np.ndarray, "layer row key"]],
    *,
    rows: Sequence[int],
    row_name: str | None,
    kept: Bool[np.ndarray, "layer row key"] | None,
) -> Packed:
    lists = {name: Lists.of(values, kept) for name, values in arrays.items()}
    scalars = {}
    if kept is not None:
        lists["position"] = _positions(kept)
        scalars = {f"rest_{name}": _mean(values, ~kept) for name, values in arrays.items()}
    return Packed(layers=attention.layers, rows=rows, row_name=row_name, lists=lists, scalars=scalars)


def _by_kv_head(kept: Kept, heads: Sequence[int], kv_heads: int, model_heads: int) -> Bool[np.ndarray, "layer kv key"]:
    """Kept by any of the query heads that read this kv head."""
    union = np.zeros((kept.shape[0], kv_heads, kept.shape[2]), bool)
    for index, head in enumerate(heads):
        union[:, head // max(1, model_heads // kv_heads)] |= kept[:, index]
    return union


def _positions(kept: Bool[np.ndarray, "layer row key"]) -> Lists:
    return Lists.of(np.broadcast_to(np.arange(kept.shape[-1], dtype=np.int32), kept.shape), kept)


def _share(part: GroupRows) -> Float[np.ndarray, "layer head key"]:
    """The fair share as every reader of the trace computes it, in float32; NaN where nobody may look."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(part.expected > 0, part.received / part.expected, np.float32(np.nan)).astype(np.float32)


def _mean(values: Float[np.ndarray, "layer row key"], chosen: Bool[np.ndarray, "layer row key"]) -> Any:
    """Mean over the chosen keys that have a value; NaN where there are none."""
    there = chosen & np.isfinite(values)
    total = np.where(there, values, 0).sum(-1, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / there.sum(-1)
