"""What the rows of a causal atlas come to: heads, layers, curves, the probe, and whether the paper's claims hold here.

Needs neither torch nor the model. Intervals are over chunks, 95 %. A ratio is sum(ALR) / sum(expected ALR) over the
chunks; it is None where the stake (`sinks/alr.py`) is below STAKE.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sinklens.evaluation.atlas import read_table
from sinklens.evaluation.atlas_numbers import (
    Entry,
    cube,
    mean_known,
    null_band,
    number,
    numbers,
    over_units,
)
from sinklens.evaluation.key_norm_findings import EARLY, Cubes, causal_findings
from sinklens.sinks.alr import STAKE

PLAIN = ("attention", "first", "alr", "alr_rest", "kept", "kept_oracle", "kept_rest", "next", "next_rest", "received",
         "received_rest", "value", "value_rest")  # fmt: skip
NULLS = {"next": "null_next", "received": "null_received", "value": "null_value"}
EDITS = ("peaks", "random", "elsewhere")
AXES = ("unit", "layer", "head")


def summarise_causal(folder: Path, *, units: int) -> dict[str, Any]:
    """The document of a causal atlas, without its plan."""
    table = read_table(folder, "heads", units=units)
    cubes = {name: cube(table, name, AXES) for name in (*PLAIN, "expected", "expected_rest", "keys")}
    heads = _heads(cubes)
    nulls = {name: cube(table, column, AXES) for name, column in NULLS.items()}
    layers = _layers(cubes, nulls)
    probe = _probe(read_table(folder, "peaks", units=units))
    return {
        "heads": heads,
        "layers": layers,
        "overall": _overall(cubes),
        "between_layers": _between(read_table(folder, "layers", units=units)),
        "curves": _curves(table, heads),
        "peaks": probe,
        "findings": causal_findings(cubes, nulls["next"], layers=layers, probe=probe),
    }


def _heads(cubes: Cubes) -> list[dict[str, Any]]:
    """One entry a layer and head."""
    plain = {name: over_units(cubes[name]) for name in PLAIN}
    ratios = {end: over_units(cubes[f"alr{end}"], below=cubes[f"expected{end}"]) for end in ("", "_rest")}
    keys = {"": cubes["keys"], "_rest": cubes["keys"] - 1}
    stakes = {end: mean_known(cubes[f"expected{end}"] / count, 0) for end, count in keys.items()}
    return [
        {
            "layer": layer,
            "head": head,
            **{name: found[layer][head] for name, found in plain.items()},
            **{f"stake{end}": number(stake[layer, head]) for end, stake in stakes.items()},
            **{
                f"ratio{end}": found[layer][head] if stakes[end][layer, head] >= STAKE else None
                for end, found in ratios.items()
            },
        }
        for layer, head in np.ndindex(cubes["alr"].shape[1:])
    ]


def _layers(cubes: Cubes, nulls: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One entry a layer: means over heads, and what chance gives."""
    plain = {name: over_units(mean_known(cubes[name], 2)) for name in PLAIN}
    ratios = {end: over_units(cubes[f"alr{end}"].sum(2), below=cubes[f"expected{end}"].sum(2)) for end in ("", "_rest")}
    bands = {name: null_band(mean_known(values, 2)) for name, values in nulls.items()}
    return [
        {
            "layer": layer,
            **{name: found[layer] for name, found in plain.items()},
            **{f"ratio{end}": found[layer] for end, found in ratios.items()},
            "null": {name: band[layer] for name, band in bands.items()},
        }
        for layer in range(cubes["alr"].shape[1])
    ]


def _overall(cubes: Cubes) -> dict[str, Entry]:
    """All heads of all layers; and of those behind the first EARLY."""
    found = {name: over_units(mean_known(cubes[name], (1, 2))) for name in PLAIN}
    if cubes["alr"].shape[1] > EARLY:
        found |= {f"{name}_later": over_units(mean_known(cubes[name][:, EARLY:], (1, 2))) for name in PLAIN}
    return found


def _between(table: Any) -> list[list[float | None]]:
    """Mean over chunks of the rank correlation of what two layers' keys receive."""
    count = int(max(table["other"].to_numpy(), default=0)) + 1
    matrix = np.eye(count)
    if len(table):
        upper = mean_known(cube(table, "correlation", ("unit", "layer", "other")), 0)
        rows, columns = np.triu_indices(count, k=1)
        matrix[rows, columns] = matrix[columns, rows] = upper[rows, columns]
    found: list[list[float | None]] = numbers(matrix)
    return found


def _curves(table: Any, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean loss curves of the head that the order serves best, of the middle one and of the worst."""
    ranked = sorted((one for one in heads if one["ratio"] is not None), key=lambda one: one["ratio"]["value"])
    if not ranked:
        return []
    loss, oracle = (mean_known(cube(table, name, AXES), 0) for name in ("loss", "oracle"))
    chosen = {"lowest": ranked[0], "middle": ranked[len(ranked) // 2], "highest": ranked[-1]}
    return [
        {
            "which": which, "layer": one["layer"], "head": one["head"], "ratio": one["ratio"]["value"],
            "loss": numbers(loss[one["layer"], one["head"]]), "oracle": numbers(oracle[one["layer"], one["head"]]),
        }
        for which, one in chosen.items()
    ]  # fmt: skip


def _probe(table: Any) -> list[dict[str, Any]]:
    """One entry an edit: means over its draws, then over chunks; differences to the other edits chunk by chunk."""
    by_edit: dict[str, dict[str, np.ndarray]] = {}
    names = np.array(table["edit"].to_pylist())
    for edit in ("none", *EDITS):
        rows = table.take(np.nonzero(names == edit)[0])
        columns = ("nll", "change", "removed", *(("change_by_layer",) if edit != "none" else ()))
        by_edit[edit] = {name: mean_known(cube(rows, name, ("unit", "draw")), 1) for name in columns}
    entries = []
    for edit in EDITS:
        found = by_edit[edit]
        entry = {
            "edit": edit,
            "nll": over_units(found["nll"]),
            "nll_change": over_units(found["nll"] - by_edit["none"]["nll"]),
            "change": over_units(found["change"]),
            "removed": over_units(found["removed"]),
            "change_by_layer": over_units(found["change_by_layer"]),
        }
        for other in EDITS if edit == "peaks" else ():
            if other != edit:
                pairs = {name: found[name] - by_edit[other][name] for name in ("nll", "change")}
                entry[f"minus_{other}"] = {name: over_units(values) for name, values in pairs.items()}
        entries.append(entry)
    return entries
