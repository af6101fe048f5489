"""A card: one page on the sinks of one model, from the trace and the rows in its folder.

    DIR/trace/    what every token received while the model answered (docs/traces.md)
    DIR/removal/  rows/*.parquet: one row a problem, or chunk of text, and cell
    DIR/plan.json what was asked for
    DIR/card.md, card.html, card.png, card.svg, card.tex, card.json
    DIR/tables/   the numbers behind the card, as Parquet: layers, heads, classes, tokens, kinds, tracks, cells

Needs no model and no torch: the card of a folder can be written anew on another machine.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.files import write_json, written_whole
from sinklens.report.card_cells import MEASURES, read_value_effect, summarise_cells
from sinklens.report.card_figure import draw_card
from sinklens.report.card_formats import write_html, write_markdown, write_table
from sinklens.report.card_plan import FORMAT, read_plan
from sinklens.report.card_sinks import describe_sinks
from sinklens.traces.read import Trace, open_trace

TRACE, REMOVAL, TABLES, RESULT = "trace", "removal", "tables", "card.json"
OF_MODEL = (
    "name",
    "source",
    "family",
    "causal",
    "layers",
    "heads",
    "kv_heads",
    "dtype",
    "config_sha256",
    "weights_sha256",
)
Progress = Callable[[int, int], None]  # layers done, of how many


def write_card(folder: Path, *, workers: int = 1, progress: Progress | None = None) -> dict[str, Any]:
    """Read what was measured in `folder`, and write its card. The document is that of card.json."""
    plan = read_plan(folder)
    trace = open_trace(folder / TRACE)
    entries, tracks = describe_sinks(trace, workers=workers, progress=progress)
    card = _document(plan, trace, entries, read_rows(folder))
    files = [*draw_card(card, folder), write_table(folder / "card.tex", card)]
    files += [write_markdown(folder / "card.md", card, picture="card.png")]
    files += [write_html(folder / "card.html", card, picture=folder / "card.png")]
    files += _write_tables(folder / TABLES, card, tracks)
    write_json(folder / RESULT, card)  # last: whoever finds it finds the others
    return card | {"files": [str(file) for file in [*files, folder / RESULT]]}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of all finished batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((folder / REMOVAL / "rows").glob("*.parquet"))
    if not files:
        raise UsageError(f"{folder / REMOVAL} holds no rows yet; let `sinklens card` finish a batch first")
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    return rows


def _document(
    plan: Mapping[str, Any], trace: Trace, entries: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    cost = summarise_cells(rows, MEASURES[plan["measure"]])
    effect = read_value_effect(cost["cells"], entries["what"]["verdicts"])
    manifest = trace.manifest
    told = {"plan": plan["decides"], "trace": manifest["fingerprint"], "units": cost["n"]}
    return {
        "card": FORMAT,
        "fingerprint": sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12],
        "model": _model(manifest),
        "made": {
            "sinklens": manifest["versions"]["sinklens"],
            "date": str(manifest["finished"] or manifest["created"])[:10],
            "device": manifest["device"],
            "versions": manifest["versions"],
        },
        "settings": dict(plan["told"]) | {"sampler": manifest["sampler"], "seed": manifest["seed"], **plan["decides"]},
        "complete": bool(trace.complete) and cost["n"] >= plan["units"],
        **entries,
        "what": {**entries["what"], "value_effect": effect},
        "cost": cost,
    }


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Where a local folder lay says nothing about what is in it; a hub id comes with its commit."""
    told = {name: manifest["model"].get(name) for name in OF_MODEL}
    source = told["source"] if "@" in (told["source"] or "") else told["name"]
    return told | {"source": source, "certificate": manifest.get("certificate")}


def _write_tables(folder: Path, card: Mapping[str, Any], tracks: Any) -> list[Path]:
    """The numbers behind the card, one observation a row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where, what = card["where"], card["what"]
    rates = where["head_rate"]
    by_head = {
        (layer, head): rate
        for layer, row in zip(rates["layers"], rates["rate"], strict=True)
        for head, rate in zip(rates["heads"], row, strict=True)
    }
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "layers": [
            {"layer": one["layer"], **_flat("mass", one["mass"]), **_flat("sinks", one["sinks"])}
            for one in where["layers"]
        ],
        "heads": [
            {"layer": layer["layer"], **head, "sink_rate": by_head[layer["layer"], head["head"]]}
            for layer in what["layers"] or ()
            for head in layer["heads"]
        ],
        "classes": where["classes"],
        "tokens": where["tokens"],
        "kinds": [{"kind": name, **share} for name, share in card["how"]["shares"].items()],
        "cells": [_flat_cell(one) | {"measure": card["cost"]["measure"]} for one in card["cost"]["cells"]],
    }
    made = {name: pa.Table.from_pylist([dict(row) for row in rows]) for name, rows in tables.items()}
    if tracks is not None:
        made["tracks"] = tracks
    for name, table in made.items():
        said = {"model": card["model"]["name"], "card": card["fingerprint"]}
        with written_whole(folder / f"{name}.parquet") as temporary:
            pq.write_table(_typed(table).replace_schema_metadata(said), temporary, compression="zstd")
    return [folder / f"{name}.parquet" for name in made]


def _typed(table: Any) -> Any:
    """A column of nothing but None is one of numbers, so that tables of several cards can be put together."""
    import pyarrow as pa

    fields = [pa.field(one.name, pa.float64()) if pa.types.is_null(one.type) else one for one in table.schema]
    return table.cast(pa.schema(fields))


def _flat_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    nested = ("value", "cost", "less_than_mask", "more_than_random")
    flat: dict[str, Any] = {name: value for name, value in cell.items() if name not in nested}
    for name in nested:
        flat |= _flat(name, cell[name] or {"value": None, "low": None, "high": None})
    return flat


def _flat(name: str, interval: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: interval["value"], f"{name}_low": interval["low"], f"{name}_high": interval["high"]}
