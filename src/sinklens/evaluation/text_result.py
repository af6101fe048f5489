"""What the rows of a text experiment come to: cells with intervals over chunks. Needs neither torch nor the model.

The unit is the chunk. Draws of a random control are averaged within their chunk; differences are taken chunk by chunk,
so that what makes a chunk easy or hard cancels. Intervals are percentile intervals of the bootstrap over chunks, 95 %.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.files import write_json
from sinklens.sinks.resample import bootstrap

DRAWS = 10_000  # of the bootstrap
Key = tuple[str, str, int | None]  # condition with draw 0, ranked, clean
Row = Mapping[str, Any]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of an experiment's folder, in the order of their files; none where there is nothing yet."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for path in sorted((folder / "rows").glob("*.parquet")):
        found += pq.read_table(str(path)).to_pylist()
    return found


def summarise(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One entry a cell: its NLL, its difference to unmasked and, for sinks, to random keys of the same budget."""
    by_cell: dict[Key, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_cell[_key(row)][row["chunk"]].append(row)
    plain = by_cell.get((str(Condition()), "prompt", None))
    if plain is None:
        raise UsageError("there are no rows without a mask, so nothing to compare with; run the unmasked cell too")
    return [_entry(key, chunks, plain, by_cell) for key, chunks in by_cell.items()]


def write_result(folder: Path) -> Path:
    """result.json, from the rows."""
    told = json.loads((folder / "experiment.json").read_text("utf-8"))
    path = folder / "result.json"
    write_json(path, {"experiment": told, "cells": summarise(read_rows(folder))})
    return path


def _key(row: Row) -> Key:
    condition = parse_condition(row["condition"])
    return str(replace(condition, draw=0) if condition.random else condition), row["ranked"], row["clean"]


def _entry(
    key: Key, chunks: dict[int, list[Row]], plain: dict[int, list[Row]], by_cell: Mapping[Key, dict[int, list[Row]]]
) -> dict[str, Any]:
    condition = parse_condition(key[0])
    masked = condition.choose != "none"
    level = _interval([_mean(rows) for rows in chunks.values()])
    random = by_cell.get((_random_name(condition), key[1], key[2])) if condition.choose == "sinks" else None
    other = "recomputed" if condition.keys == "cached" else "cached"
    twin = by_cell.get((str(replace(condition, keys=other)), key[1], key[2])) if masked else None
    return {
        "condition": key[0],
        "label": condition.label,
        "ranked": key[1] if masked and condition.choose != "first" else None,
        "clean": key[2],
        "nll": level,
        "perplexity": exp(level["value"]),
        "to_unmasked": _difference(chunks, plain) if masked else None,
        "to_random": None if random is None else _difference(chunks, random),
        f"to_{other}": None if twin is None else _difference(chunks, twin),
        **{name: _average(chunks, name) for name in ("dose", "removed", "keys_removed")},
        "draws": max(len(rows) for rows in chunks.values()),
    }


def _random_name(condition: Condition) -> str:
    return str(replace(condition, choose="random"))


def _difference(chunks: Mapping[int, list[Row]], other: Mapping[int, list[Row]]) -> dict[str, Any]:
    """Chunk by chunk, over the chunks that both have."""
    both = [number for number in chunks if number in other]
    return _interval([_mean(chunks[number]) - _mean(other[number]) for number in both])


def _interval(values: list[float]) -> dict[str, Any]:
    return asdict(bootstrap(values, draws=DRAWS))


def _mean(rows: list[Row]) -> float:
    return float(sum(row["nll"] for row in rows) / len(rows))


def _average(chunks: Mapping[int, list[Row]], name: str) -> float | None:
    values = [row[name] for rows in chunks.values() for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else None
