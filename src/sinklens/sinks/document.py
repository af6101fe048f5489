"""A survey as one JSON document: what `sinklens sinks --json` prints. docs/statistics.md explains every entry.

Intervals are {value, low, high, n}: 95 %, over samples (prompts); low and high are null with fewer than two. What could
not be measured is null, and `missing` says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from sinklens.sinks import profile, statistics
from sinklens.sinks.agreement import Agreement, jaccard
from sinklens.sinks.depth import combine_depth
from sinklens.sinks.events import summarise_events
from sinklens.sinks.explain import explain_sinks
from sinklens.sinks.lifetimes import OF, survival
from sinklens.sinks.mechanism import summarise_mechanism
from sinklens.sinks.motion import summarise_tracks
from sinklens.sinks.resample import bootstrap, bootstrap_ratios
from sinklens.sinks.survey import SampleParts, Survey
from sinklens.sinks.track import Tracked


def document(found: Survey, *, layers: int, top: int = 10, draws: int = 1000) -> dict[str, Any]:
    """Everything, combined over samples. layers: how many the model has; top: tokens in the table of tokens."""
    samples = list(found.samples.values())
    options: dict[str, Any] = {"draws": draws, "seed": found.question.seed}
    question = found.question
    depths = [one.known("depth") for one in samples]
    merged = [one.factors for one in samples if one.factors is not None]
    return {
        "question": {
            "metric": question.metric,
            "value": question.threshold,
            "reading": question.reading,
            "min_viewers": question.viewers,
            "parts": list(question.parts),
        },
        "missing": found.missing,
        "overview": _overview(samples, options),
        "tokens": _tokens(samples, top, options),
        "profile": _profile(samples, options),
        "tracks": _tracks(samples, layers, options),
        "depth": asdict(combine_depth(depths, **options)) if all(depths) else None,
        "events": _events(samples, options),
        "explained": explain_sinks(merged, **options).as_dict() if merged else None,
        "mechanism": _mechanism(samples, options),
        "agreement": _agreement(samples),
    }


def _overview(samples: Sequence[SampleParts], options: Mapping[str, Any]) -> dict[str, Any]:
    sinks = np.array([[one.total("sinks")] for one in samples])
    cells = np.array([one.total("cells") for one in samples])
    absorbed = [profile.mean_known(np.array(one.known("absorbed"))) for one in samples]
    return {
        "samples": len(samples),
        "steps": [int(one.canvases.ids.shape[0]) for one in samples],
        "stored_steps": [one.layers[0].steps for one in samples],
        "tokens": [int(one.canvases.ids.shape[1]) for one in samples],
        "layers": [one.layer for one in samples[0].layers],
        "heads": samples[0].layers[0].heads,
        "sinks": int(sinks.sum()),
        "cells": int(cells.sum()),
        "sink_share": asdict(bootstrap_ratios(sinks, cells, **options)[0]),
        "absorbed": asdict(bootstrap(absorbed, **options)),
    }


def _tokens(samples: Sequence[SampleParts], top: int, options: Mapping[str, Any]) -> dict[str, Any] | None:
    counts = [one.total("tokens") for one in samples if one.known("tokens")]
    if not counts:
        return None
    canvases = [one.canvases for one in samples]
    whole = sum(counts[1:], start=counts[0])
    with np.errstate(invalid="ignore"):
        rate = whole.head_sinks / whole.head_cells
    return {
        "tokens": [asdict(row) for row in statistics.table_two(counts, canvases, top=top, **options)],
        "classes": [asdict(row) for row in statistics.by_class(counts, canvases, **options)],
        "regions": [asdict(row) for row in statistics.by_region(counts, **options)],
        "layers": [asdict(row) for row in statistics.by_layer(counts, **options)],
        "head_rate": {"layers": whole.layers.tolist(), "heads": whole.heads.tolist(), "rate": _plain(rate)},
    }


def _profile(samples: Sequence[SampleParts], options: Mapping[str, Any]) -> dict[str, Any] | None:
    if not samples[0].known("histogram"):
        return None
    curves = [tuple(sum(part) for part in zip(*one.known("not_sinks"), strict=True)) for one in samples]
    histogram = np.sum([one.total("histogram") for one in samples], axis=0)
    share = profile.not_sinks_curve(curves, **options)
    return {
        "histogram": {"unit": "fair_share", "edges": profile.EDGES.tolist(), "counts": histogram.tolist()},
        "not_sinks": {"epsilon": profile.EPSILONS.tolist(), "share": [asdict(one) for one in share]},
    }


def join_tracks(found: Survey) -> Tracked | None:
    """The tracks of all samples; None where they were not asked for."""
    return _joined(list(found.samples.values()))


def _tracks(samples: Sequence[SampleParts], layers: int, options: Mapping[str, Any]) -> dict[str, Any] | None:
    tracked = _joined(samples)
    if tracked is None:
        return None
    curves = {of: asdict(survival(tracked.tracks, of=of, **options)[0]) for of in OF}
    return summarise_tracks(tracked.tracks, layers_total=layers, null=tracked.null, **options) | {"survival": curves}


def _joined(samples: Sequence[SampleParts]) -> Tracked | None:
    parts = [part for one in samples for part in one.known("tracks")]
    return Tracked.join(parts) if parts else None


def _events(samples: Sequence[SampleParts], options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    sums = [one.total("events") for one in samples if one.known("events")]
    return [row.as_dict() for row in summarise_events(sums, **options)] if sums else None


def _mechanism(samples: Sequence[SampleParts], options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    measured = _by_layer(samples, "mechanism")
    return [summarise_mechanism(parts, **options).as_dict() for parts in measured.values()] or None


def _agreement(samples: Sequence[SampleParts]) -> dict[str, Any] | None:
    """Jaccard of every two definitions: over all layers, and layer by layer."""
    sums: dict[int, Agreement] = {layer: reduce(add, parts) for layer, parts in _by_layer(samples, "agreement").items()}
    if not sums:
        return None
    whole = reduce(add, sums.values())
    return {
        "metrics": list(whole.metrics),
        "jaccard": _plain(jaccard(whole)),
        "layers": {str(layer): _plain(jaccard(counts)) for layer, counts in sums.items()},
    }


def _by_layer(samples: Sequence[SampleParts], name: str) -> dict[int, list[Any]]:
    """One part of all samples, layer by layer."""
    found: dict[int, list[Any]] = {}
    for one in samples:
        for layer in one.layers:
            if (value := getattr(layer, name)) is not None:
                found.setdefault(layer.layer, []).append(value)
    return found


def _plain(table: np.ndarray) -> list[list[float | None]]:
    """Rows of numbers; what is not a number is None."""
    return [[float(value) if np.isfinite(value) else None for value in row] for row in table]
