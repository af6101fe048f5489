"""What a card says from a trace alone: where the sinks are, how they move, and what their heads read from them.

Everything comes from one survey (`sinks/survey.py`), as `sinklens sinks` makes it. Intervals are {value, low, high, n}:
95 %, over prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sinklens.sinks.document import document, join_tracks
from sinklens.sinks.mechanism import LEAST_RATIO, VERDICTS, MechanismSums
from sinklens.sinks.profile import mean_known
from sinklens.sinks.resample import bootstrap, bootstrap_ratios
from sinklens.sinks.survey import Question, SampleParts, Survey, survey
from sinklens.traces.read import Trace

PARTS = ("tokens", "tracks", "depth", "explained", "mechanism")
OFTEN = 0.5  # a head has a sink if it has one in this share of its steps or more
TOKENS = 5
FACTORS = ("position", "token", "mask")


def describe_sinks(
    trace: Trace, *, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> tuple[dict[str, Any], Any]:
    """The entries `where`, `how` and `what` of a card, and all tracks as a table."""
    found = survey(trace, Question(parts=PARTS), workers=workers, progress=progress)
    said = document(found, layers=trace.manifest["model"]["layers"], top=TOKENS)
    entries = {"where": _where(trace, found, said), "how": _how(said), "what": _what(found, said)}
    tracked = join_tracks(found)
    return entries | {"missing": said["missing"]}, None if tracked is None else tracked.tracks


def _where(trace: Trace, found: Survey, said: Mapping[str, Any]) -> dict[str, Any]:
    samples = list(found.samples.values())
    depth, seen = said["depth"], said["overview"]
    return {
        "metric": said["question"]["metric"],
        "epsilon": said["question"]["value"],
        "prompts": seen["samples"],
        "steps": seen["stored_steps"],
        "tokens_each": seen["tokens"],
        "sinks": seen["sinks"],
        "cells": seen["cells"],
        "sink_share": seen["sink_share"],
        "absorbed": seen["absorbed"],
        "heads_with_sink": asdict(bootstrap([_heads_with_sink(one) for one in samples])),
        "first": _first_position(trace, samples),
        "layers": [
            {
                "layer": layer,
                "mass": mass,
                "sinks": sinks,
            }
            for layer, mass, sinks in zip(
                depth["layers"], depth["by_layer"]["mass"], depth["by_layer"]["sinks"], strict=True
            )
        ],
        "mass_with_depth": depth["spearman"]["mass"],
        "classes": said["tokens"]["classes"],
        "tokens": said["tokens"]["tokens"],
        "regions": said["tokens"]["regions"],
        "head_rate": said["tokens"]["head_rate"],
        "explained": _explained(said["explained"]),
    }


def _heads_with_sink(sample: SampleParts) -> float:
    """Share of all heads that have a sink in half of their steps or more."""
    steps = [one.sink_steps for one in sample.known("mechanism")]
    return float(np.mean(np.concatenate(steps) >= OFTEN)) if steps else float("nan")


def _first_position(trace: Trace, samples: Sequence[SampleParts]) -> dict[str, Any]:
    """How many of the sinks stand on position 0, and what stands there."""
    merged = [one.factors for one in samples if one.factors is not None]
    on_first = np.array([[one.sinks[one.levels[:, 0] == 0].sum()] for one in merged]).reshape(-1, 1)
    every = np.array([one.sinks.sum() for one in merged])
    cells = sum(one.seen.sum() for one in merged)
    base = sum(one.seen[one.levels[:, 0] == 0].sum() for one in merged) / cells if cells else None
    ids = {int(one.canvases.ids[0, 0]) for one in samples}
    token = ids.pop() if len(ids) == 1 else None
    texts = samples[0].canvases.tokens
    bos = trace.manifest["model"].get("bos_id")
    return {
        "share": asdict(bootstrap_ratios(on_first, every)[0]),
        "base": None if base is None else float(base),
        "token": None if token is None else texts.get(token, str(token)),  # None: not the same in all prompts
        "is_bos": None if bos is None or token is None else token == bos,
    }


def _explained(explained: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each factor alone tells about sink status on prompts that were left out; None where it cannot be said."""
    known = {factor["factor"]: factor for factor in (explained or {}).get("factors", ()) if factor["levels"] > 1}
    return {name: known[name]["alone_cv"] if name in known else None for name in FACTORS}


def _how(said: Mapping[str, Any]) -> dict[str, Any]:
    tracks = said["tracks"]
    names = ("tracks", "null_draws", "shares", "handoffs_per_track", "lifetimes")
    return {name: tracks[name] for name in names}


def _what(found: Survey, said: Mapping[str, Any]) -> dict[str, Any]:
    by_sample = [one.known("mechanism") for one in found.samples.values()]
    verdicts = [layer["verdicts"] for layer in said["mechanism"] or ()]
    heads = [head["verdict"] for layer in said["mechanism"] or () for head in layer["heads"]]
    return {
        "attention_share": _over(by_sample, lambda one: one.attention_share),
        "contribution_share": _over(by_sample, lambda one: _number(one.contribution_share)),
        "value_ratio": _over(by_sample, lambda one: one.ratios.get("value_norm", np.nan), geometric=True),
        "output_ratio": _over(by_sample, lambda one: one.ratios.get("output_norm", np.nan), geometric=True),
        "rank_with_sink": _over(by_sample, lambda one: np.nan if one.rank is None else one.rank[0]),
        "rank_without": _over(by_sample, lambda one: np.nan if one.rank is None else one.rank[1]),
        "verdicts": {name: sum(one[name] for one in verdicts) for name in VERDICTS} | {"undecided": heads.count(None)},
        "heads": len(heads),
        "layers": said["mechanism"],
    }


def _over(
    by_sample: Sequence[Sequence[MechanismSums]], read: Callable[[MechanismSums], float], *, geometric: bool = False
) -> dict[str, Any]:
    """The mean over the layers of a sample that have it, then over samples."""
    values = np.array([[read(layer) for layer in layers] for layers in by_sample], np.float64)
    if geometric:
        values = np.log(np.maximum(values, LEAST_RATIO))
    interval = asdict(bootstrap([mean_known(row) for row in values]))
    if geometric:
        ends = {name: interval[name] for name in ("value", "low", "high")}
        interval |= {name: None if one is None else float(np.exp(one)) for name, one in ends.items()}
    return interval


def _number(value: float | None) -> float:
    return np.nan if value is None else value
