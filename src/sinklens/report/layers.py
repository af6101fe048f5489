"""Figure 5: how strong the main sink of every head is, on average over steps and samples."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.scene import Drawn, Focus, Model, Sheet
from sinklens.report.style import colour_bar, colour_map, panels
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.profile import main_sink, mean_known


class MainSinkScores:
    """Mean score and mass of the main sink, by layer and head, of every sample."""

    groups = False

    def __init__(self, model: Model, _focus: Focus) -> None:
        trace = model.trace
        self._rows = {layer: row for row, layer in enumerate(trace.layers)}
        self._samples = {sample: index for index, sample in enumerate(trace.samples)}
        shape = (len(self._samples), len(self._rows), len(trace.heads))
        self._score, self._mass = np.full(shape, np.nan), np.full(shape, np.nan)

    def wants(self, _sample: int, _layer: int) -> bool:
        return True

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        main = main_sink(layer)
        at = self._samples[canvases.sample], self._rows[layer.layer]
        self._score[at] = mean_known(main.score, axis=0)
        self._mass[at] = mean_known(main.mass, axis=0)

    def score(self) -> np.ndarray:
        """[layer, head], fair shares: every sample counts the same."""
        return np.asarray(mean_known(self._score, axis=0))

    def mass(self) -> np.ndarray:
        """[layer, head], share of the attention of the queries that see it."""
        return np.asarray(mean_known(self._mass, axis=0))


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, MainSinkScores]]) -> Drawn:
    """One panel a model, on one logarithmic colour scale, so that models and layers compare."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator, NullLocator

    notes = [_unknown(*one) for one in gathered]
    shown = [(model, found) for model, found in gathered if not np.isnan(found.score()).all()]
    if not shown:
        return sheet.skip(*notes)
    figure, axes = panels(len(shown), height=2.5)
    scores = [found.score() for _, found in shown]
    low = min(float(np.nanmin(one)) for one in scores)
    top = max(2 * low, *(float(np.nanmax(one)) for one in scores))
    norm = LogNorm(vmin=low, vmax=top)
    for axis, (model, _), score in zip(axes, shown, scores, strict=True):
        rows, columns = score.shape
        image = axis.pcolormesh(
            np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, np.ma.masked_invalid(score),
            cmap=colour_map("cividis"), norm=norm, rasterized=True,
        )  # fmt: skip
        axis.invert_yaxis()
        axis.set_title(model.short)
        axis.set_xlabel("head")
        axis.set_ylabel("layer (deeper downwards)")
        for side, numbers in ((axis.xaxis, model.trace.heads), (axis.yaxis, model.trace.layers)):
            side.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            side.set_major_formatter(_numbered(numbers))
    ticks = _ticks(low, top)
    bar = colour_bar(figure, image, axes=axes, label="score of the main sink\n(fair shares; mean over steps)")
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    return sheet.finish(figure, _cells(shown), notes=notes)


def _ticks(low: float, top: float) -> list[float]:
    """Round numbers between two bounds: the more, the nearer the bounds are to each other."""
    mantissas = (1, 2, 5) if top / low > 8 else (1, 1.5, 2, 3, 4, 6, 8)
    return [tick for power in range(-3, 6) for one in mantissas if low <= (tick := one * 10.0**power) <= top]


def _numbered(numbers: Sequence[int]) -> Any:
    """Ticks say the number of the layer or head, not its row: a trace may hold some of them only."""

    def name(value: float, _position: int) -> str:
        return str(numbers[int(value)]) if value == int(value) and 0 <= value < len(numbers) else ""

    return name


def _unknown(model: Model, found: MainSinkScores) -> str | None:
    unknown = np.isnan(found.score())
    if model.trace.detail == "full":
        return model.too_short if unknown.all() else None
    if unknown.all():
        return (
            f"{model.label} is left out: its trace has detail 'sinks', and no token is one fair share above the others"
        )
    blank = f", and {unknown.sum()} heads without any are grey" if unknown.any() else ""
    return (
        f"{model.label} has detail 'sinks': the mean is over steps with a token one fair share above the others{blank}"
    )


def _cells(gathered: Sequence[tuple[Model, MainSinkScores]]) -> Iterator[dict[str, Any]]:
    for model, found in gathered:
        score, mass = found.score(), found.mass()
        for row, layer in enumerate(model.trace.layers):
            for column, head in enumerate(model.trace.heads):
                yield {
                    "model": model.label,
                    "samples": len(model.trace.samples),
                    "layer": layer,
                    "head": head,
                    "main_sink_fair_shares": float(score[row, column]),
                    "main_sink_mass": float(mass[row, column]),
                }
