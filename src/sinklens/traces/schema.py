"""The tables of a trace: names, columns, types. docs/traces.md explains every column.

One folder a sample, one Parquet file a table. The columns follow from two entries of the manifest: `model.causal`
(which groups of queries are kept apart) and `detail` (all keys, or only those that stand out). So all samples of a
trace have the same columns and can be read as one table. What was not recorded is null.
"""

from typing import Any

import pyarrow as pa

from sinklens.errors import choose
from sinklens.traces.manifest import DETAILS

ALWAYS = ("attention", "uniform", "steps", "tokens", "sample", "timing")  # every sample has these
OPTIONAL = ("norms", "hidden", "maps")  # only where they were asked for
TABLES = ALWAYS + OPTIONAL
ALL = -1  # in the columns layer and head of `uniform`: the same for all of them

_FLOATS = pa.list_(pa.field("element", pa.float32(), nullable=False))
_GAPPY = pa.list_(pa.float32())  # elements may be null
_INTS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_BOOLS = pa.list_(pa.field("element", pa.bool_(), nullable=False))


def groups_of(causal: bool) -> tuple[str, ...]:
    """The readings beside `received`: by the state of the query, or the newest token's alone."""
    return ("last_row",) if causal else ("masked", "unmasked")


def column(name: str, group: str | None = None) -> str:
    """`received` of all queries, `received_masked` of a group."""
    return name if group is None else f"{name}_{group}"


def schema(table: str, *, causal: bool, detail: str) -> Any:
    """The pyarrow.Schema of a table."""
    choose("table", table, TABLES)
    sparse = choose("detail", detail, DETAILS) == "sinks"
    makers = {
        "attention": lambda: _attention(causal, sparse),
        "uniform": lambda: _uniform(causal),
        "norms": lambda: _norms(sparse),
        "hidden": lambda: _hidden(sparse),
        "steps": _steps,
        "tokens": lambda: [_required("id", pa.int32()), pa.field("text", pa.string()), pa.field("class", pa.string())],
        "sample": _sample,
        "timing": lambda: [_required("step", pa.int32()), pa.field("seconds", pa.float64())],
        "maps": _maps,
    }
    return pa.schema([_required("sample", pa.int32()), *makers[table]()])


def _required(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


def _site(*names: str) -> list[Any]:
    kinds = {"step": pa.int32(), "layer": pa.int16(), "head": pa.int16(), "kv_head": pa.int16()}
    return [_required(name, kinds[name]) for name in names]


def _attention(causal: bool, sparse: bool) -> list[Any]:
    groups = groups_of(causal)
    return [
        *_site("step", "layer", "head"),
        *([_required("position", _INTS)] if sparse else []),
        _required("received", _FLOATS),
        *(pa.field(column("received", group), _FLOATS) for group in groups),
        pa.field("output_norm", _FLOATS),
        *(_rest_of_attention(groups) if sparse else []),
        pa.field("null_mass", pa.float32()),
        pa.field("output_rank", pa.float32()),
        pa.field("output_size", pa.float32()),
    ]


def _rest_of_attention(groups: tuple[str, ...]) -> list[Any]:
    """What is known of the keys that are not listed."""
    return [
        _required("keys", pa.int32()),
        *(pa.field(column("rest_share", group), pa.float32()) for group in (None, *groups)),
        pa.field("rest_output_norm", pa.float32()),
    ]


def _uniform(causal: bool) -> list[Any]:
    return [
        *_site("step", "layer", "head"),
        _required("queries", pa.int32()),
        _required("expected", _FLOATS),
        _required("viewers", _FLOATS),
        *(pa.field(column(name, group), _FLOATS) for group in groups_of(causal) for name in ("expected", "viewers")),
    ]


def _norms(sparse: bool) -> list[Any]:
    return [
        *_site("step", "layer", "kv_head"),
        *([_required("position", _INTS)] if sparse else []),
        pa.field("key_norm", _FLOATS),
        pa.field("value_norm", _FLOATS),
        *([pa.field(f"rest_{name}", pa.float32()) for name in ("key_norm", "value_norm")] if sparse else []),
    ]


def _hidden(sparse: bool) -> list[Any]:
    return [
        *_site("step", "layer"),
        *([_required("position", _INTS)] if sparse else []),
        pa.field("hidden_norm", _FLOATS),
        *([pa.field("rest_hidden_norm", pa.float32())] if sparse else []),
    ]


def _steps() -> list[Any]:
    return [
        _required("step", pa.int32()),
        _required("canvas", _INTS),
        _required("masked", _BOOLS),
        _required("committed", _INTS),
        _required("committed_ids", _INTS),
        _required("confidence", _GAPPY),
        pa.field("block_start", pa.int32()),
        pa.field("block_stop", pa.int32()),
        _required("stored", pa.bool_()),
        pa.field("impl", pa.string()),
        pa.field("kernel", pa.string()),
    ]


def _sample() -> list[Any]:
    return [
        pa.field("prompt", pa.string()),
        _required("prompt_length", pa.int32()),
        _required("ids", _INTS),
        pa.field("text", pa.string()),
        _required("steps", pa.int32()),
        _required("positions", pa.int32()),
    ]


def _maps() -> list[Any]:
    return [
        *_site("step", "layer", "head"),
        _required("queries", pa.int32()),
        _required("keys", pa.int32()),
        _required("map", _FLOATS),
    ]
