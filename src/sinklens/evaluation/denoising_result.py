"""What the rows of a diffusion atlas come to. Needs neither torch nor the model.

Correlations are averaged over the steps that have one, then over heads or layers, then over prompts; intervals are over
prompts, 95 %. `null` is where random orders of the tokens put the same mean, 95 % of the time.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.evaluation.atlas import read_table
from sinklens.evaluation.atlas_numbers import (
    above_zero,
    below_zero,
    cube,
    mean_known,
    null_band,
    numbers,
    over_units,
    shown,
)
from sinklens.evaluation.denoising_norms import KINDS, NORMS

AXES = ("unit", "step", "layer", "head")
Cube = Float[np.ndarray, "unit step layer head"]


def summarise_diffusion(folder: Path, *, units: int) -> dict[str, Any]:
    """The document of a diffusion atlas, without its plan."""
    table, null = (read_table(folder, name, units=units) for name in ("steps", "null"))
    kinds, chance = (np.array(one["kind"].to_pylist()) for one in (table, null))
    size = [int(table[name].to_numpy().max()) + 1 for name in ("step", "layer", "head")]
    found = []
    for kind in KINDS:
        rows, orders = table.take(np.nonzero(kinds == kind)[0]), null.take(np.nonzero(chance == kind)[0])
        if not len(rows):
            continue
        for norm in NORMS:
            cubes = {name: _grown(cube(rows, name, AXES), size) for name in (norm, f"{norm}_kept")}
            drawn = cube(orders, norm, ("unit", "layer", "head"))
            found.append({"kind": kind, "norm": norm, **_entry(cubes[norm], cubes[f"{norm}_kept"], drawn)})
    return {"kinds": found, "findings": [_finding(one) for one in found if one["kind"] != "all"]}


def _grown(values: np.ndarray, size: list[int]) -> Cube:
    """With the steps, layers and heads that other kinds have."""
    whole = np.full((len(values), *size), np.nan)
    whole[tuple(slice(length) for length in values.shape)] = values
    return whole


def _entry(values: Cube, kept: Cube, drawn: Float[np.ndarray, "unit layer head draw"]) -> dict[str, Any]:
    """One kind of token and one norm."""
    by_head = mean_known(values, 1)
    heads = over_units(by_head)
    flat = [entry for layer in heads for entry in layer]
    return {
        "mean": over_units(mean_known(by_head, (1, 2))),
        "null": null_band(mean_known(drawn, (1, 2))),
        "kept": over_units(mean_known(kept, (1, 2, 3))),
        "heads": heads,
        "heads_null": null_band(drawn),
        "heads_below": sum(below_zero(entry) for entry in flat),
        "heads_above": sum(above_zero(entry) for entry in flat),
        "heads_known": sum(entry["value"] is not None for entry in flat),
        "layers": over_units(mean_known(by_head, 2)),
        "layers_null": null_band(mean_known(drawn, 2)),
        "steps": over_units(mean_known(values, (2, 3))),
        "layers_by_step": numbers(mean_known(values, (0, 3)).T),  # [layer, step]
    }


def _finding(entry: dict[str, Any]) -> dict[str, Any]:
    mean, null, norm = entry["mean"], entry["null"], entry["norm"]
    claim = f"a low {norm} norm goes with high attention received, {entry['kind']} tokens"
    if mean["value"] is None:
        return {"claim": claim, "holds": None, "says": f"no step has {entry['kind']} tokens whose {norm} norms differ"}
    beyond = not null["low"] <= mean["value"] <= null["high"]
    turned = "; the reverse holds" if above_zero(mean) and beyond else ""
    says = (
        f"Spearman {shown(mean)} (chance {null['low']:.3f} to {null['high']:.3f}){turned}; heads below 0: "
        f"{entry['heads_below']}, above: {entry['heads_above']}, of {entry['heads_known']}; the half of smallest "
        f"{norm} norm gets {100 * entry['kept']['value']:.0f} % of the attention"
    )
    return {"claim": claim, "holds": None if mean["low"] is None else below_zero(mean) and beyond, "says": says}
