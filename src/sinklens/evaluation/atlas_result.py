"""result.json of an atlas, from its rows."""

from pathlib import Path
from typing import Any

from sinklens.evaluation.atlas import FORMAT, RESULT, read_plan, read_table
from sinklens.evaluation.denoising_result import summarise_diffusion
from sinklens.evaluation.key_norm_result import summarise_causal
from sinklens.files import write_json


def summarise(folder: Path, *, units: int | None = None) -> dict[str, Any]:
    """What the first `units` units, or all that are there, come to."""
    plan = read_plan(folder)
    causal = bool(plan["decides"]["model"]["causal"])
    count = len(plan["units"]) if units is None else units
    table = read_table(folder, "heads" if causal else "steps", units=count)
    there = len(set(table["unit"].to_pylist()))
    head = {"atlas": FORMAT, "causal": causal, "decides": plan["decides"], "told": plan["told"], "units": there}
    return head | (summarise_causal if causal else summarise_diffusion)(folder, units=count)


def write_result(folder: Path, *, units: int | None = None) -> dict[str, Any]:
    """The same, also on disk."""
    document = summarise(folder, units=units)
    write_json(folder / RESULT, document)
    return document
