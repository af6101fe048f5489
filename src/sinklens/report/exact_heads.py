"""A few heads with everything the trace holds of them, number for number."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinklens.errors import UsageError
from sinklens.report.encode import pack
from sinklens.report.survey_heads import Surveyed
from sinklens.sinks.arrays import LayerArrays, Received, TraceLike

DEFAULT = 4  # heads
LETTERS = 2.1, 4.6  # in the page, for a number that the trace has rounded, and for one that it holds exactly


def estimate_exact(trace: TraceLike, samples: Sequence[int], *, heads: int) -> int:
    """About how many bytes so many exact heads will take, from the size of the trace alone."""
    manifest = getattr(trace, "manifest", {})
    letters = LETTERS[bool(manifest.get("exact"))]
    arrays = (2 if trace.causal else 3) + 3 * bool(manifest.get("norms", True))  # readings and norms
    cells = sum(trace.canvases(sample).ids.size for sample in samples) / manifest.get("every", 1)
    return int(heads * arrays * cells * letters)


def exact_entries(
    trace: TraceLike, sample: int, found: Surveyed, *, wanted: Sequence[tuple[int, int]] | None, budget: int
) -> list[dict[str, Any]]:
    """The heads asked for; else four by their sinks (`Surveyed.worth_seeing`), as many as fit, at least one.

    A page opens on the first.
    """
    heads = found.worth_seeing(DEFAULT) if wanted is None else list(dict.fromkeys(wanted))
    for number, head in heads:
        if number not in found.layers or head not in found.heads:
            raise UsageError(
                f"head {number}.{head} is not among those shown; expected LAYER.HEAD with a layer of "
                f"{list(found.layers)} and a head of {list(found.heads)}"
            )
    model = getattr(trace, "manifest", {}).get("model", {})
    of_model = model.get("heads", max(found.heads) + 1)
    entries: list[dict[str, Any]] = []
    spent = 0
    for number, head in heads:
        layer = trace.layer(sample, number, groups=True, norms=True)
        entry = _entry(layer, list(layer.heads).index(head), of_model=of_model)
        spent += _size(entry)
        if wanted is None and entries and spent > budget:
            break
        entries.append(entry)
    return entries


def _size(entry: dict[str, Any]) -> int:
    return sum(len(part["data"]) for part in _parts(entry))


def _parts(entry: Any) -> list[dict[str, Any]]:
    """The packed arrays inside."""
    if not isinstance(entry, dict):
        return []
    return [entry] if "data" in entry else [part for value in entry.values() for part in _parts(value)]


def _entry(layer: LayerArrays, index: int, *, of_model: int) -> dict[str, Any]:
    head = int(layer.heads[index])
    return {
        "layer": layer.layer,
        "head": head,
        **_reading(layer, index),
        "groups": {name: _reading(group, index) for name, group in layer.groups.items()},
        "key_norm": _shared_norm(layer.key_norm, head, of_model=of_model),
        "value_norm": _shared_norm(layer.value_norm, head, of_model=of_model),
        "output_norm": None if layer.output_norm is None else pack(layer.output_norm[:, index], "f4"),
    }


def _reading(reading: Received, index: int) -> dict[str, Any]:
    """NaN (no such key) is kept: it is a float like any other in these arrays."""
    parts = {"received": reading.received, "expected": reading.expected, "viewers": reading.viewers}
    return {name: pack(values[:, min(index, values.shape[1] - 1)], "f4") for name, values in parts.items()}


def _shared_norm(norms: np.ndarray | None, head: int, *, of_model: int) -> dict[str, Any] | None:
    """Under grouped queries several heads of the model read one key; all of these are stored, whatever heads are."""
    return None if norms is None else pack(norms[:, head * norms.shape[1] // of_model], "f4")
