"""What the rows of a compression experiment come to. Needs neither torch nor the model.

compress_statistics.py says what the intervals are.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinklens.evaluation.compress_cells import Cell
from sinklens.evaluation.compress_language import language
from sinklens.evaluation.compress_problems import BINARY
from sinklens.evaluation.compress_statistics import Row, by_cell, cell_of, entry, mean, rank
from sinklens.evaluation.compress_store import CompressStore


def summarise(folder: Path) -> dict[str, Any]:
    """The document of results, from the rows of a folder."""
    store = CompressStore(folder)
    told = store.document() or {}
    rows, texts = store.read("rows").to_pylist(), store.read("texts").to_pylist()
    return {
        "model": told.get("model"),
        "source": told.get("source"),
        "command": told.get("command"),
        "settings": told.get("decisive", {}).get("settings"),
        "retrieval": _families(rows),
        "grids": _grids([row for row in rows if row["task"] == "needle"]),
        "language": language(texts),
        "timings": _timings(store.read("timings").to_pylist()),
    }


def _families(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a task, set and length, with its cells."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["task"], row["set"], row["length"]].append(row)
    found = []
    for (task, name, length), some in sorted(groups.items(), key=lambda one: (one[0][0], one[0][1] or "", one[0][2])):
        values = by_cell(some, lambda row: row["score"])
        facts = _facts(some)
        cells = [
            {**entry(cell, values, binary=task in BINARY), **facts[cell], "problems": len(values[cell])}
            for cell in values
        ]
        tokens = sorted(row["prompt_tokens"] for row in some)
        found.append(
            {
                "task": task, "set": name, "length": length,
                "prompt_tokens": {"least": tokens[0], "most": tokens[-1]}, "cells": cells,
            }
        )  # fmt: skip
    return found


def _facts(rows: Sequence[Row]) -> dict[Cell, dict[str, Any]]:
    """What was kept, as shares: of a compressed layer's entries, and of the bytes of the whole cache."""
    sums: dict[Cell, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        for place, name in enumerate(("kept", "prompt_tokens", "cache_bytes")):
            sums[cell_of(row)][place] += row[name]
    whole = sums.get(Cell())
    return {
        cell: {
            "kept_share": kept / tokens,
            "cache_share": None if whole is None else (held / tokens) / (whole[2] / whole[1]),
        }
        for cell, (kept, tokens, held) in list(sums.items())
    }


def _grids(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean scores of the needle by length and depth, one grid a cell."""
    cells: dict[Cell, dict[tuple[int, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[cell_of(row)][row["length"], row["depth"]].append(row["score"])
    return [
        {
            "cell": str(cell),
            **{name: value for name, value in cell.as_dict().items() if name != "draw"},
            "overall": mean([mean(one) for one in places.values()]),
            "points": [
                {"length": length, "depth": depth, "score": mean(one), "prompts": len(one)}
                for (length, depth), one in sorted(places.items())
            ],
        }
        for cell, places in sorted(cells.items(), key=lambda one: rank(one[0]))
    ]


def _timings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Seconds a problem, by task and length: what cells share, and a cell alone."""
    sums: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        one = sums[row["task"], row["length"], row["cell"]]
        for place, part in enumerate((row["problems"], row["shared"], row["seconds"])):
            one[place] += part
    return [
        {"task": task, "length": length, "cell": cell, "problems": int(n), "shared": a / n, "seconds": b / n}
        for (task, length, cell), (n, a, b) in sums.items()
    ]
