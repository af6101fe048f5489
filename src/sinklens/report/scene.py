"""What the figures are drawn from: the models side by side, what was asked for, and one pass over their layers.

Every figure names a collector. All collectors of a model are fed in the same pass, so each layer of each sample is read
once, and one at a time; a collector keeps only what its figure shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sinklens.errors import UsageError
from sinklens.report.numbers import write_csv
from sinklens.report.style import escape_missing, save
from sinklens.sinks.arrays import Canvases, LayerArrays, TraceLike
from sinklens.sinks.detect import MIN_VIEWERS

LONGEST = 28  # characters of a name in a picture


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What came of one figure."""

    id: str  # "1", "6a", "table2"
    title: str
    files: tuple[Path, ...]  # empty: it could not be drawn, and the note says why
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Focus:
    """What the figures of a single head show; None: chosen by each figure's own rule."""

    layer: int | None = None
    head: int | None = None
    step: int | None = None
    epsilon: float = 3.0  # fair shares above the others' mean

    def has(self, layer: int, head: int | None = None, step: int | None = None) -> bool:
        """Whether a place is among those that were asked for."""
        return (
            self.layer in (None, layer)
            and (head is None or self.head in (None, head))
            and (step is None or self.step in (None, step))
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """One trace, as the figures call it."""

    trace: TraceLike
    label: str  # no two are the same
    sample: int  # the one that figures of a single sample show

    @property
    def short(self) -> str:
        """The label as it fits above a panel; its end tells checkpoints of a family apart, so the middle goes."""
        return self.label if len(self.label) <= LONGEST else f"{self.label[:12]}…{self.label[13 - LONGEST :]}"

    @property
    def step_word(self) -> str:
        return "generated token" if self.trace.causal else "denoising step"

    @property
    def too_short(self) -> str:
        return f"{self.label} is left out: no token of it is seen by {MIN_VIEWERS} queries or more"

    @property
    def thinned(self) -> str | None:
        """What to know about a trace that holds the sinks alone."""
        if self.trace.detail == "full":
            return None
        return f"{self.label} holds only tokens one fair share above the others: the rest stands at its mean"


@runtime_checkable
class Collector(Protocol):
    """Keeps what one figure needs of one model."""

    groups: bool  # whether `add` looks at layer.groups

    def wants(self, sample: int, layer: int) -> bool: ...

    def add(self, layer: LayerArrays, canvases: Canvases) -> None: ...


def stem_of(id: str) -> str:
    """What the files of a figure are called."""
    return "table_2" if id == "table2" else f"figure_{id}"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One figure to be drawn: its name and where its files go."""

    id: str
    title: str
    to: Path
    focus: Focus

    @property
    def name(self) -> str:
        return stem_of(self.id)

    def finish(self, figure: Any, rows: Iterable[Mapping[str, Any]], *, notes: Iterable[str | None] = ()) -> Drawn:
        """Write the picture and its numbers."""
        files = [*save(figure, self.to, name=self.name), write_csv(self.to / f"{self.name}.csv", rows)]
        return self.drawn(files, notes=notes)

    def skip(self, *notes: str | None) -> Drawn:
        return self.drawn((), notes=notes)

    def drawn(self, files: Iterable[Path], *, notes: Iterable[str | None] = ()) -> Drawn:
        said = "; ".join(dict.fromkeys(note for note in notes if note))  # each note once
        return Drawn(id=self.id, title=self.title, files=tuple(files), note=said or None)


def legend_columns(shown: Sequence[tuple[Model, *tuple[Any, ...]]]) -> int:
    """Two columns of names where they fit below a figure of one column."""
    return 2 if len(shown) > 1 and max(len(model.short) for model, *_ in shown) <= 14 else 1


def models_of(traces: Sequence[TraceLike], *, sample: int | None, focus: Focus) -> list[Model]:
    """The traces with labels that differ; what was asked for must be in every one of them."""
    if not traces:
        raise UsageError("no traces; give at least one")
    models: list[Model] = []
    for trace in traces:
        name = escape_missing(trace.name) or "trace"
        same = sum(model.trace.name == trace.name for model in models)
        label = f"{name} ({same + 1})" if same else name
        if not trace.samples or not trace.layers:
            raise UsageError(f"the trace of {label} holds no finished sample; record one first")
        chosen = _member("sample", sample, trace.samples, label=label)
        _member("layer", focus.layer, trace.layers, label=label)
        _member("head", focus.head, trace.heads, label=label)
        models.append(Model(trace=trace, label=label, sample=chosen))
    return models


def _member(what: str, value: int | None, known: Sequence[int], *, label: str) -> int:
    if value is None:
        return known[0]
    if value not in known:
        raise UsageError(f"the trace of {label} has no {what} {value}; it has {_spans(known)}")
    return value


def _spans(numbers: Sequence[int]) -> str:
    """`0 to 31`, or `0 to 3, 8, 16`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)


def count_reads(model: Model, collectors: Sequence[Collector]) -> int:
    return sum(
        any(one.wants(sample, layer) for one in collectors)
        for sample in model.trace.samples
        for layer in model.trace.layers
    )


def read(model: Model, collectors: Sequence[Collector], *, tick: Callable[[], None]) -> None:
    """Feed the collectors: one layer of one sample at a time, each read once."""
    trace = model.trace
    for sample in trace.samples:
        canvases = None
        for number in trace.layers:
            mine = [one for one in collectors if one.wants(sample, number)]
            if not mine:
                continue
            canvases = canvases or trace.canvases(sample)
            layer = trace.layer(sample, number, groups=any(one.groups for one in mine))
            for one in mine:
                one.add(layer, canvases)
            tick()
