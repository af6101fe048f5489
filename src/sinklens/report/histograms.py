"""Figures 3 and 9: how the scores of all tokens are spread, over all samples, steps, layers and heads."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.scene import Drawn, Focus, Model, Sheet, legend_columns
from sinklens.report.style import ACROSS, COLUMN, SHARE, line_style, new_figure, panels, plain_count
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.profile import score_histogram

COUNT = "count (tokens x steps x\nlayers x heads)"
EDGES = np.linspace(0.0, 50.0, 101)  # fair shares; one more bin holds what lies above
BINS = np.append(EDGES, EDGES[-1] + 2)  # as drawn: the bin of all that lies above is a little wider


class ScoreCounts:
    """The histogram of one model. Its thinned traces have none: the crowd near 1 is what they left out."""

    groups = False

    def __init__(self, model: Model, _focus: Focus) -> None:
        self._full = model.trace.detail == "full"
        self.counts: np.ndarray | None = np.zeros(len(EDGES), np.int64) if self._full else None

    def wants(self, _sample: int, _layer: int) -> bool:
        return self._full

    def add(self, layer: LayerArrays, _canvases: Canvases) -> None:
        self.counts = score_histogram(layer, EDGES) + (0 if self.counts is None else self.counts)


def draw_together(sheet: Sheet, gathered: Sequence[tuple[Model, ScoreCounts]]) -> Drawn:
    """Figure 3: all models in one panel."""
    shown, notes = _countable(gathered)
    if not shown:
        return sheet.skip(*notes)
    figure = new_figure(width=COLUMN, height=2.3 + 0.14 * len(shown))
    axis = figure.subplots()
    for number, (model, counts) in enumerate(shown):
        axis.stairs(_drawn_counts(counts), BINS, baseline=None, label=model.short, **line_style(number))
    _finish(axis, _last_edge(shown))
    figure.legend(loc="outside lower center", handlelength=3, ncols=legend_columns(shown))
    return sheet.finish(figure, _rows(shown), notes=notes + _beyond(shown))


def draw_apart(sheet: Sheet, gathered: Sequence[tuple[Model, ScoreCounts]]) -> Drawn:
    """Figure 9: one panel a model, on the same axes."""
    shown, notes = _countable(gathered)
    if not shown:
        return sheet.skip(*notes)
    figure, axes = panels(len(shown), height=2.2)
    top = max(int(counts.max()) for _, counts in shown)
    for number, (axis, (model, counts)) in enumerate(zip(axes, shown, strict=True)):
        axis.stairs(counts, BINS, fill=True, baseline=0.5, color=line_style(number)["color"])
        _finish(axis, _last_edge(shown), label=None)
        axis.set_ylim(top=top * 2)
        axis.set_title(model.short)
        axis.set_ylabel("" if number % ACROSS else COUNT)
    figure.supxlabel(SHARE, fontsize=8)
    return sheet.finish(figure, _rows(shown), notes=notes + _beyond(shown))


def _countable(gathered: Sequence[tuple[Model, ScoreCounts]]) -> tuple[list[tuple[Model, np.ndarray]], list[str]]:
    shown, notes = [], []
    for model, counted in gathered:
        if counted.counts is None:
            notes.append(
                f"{model.label} is left out: its trace has detail 'sinks', and a histogram needs every token; "
                "record one with `sinklens trace ... --detail full`"
            )
        elif not counted.counts.any():
            notes.append(model.too_short)
        else:
            shown.append((model, counted.counts))
    return shown, notes


def _finish(axis: Any, last: float, *, label: str | None = SHARE) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(plain_count)
    axis.minorticks_off()
    axis.set_xlim(0, last)
    if last > EDGES[-1]:
        axis.set_xticks([0, 10, 20, 30, 40, (BINS[-1] + BINS[-2]) / 2], ["0", "10", "20", "30", "40", "50+"])
    axis.set_ylim(bottom=0.5)
    axis.set_ylabel(COUNT)
    if label:
        axis.set_xlabel(label)


def _drawn_counts(counts: np.ndarray) -> np.ndarray:
    """Empty bins as gaps: a logarithmic axis has no zero."""
    return np.where(counts > 0, counts, np.nan)


def _last_edge(shown: Sequence[tuple[Model, np.ndarray]]) -> float:
    filled = [int(np.nonzero(counts)[0].max(initial=0)) + 1 for _, counts in shown]
    return float(BINS[min(len(BINS) - 1, max(filled) + (max(filled) < len(EDGES) - 1))])


def _beyond(shown: Sequence[tuple[Model, np.ndarray]]) -> list[str]:
    return [
        f"{model.label}: {counts[-1]} of {counts.sum()} scores lie above {EDGES[-1]:g}: the last bar, {EDGES[-1]:g}+"
        for model, counts in shown
        if counts[-1]
    ]


def _rows(shown: Sequence[tuple[Model, np.ndarray]]) -> Iterator[dict[str, Any]]:
    for model, counts in shown:
        for index, count in enumerate(counts.tolist()):
            yield {
                "model": model.label,
                "samples": len(model.trace.samples),
                "from_fair_shares": float(EDGES[index]),
                "below_fair_shares": float(EDGES[index + 1]) if index + 1 < len(EDGES) else None,
                "count": count,
            }
