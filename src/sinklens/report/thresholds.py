"""Figure 10: the share of tokens that are not sinks, against the threshold epsilon."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.scene import Drawn, Focus, Model, Sheet, legend_columns
from sinklens.report.style import COLUMN, MARKERS, line_style, new_figure
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.profile import KEPT_ABOVE, not_sinks_curve, share_not_sinks
from sinklens.sinks.resample import Interval

EPSILONS = np.linspace(0.0, 10.0, 41)  # fair shares above the others' mean


class NotSinks:
    """How many tokens are not sinks at each epsilon, sample by sample."""

    groups = False

    def __init__(self, model: Model, _focus: Focus) -> None:
        self.epsilons = EPSILONS if model.trace.detail == "full" else EPSILONS[EPSILONS >= KEPT_ABOVE]
        self._by_sample: dict[int, tuple[np.ndarray, int]] = {}

    def wants(self, _sample: int, _layer: int) -> bool:
        return True

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        not_sinks, total = share_not_sinks(layer, self.epsilons)
        before, cells = self._by_sample.get(canvases.sample, (0, 0))
        self._by_sample[canvases.sample] = (before + not_sinks, cells + total)

    def curve(self) -> list[Interval]:
        return not_sinks_curve(list(self._by_sample.values()))


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, NotSinks]]) -> Drawn:
    """One line a model with its interval over samples; a dotted line at the epsilon in use."""
    figure = new_figure(width=COLUMN, height=2.3 + 0.14 * len(gathered))
    axis = figure.subplots()
    curves = [(model, counted.epsilons, counted.curve()) for model, counted in gathered]
    for number, (model, epsilons, curve) in enumerate(curves):
        style = line_style(number)
        axis.plot(
            epsilons, [point.value for point in curve], label=model.short, marker=MARKERS[number % len(MARKERS)],
            markersize=3.2, clip_on=False, markevery=4, **style,
        )  # fmt: skip
        if curve[0].low is not None:
            low, high = ([getattr(point, end) for point in curve] for end in ("low", "high"))
            axis.fill_between(epsilons, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axis.axvline(sheet.focus.epsilon, color="#444444", linestyle=":", linewidth=0.8)
    axis.set_xlabel("threshold epsilon (fair shares\nabove the mean of the other tokens)")
    axis.set_ylabel("share of tokens that\nare not sinks")
    axis.set_xlim(EPSILONS[0], EPSILONS[-1])
    axis.set_ylim(top=1)
    figure.legend(loc="outside lower center", handlelength=3.2, ncols=legend_columns(gathered))
    return sheet.finish(figure, _rows(curves), notes=[_partly(model) for model, _ in gathered])


def _partly(model: Model) -> str | None:
    if model.trace.detail == "full":
        return None
    return (
        f"{model.label} is drawn from epsilon {KEPT_ABOVE:g} on: its trace has detail 'sinks'; "
        "record one with `sinklens trace ... --detail full` for all of it"
    )


def _rows(curves: Sequence[tuple[Model, np.ndarray, list[Interval]]]) -> Iterator[dict[str, Any]]:
    for model, epsilons, curve in curves:
        for epsilon, point in zip(epsilons.tolist(), curve, strict=True):
            yield {
                "model": model.label,
                "epsilon_fair_shares": epsilon,
                "share_not_sinks": point.value,
                "low": point.low,
                "high": point.high,
                "samples": point.n,
            }
