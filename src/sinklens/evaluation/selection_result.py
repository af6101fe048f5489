"""What the rows of a selection experiment come to. Needs neither torch nor the model.

The unit is the image. Accuracies have Wilson's interval; differences to the gate (image by image), foreground over kept
share (a ratio of sums) and correlations have the percentile interval of the bootstrap over images. All 95 %.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.evaluation.selection_cells import FIXED, GATE, WIRE
from sinklens.evaluation.selection_rows import CellRows, Key, read_cells
from sinklens.evaluation.selection_statistics import correlation, monotone, ratios
from sinklens.evaluation.selection_store import SelectionStore
from sinklens.sinks.intervals import wilson

CALIBRATED = (0.1, 0.95)  # budgets that kept shares are held against


def summarise(folder: Path) -> dict[str, Any]:
    """The document of results, from the rows of a folder."""
    store = SelectionStore(folder)
    told = store.document() or {}
    shape = told.get("shape", {})
    cells = read_cells(store)
    gates = {key[2]: cells[key] for key in sorted(cells, key=_rank) if key[0] == GATE and key[3] == WIRE}
    gated = told.get("decisive", {}).get("model", {}).get("gated", [])
    return {
        "model": told.get("model"),
        "backbone": told.get("backbone"),
        "data": told.get("data"),
        "command": told.get("command"),
        "settings": told.get("decisive"),
        "shape": {**shape, "gated": gated},
        "images": max((len(rows) for rows in cells.values()), default=0),
        "cells": [_cell(key, cells, shape) for key in sorted(cells, key=_rank)],
        "calibration": _calibration(gates, shape),
        "monotone": monotone(gates, gated=gated, patches=shape.get("patches", 0)),
        "adaptivity": _adaptivity(gates, shape),
        "speed": _speed(store.read("speed").to_pylist()),
    }


def _rank(key: Key) -> tuple[Any, ...]:
    """The wire first; by budget, and at each the gate before what it is compared with."""
    method, model, alpha, channel, level = key
    place = {GATE: 0, FIXED: 1}.get(method, 2)
    return channel != WIRE, channel, -math.inf if level is None else level, alpha, place, method, model


def _cell(key: Key, cells: Mapping[Key, CellRows], shape: Mapping[str, Any]) -> dict[str, Any]:
    method, model, alpha, channel, level = key
    rows = cells[key]
    gate = None if method == GATE else cells.get((GATE, "", alpha, channel, level))
    kept = rows.kept / shape["patches"]
    macs = float(rows.macs.mean())
    return {
        "method": method, "model": model, "alpha": alpha, "channel": channel, "level": level, "images": len(rows),
        "accuracy": asdict(wilson(int(rows.right.sum()), len(rows))),
        "kept": float(kept.mean()), "kept_by_gate": kept.mean(axis=0).tolist(),
        "sent": float(rows.sent.mean()), "rate": float(rows.rate.mean()),
        "side_rate": None if channel not in ("awgn", "rayleigh") else _side_rate(rows, level, shape),
        "macs": macs, "macs_share": macs / shape["macs"],
        "to_gate": None if gate is None else _difference(rows, gate),
        "foreground": _foreground(rows, kept) if channel == WIRE else None,
    }  # fmt: skip


def _difference(rows: CellRows, gate: CellRows) -> dict[str, Any] | None:
    """accuracy - the gate's, on the images that both have."""
    mine, theirs = rows.in_common(gate)
    if not len(mine):
        return None
    apart = (rows.right[mine] - gate.right[theirs])[:, None]
    return asdict(ratios(apart, np.ones_like(apart))[0])


def _side_rate(rows: CellRows, level: float | None, shape: Mapping[str, Any]) -> float:
    """Channel uses per value that say which tokens were sent, at the capacity of the link."""
    assert level is not None
    return float(rows.side_bits.mean()) / math.log2(1 + 10 ** (level / 10)) / float(shape["image_values"])


def _foreground(rows: CellRows, kept: Float[np.ndarray, "n gate"]) -> dict[str, Any] | None:
    """How much of the object is kept, and that over the share of patches kept, behind every gate."""
    known = ~np.isnan(rows.recall[:, :1])
    if not known.any():
        return None
    recall, gates = np.where(known, rows.recall, 0.0), kept.shape[1]
    below = np.concatenate([np.repeat(known.astype(np.float64), gates, axis=1), kept * known], axis=1)
    found = [asdict(one) for one in ratios(np.concatenate([recall, recall], axis=1), below)]
    return {"recall": found[:gates], "over_kept": found[gates:]}


def _shares(rows: CellRows, shape: Mapping[str, Any]) -> Float[np.ndarray, " n"]:
    """Of each image: patches kept, as a share, mean over gates."""
    shares: np.ndarray = rows.kept.mean(axis=1) / shape["patches"]
    return shares


def _calibration(gates: Mapping[float, CellRows], shape: Mapping[str, Any]) -> dict[str, Any]:
    points = []
    for alpha, rows in gates.items():
        if alpha < 1:
            kept = float(_shares(rows, shape).mean())
            points.append({"alpha": alpha, "kept": kept, "gap": abs(kept - alpha)})
    inside = [point["gap"] for point in points if CALIBRATED[0] <= point["alpha"] <= CALIBRATED[1]]
    return {"points": points, "largest_gap": max(inside, default=None), "over": list(CALIBRATED)}


def _adaptivity(gates: Mapping[float, CellRows], shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How kept shares differ between images, and whether images that are hard for the whole model get more."""
    found = []
    for alpha, rows in gates.items():
        if alpha == 1 or 1.0 not in gates:
            continue
        mine, whole = rows.in_common(gates[1.0])
        shares, losses = _shares(rows, shape)[mine], gates[1.0].loss[whole]
        found.append(
            {
                "alpha": alpha,
                "spread": float(shares.std()) if len(shares) else None,
                "least": float(shares.min()) if len(shares) else None,
                "most": float(shares.max()) if len(shares) else None,
                "with_difficulty": asdict(correlation(shares, losses)),
            }
        )
    return found


def _speed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Images a second: the median pass, and the slowest and fastest."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["device"], row["threads"], row["batch"], row["alpha"]].append(row)
    medians = {key: float(np.median([row["images"] / row["seconds"] for row in some])) for key, some in groups.items()}
    found = []
    for (device, threads, batch, alpha), some in sorted(groups.items()):
        rates = [row["images"] / row["seconds"] for row in some]
        whole = medians.get((device, threads, batch, 1.0))
        middle = medians[device, threads, batch, alpha]
        found.append(
            {
                "device": device, "threads": threads, "batch": batch, "alpha": alpha, "kept": some[0]["kept"],
                "per_second": middle, "slowest": min(rates), "fastest": max(rates), "passes": len(some),
                "to_whole": None if whole is None else middle / whole,
            }
        )  # fmt: skip
    return found
