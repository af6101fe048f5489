"""Figure 7: where the greatest sink of one head stands at every step, one line a model."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.heads import HeadChoice, HeadSeries, chosen_by
from sinklens.report.scene import Drawn, Model, Sheet
from sinklens.report.style import COLUMN, MARKERS, line_style, new_figure


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, HeadChoice]]) -> Drawn:
    """Filled markers: the token is there. Hollow: it is still masked. Gaps: no token is a sink at that step."""
    shown = [(model, choice.series) for model, choice in gathered if choice.series is not None]
    figure = new_figure(width=COLUMN, height=2.6 + 0.14 * len(shown))
    axis = figure.subplots()
    for number, (model, series) in enumerate(shown):
        _line(axis, number, model, series)
    axis.set_xlabel(" or ".join(dict.fromkeys(model.step_word for model, _ in shown)))
    axis.set_ylabel("position of the main sink\n(token index)")
    keys = max(series.share.shape[1] for _, series in shown)
    axis.set_ylim(-0.03 * keys, keys)
    figure.legend(handles=_legend(shown), loc="outside lower center", handlelength=3.2)
    notes = [f"{model.label}: {series.place} ({chosen_by(series, sheet.focus)})" for model, series in shown]
    notes += [f"{model.label}: no step with a sink there" for model, series in shown if not series.sink.any()]
    return sheet.finish(figure, _rows(shown), notes=notes)


def _line(axis: Any, number: int, model: Model, series: HeadSeries) -> None:
    style = line_style(number)
    path = np.where(series.sink, series.position, np.nan)
    axis.plot(series.steps, path, linewidth=0.7, **style)
    masked = _masked_under(series)
    marker = {"marker": MARKERS[number % len(MARKERS)], "linestyle": "none", "markersize": 2.6, "markeredgewidth": 0.6}
    for chosen, fill in ((series.sink & ~masked, style["color"]), (series.sink & masked, "white")):
        axis.plot(series.steps[chosen], path[chosen], color=style["color"], markerfacecolor=fill, **marker)


def _masked_under(series: HeadSeries) -> np.ndarray:
    return np.take_along_axis(series.masked, np.maximum(series.position, 0)[:, None], axis=1)[:, 0]


def _legend(shown: Sequence[tuple[Model, HeadSeries]]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], **line_style(number), linewidth=0.9, marker=MARKERS[number % len(MARKERS)], markersize=3.5,
            label=f"{model.short} ({series.place})",
        )
        for number, (model, series) in enumerate(shown)
    ]  # fmt: skip
    if any(_masked_under(series)[series.sink].any() for _, series in shown):
        hollow: dict[str, Any] = {
            "color": "#444444",
            "linestyle": "none",
            "marker": "o",
            "markersize": 3.5,
            "markerfacecolor": "white",
        }
        handles.append(Line2D([], [], label="hollow: on a token still masked", **hollow))
    return handles


def _rows(shown: Sequence[tuple[Model, HeadSeries]]) -> Iterator[dict[str, Any]]:
    for model, series in shown:
        masked = _masked_under(series)
        for index, step in enumerate(series.steps.tolist()):
            position = int(series.position[index])
            there = position >= 0
            yield {
                "model": model.label,
                "sample": model.sample,
                "layer": series.layer,
                "head": series.head,
                "step": step,
                "position": position if there else None,
                "received_fair_shares": float(series.share[index, position]) if there else None,
                "is_sink": bool(series.sink[index]),
                "masked": bool(masked[index]) if there else None,
            }
