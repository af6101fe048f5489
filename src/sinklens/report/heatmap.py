"""Figure 1: attention received by every token at every step, of one head."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sinklens.report.heads import HeadChoice, HeadSeries, chosen_by, seen_by_enough
from sinklens.report.numbers import columns_to_rows
from sinklens.report.scene import Drawn, Model, Sheet
from sinklens.report.style import BLANK, COLUMN, colour_bar, colour_map, panels, share_norm
from sinklens.sinks.detect import MIN_VIEWERS

HEAT = "viridis"


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, HeadChoice]]) -> Drawn:
    """One panel a model: steps downwards, tokens to the right, with the steps at which tokens are unmasked."""
    shown = [(model, choice.series) for model, choice in gathered if choice.series is not None]
    figure, axes = panels(len(shown), height=2.9)
    maps = [seen_by_enough(series) for _, series in shown]
    norm = share_norm(top=max((float(np.nanmax(one)) for one in maps if not np.isnan(one).all()), default=1.0))
    for axis, (model, series), shares in zip(axes, shown, maps, strict=True):
        mesh = axis.pcolormesh(
            np.arange(shares.shape[1] + 1) - 0.5,
            _step_edges(series.steps),
            np.ma.masked_invalid(shares),
            cmap=colour_map(HEAT),
            norm=norm,
            rasterized=True,
        )
        axis.set_ylim(*_step_edges(series.steps)[[-1, 0]])  # downwards
        axis.set_facecolor(BLANK)
        axis.set_title(f"{model.short}\n{series.place}")
        axis.set_xlabel("token index")
        axis.set_ylabel(model.step_word)
        _mark_prompt(axis, series)
        _mark_commits(axis, series)
    colour_bar(figure, mesh, axes=axes, label="attention received\n(fair shares; 1 = uniform)")
    _explain_marks(
        figure,
        masks=any(series.masked.any() for _, series in shown),
        blanks=any(bool(np.isnan(one).any()) for one in maps),
    )
    notes = [f"{model.label}: {series.place} ({chosen_by(series, sheet.focus)})" for model, series in shown]
    return sheet.finish(figure, _rows(shown), notes=[*notes, *(model.thinned for model, _ in shown)])


def _step_edges(steps: np.ndarray) -> np.ndarray:
    """Edges of the rows of a heat map, halfway between stored steps."""
    gaps = np.diff(steps) / 2 if len(steps) > 1 else np.array([0.5])
    return np.concatenate([[steps[0] - gaps[0]], steps[1:] - gaps[: len(steps) - 1], [steps[-1] + gaps[-1]]])


def _mark_prompt(axis: Any, series: HeadSeries) -> None:
    axis.axvline(series.canvases.prompt_length - 0.5, color="white", linestyle=(0, (4, 2)), linewidth=0.8)


def _mark_commits(axis: Any, series: HeadSeries) -> None:
    """A short line under every token at the step that unmasks it: what lies above was still masked."""
    step, position = np.nonzero(series.canvases.committed & series.canvases.masked)
    axis.hlines(step + 0.5, position - 0.5, position + 0.5, color="white", linewidth=0.6)


def _explain_marks(figure: Any, *, masks: bool, blanks: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks: list[Any] = [Line2D([], [], color="white", linestyle=(0, (4, 2)), linewidth=0.8, label="end of the prompt")]
    if masks:
        marks.append(Line2D([], [], color="white", linewidth=0.9, label="token unmasked (masked above)"))
    if blanks:
        marks.append(Patch(color=BLANK, label=f"seen by fewer than {MIN_VIEWERS} queries"))
    legend = figure.legend(
        handles=marks, loc="outside lower center", ncols=3 if figure.get_figwidth() > COLUMN else 1, frameon=True,
        facecolor="#3B4A6B", labelcolor="white", framealpha=1, fancybox=False,
    )  # fmt: skip
    legend.get_frame().set_linewidth(0)


def _rows(shown: Sequence[tuple[Model, HeadSeries]]) -> Iterator[dict[str, Any]]:
    for model, series in shown:
        ids = series.canvases.ids[series.steps]
        there = ids >= 0
        step, position = np.nonzero(there)
        fixed = {"model": model.label, "sample": model.sample, "layer": series.layer, "head": series.head}
        columns = {
            "step": series.steps[step],
            "position": position,
            "token_id": ids[there],
            "masked": series.masked[there],
            "queries_that_see_it": series.viewers[there],
            "received_fair_shares": series.share[there],
        }
        yield from columns_to_rows(fixed, columns)
