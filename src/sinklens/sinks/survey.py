"""Everything about the sinks of a trace in one pass: every layer of every sample is loaded once.

`survey(trace)` measures layer by layer, keeps small partial results, and combines them over samples. What a trace
cannot tell (norms that were not recorded, small scores that were not kept) is left out, with the reason in `missing`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil
from operator import add
from typing import Any

import numpy as np
from jaxtyping import Bool

from sinklens.errors import UsageError, choose
from sinklens.sinks import profile
from sinklens.sinks.agreement import Agreement, agreement
from sinklens.sinks.arrays import READINGS, Canvases, LayerArrays, TraceLike, among
from sinklens.sinks.cells import CellCounts, MergedCells, count_cells
from sinklens.sinks.depth import LayerDepth, depth_profile
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.events import EventSums, measure_events
from sinklens.sinks.handoffs import FIRST
from sinklens.sinks.mechanism import MechanismSums, measure_mechanism
from sinklens.sinks.metrics import METRICS, select
from sinklens.sinks.statistics import TokenCounts, count_tokens
from sinklens.sinks.track import Tracked, TrackRule, track_layer

PARTS = ("tokens", "profile", "tracks", "depth", "events", "explained", "mechanism", "agreement")
USUAL = PARTS[:6]  # the last two take as long as the others together
NULL_HEADS = 2000  # heads of the null whose tracks are classified, about: for the value beside every share
FULL_ONLY = ("profile", "agreement")  # need scores below one fair share
Progress = Callable[[int, int], None]  # layers done, of how many


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a trace."""

    metric: str = "epsilon"  # the definition of a sink, one of METRICS
    value: float | None = None  # its threshold; None: the usual one
    reading: str = "received"  # attention from all queries, or one of READINGS
    min_viewers: int | None = None  # None: 8, or 1 for the reading of a single row
    parts: tuple[str, ...] = USUAL
    seed: int = 0

    def __post_init__(self) -> None:
        choose("metric", self.metric, tuple(METRICS))
        choose("reading", self.reading, READINGS)
        for part in self.parts:
            choose("part", part, PARTS)

    @property
    def viewers(self) -> int:
        if self.min_viewers is not None:
            return self.min_viewers
        return 1 if self.reading == "last_row" else MIN_VIEWERS

    @property
    def threshold(self) -> float:
        return METRICS[self.metric].default if self.value is None else self.value

    @property
    def epsilon(self) -> float:
        """Tracks follow the paper's definition, whatever else is asked: only that has a hysteresis."""
        return self.threshold if self.metric == "epsilon" else METRICS["epsilon"].default

    def rule(self, heads: int) -> TrackRule:
        """How tracks are followed.

        heads: over all layers and samples; the fewer there are, the more draws of the null are looked at.
        """
        shifted = min(FIRST, ceil(NULL_HEADS / max(1, heads)))
        return TrackRule(epsilon=self.epsilon, min_viewers=self.viewers, seed=self.seed, shifted=shifted)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerParts:
    """What was measured of one layer of one sample; None: not asked for, or not possible."""

    layer: int
    steps: int  # stored
    heads: int
    sinks: int
    cells: int
    impossible: UsageError | None  # why nothing in this layer could be a sink; the same in all layers: an error
    absorbed: float  # share of all attention that the sinks take, mean over heads and steps
    histogram: Any = None  # counts, the last one the overflow
    not_sinks: tuple[Any, int] | None = None
    tokens: TokenCounts | None = None
    depth: LayerDepth | None = None
    events: EventSums | None = None
    factors: CellCounts | None = None
    mechanism: MechanismSums | None = None
    agreement: Agreement | None = None
    tracks: Tracked | None = None


@dataclass(kw_only=True)
class SampleParts:
    """One sample: its layers, and what sums over them."""

    canvases: Canvases
    layers: list[LayerParts] = field(default_factory=list)
    factors: MergedCells | None = None

    def known(self, name: str) -> list[Any]:
        """One part of all layers, where it was measured."""
        return [value for one in self.layers if (value := getattr(one, name)) is not None]

    def total(self, name: str) -> Any:
        """The sum of one part over the layers; None where it was not measured."""
        values = self.known(name)
        return reduce(add, values) if values else None


@dataclass(kw_only=True)
class Survey:
    """The parts of every sample, and what could not be measured."""

    question: Question
    samples: dict[int, SampleParts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # part to the reason


def survey(
    trace: TraceLike,
    question: Question | None = None,
    *,
    samples: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Survey:
    """Measure every layer of every sample once. workers: layers at a time, each in a thread of its own."""
    question = question or Question()
    chosen = among("samples", samples, trace.samples)
    numbers = among("layers", layers, trace.layers)
    found = Survey(question=question, missing=_impossible(trace, question))
    parts = [part for part in question.parts if part not in found.missing]
    rule = question.rule(len(chosen) * len(numbers) * len(trace.heads)) if "tracks" in parts else None
    done = 0
    with _threads(workers) as pool:
        for sample in chosen:
            mine = found.samples[sample] = SampleParts(canvases=trace.canvases(sample))

            def measure(number: int, mine: SampleParts = mine) -> LayerParts:
                wants_groups = question.reading != "received" or "tracks" in parts
                arrays = trace.layer(mine.canvases.sample, number, groups=wants_groups, norms="mechanism" in parts)
                arrays = arrays.reading(question.reading)
                return _measure(arrays, mine.canvases, question, parts, rule=rule, trace=trace)

            for measured in pool.map(measure, numbers):
                mine.layers.append(measured)
                done += 1
                if progress is not None:
                    progress(done, len(chosen) * len(numbers))
            _settle(mine, found, parts)
    _refuse_nowhere(found)
    return found


@contextmanager
def _threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that stop after the layer they are at when something is raised, Ctrl-C included."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _settle(mine: SampleParts, found: Survey, parts: Sequence[str]) -> None:
    """Make small what is large until all layers are there, and note what none of them has."""
    cells = mine.total("factors")
    mine.factors = None if cells is None else cells.merge()
    mine.layers = [replace(one, factors=None) for one in mine.layers]
    if "mechanism" in parts and not mine.known("mechanism"):
        found.missing["mechanism"] = "no norms were recorded; trace without --no-norms"
    if "agreement" in parts and not mine.known("agreement"):
        found.missing["agreement"] = "the rows are so short that some definitions cannot be met"


def _measure(
    layer: LayerArrays,
    canvases: Canvases,
    question: Question,
    parts: Sequence[str],
    *,
    rule: TrackRule | None,
    trace: TraceLike,
) -> LayerParts:
    viewers = question.viewers
    sinks, impossible = _select(layer, question)
    visible = ~np.isnan(layer.received) & (layer.expected > 0)
    full = "profile" in parts
    norms = "mechanism" in parts and layer.key_norm is not None
    return LayerParts(
        layer=layer.layer,
        steps=len(layer.steps),
        heads=len(layer.heads),
        sinks=int((sinks & visible).sum()),
        cells=int(visible.sum()),
        impossible=impossible,
        absorbed=float(profile.mean_known(profile.layer_mass(layer, sinks))),
        histogram=profile.score_histogram(layer, min_viewers=viewers) if full else None,
        not_sinks=profile.share_not_sinks(layer, min_viewers=viewers) if full else None,
        tokens=count_tokens(layer, canvases, sinks) if "tokens" in parts else None,
        depth=depth_profile(layer, sinks, min_viewers=viewers) if "depth" in parts else None,
        events=measure_events(layer, sinks, canvases=canvases, min_viewers=viewers) if "events" in parts else None,
        factors=count_cells(layer, sinks, canvases=canvases, min_viewers=viewers) if "explained" in parts else None,
        mechanism=measure_mechanism(layer, sinks, heads=_heads(trace), causal=trace.causal) if norms else None,
        agreement=_agree(layer, viewers) if "agreement" in parts else None,
        tracks=None if rule is None else track_layer(layer, canvases, rule=rule),
    )


def _select(layer: LayerArrays, question: Question) -> tuple[Bool[np.ndarray, "step head key"], UsageError | None]:
    """The sinks. A short sample or a narrow window may leave nothing that could be one, while other layers do."""
    try:
        return select(layer, question.metric, question.value, min_viewers=question.viewers), None
    except UsageError as error:
        if layer.kept is not None and (layer.viewers >= question.viewers).any():
            raise  # it would need what the trace left out
        return np.zeros(layer.received.shape, bool), error


def _agree(layer: LayerArrays, viewers: int) -> Agreement | None:
    """None where some definition cannot be met in so short a row."""
    try:
        return agreement(layer, min_viewers=viewers)
    except UsageError:
        return None


def _refuse_nowhere(found: Survey) -> None:
    """What nothing in the whole trace could meet is a question that cannot be meant."""
    reasons = [one.impossible for mine in found.samples.values() for one in mine.layers]
    if reasons and reasons[0] is not None and all(reason is not None for reason in reasons):
        raise reasons[0]


def _impossible(trace: TraceLike, question: Question) -> dict[str, str]:
    """Parts that this kind of trace cannot answer."""
    why = "the trace keeps only what exceeds the others' mean by one fair share; trace with --detail full"
    missing = {part: why for part in FULL_ONLY if trace.detail != "full"}
    epsilon = question.epsilon
    if trace.detail != "full" and epsilon < 2:
        missing["tracks"] = f"epsilon {epsilon:g} follows keys below one fair share; {why}"
    if epsilon == 0:
        missing["tracks"] = "epsilon 0 makes no difference between a birth and a death; use more than 0"
    return {part: reason for part, reason in missing.items() if part in question.parts}


def _heads(trace: TraceLike) -> int:
    """Of the model, not only of those that were kept: grouped queries need it."""
    manifest: Mapping[str, Any] = getattr(trace, "manifest", {})
    return int(manifest.get("model", {}).get("heads", len(trace.heads)))
