"""Figure 6b: a sink that lives for one step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.report.numbers import columns_to_rows
from sinklens.report.queries import explain_shading, shade
from sinklens.report.scene import Drawn, Focus, Model, Sheet
from sinklens.report.style import COLOURS, COLUMN, PAGE, new_figure, printable
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.track import TrackRule, track_layer

THINNED_FROM = 2.0  # epsilon from which tracks of a trace of detail "sinks" are right


@dataclass(frozen=True, kw_only=True, eq=False)
class Flicker:
    """One head at the step of the flicker, the stored step before it and the one after."""

    layer: int
    head: int
    position: int
    canvases: Canvases
    steps: Int[np.ndarray, "3"]
    share: Float[np.ndarray, "3 key"]  # fair shares

    @property
    def token(self) -> str:
        return printable(self.canvases.label(int(self.canvases.ids[self.steps[1], self.position])))


class FlickerChoice:
    """Keeps the flicker that stands out most: its fair share, less the greater one of the steps beside it."""

    groups = False

    def __init__(self, model: Model, focus: Focus) -> None:
        self._model = model
        self._focus = focus
        self._best = 0.0
        self.possible = model.trace.detail == "full" or focus.epsilon >= THINNED_FROM
        self.flicker: Flicker | None = None

    def wants(self, sample: int, layer: int) -> bool:
        return self.possible and sample == self._model.sample and self._focus.has(layer)

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        share = layer.fair_share
        flickers: dict[int, set[tuple[int, int]]] = {}  # of the heads that were followed: following is the slow part
        for at, index, position in self._candidates(layer, share):
            if index not in flickers:
                flickers[index] = _followed(layer, index, canvases, epsilon=self._focus.epsilon)
            if (int(layer.steps[at]), position) in flickers[index]:
                self._best = _stands_out(share, at, index, position)
                self.flicker = Flicker(
                    layer=layer.layer,
                    head=int(layer.heads[index]),
                    position=position,
                    canvases=canvases,
                    steps=layer.steps[at - 1 : at + 2],
                    share=share[at - 1 : at + 2, index].copy(),
                )
                return

    def _candidates(
        self, layer: LayerArrays, share: Float[np.ndarray, "step head key"]
    ) -> Iterator[tuple[int, int, int]]:
        """(index of the step, index of the head, position) that could beat what was found, the best first.

        A flicker is above epsilon in one step and not above half of it in the steps beside: a step of a moving sink may
        be so too, which only following it can tell.
        """
        above = layer.excess
        low = ~(above > self._focus.epsilon / 2)
        there = ~np.isnan(above)  # a token that comes or goes with the step is no flicker
        short = (above[1:-1] > self._focus.epsilon) & (low & there)[:-2] & (low & there)[2:]
        short &= (layer.viewers >= MIN_VIEWERS)[1:-1]
        at, index, position = np.nonzero(short)
        at += 1
        contrast = _stands_out(share, at, index, position)
        for one in np.argsort(-contrast, kind="stable").tolist():
            place = int(at[one]), int(index[one]), int(position[one])
            if contrast[one] <= self._best:
                return
            if self._focus.has(layer.layer, int(layer.heads[place[1]]), int(layer.steps[place[0]])):
                yield place


def _stands_out(share: Float[np.ndarray, "step head key"], at: Any, index: Any, position: Any) -> Any:
    return share[at, index, position] - np.maximum(share[at - 1, index, position], share[at + 1, index, position])


def _followed(layer: LayerArrays, index: int, canvases: Canvases, *, epsilon: float) -> set[tuple[int, int]]:
    """Step and position of every flicker of one head."""
    head = layer.one_head(index)
    tracks = track_layer(head, canvases, rule=TrackRule(epsilon=epsilon)).tracks.select(["kind", "birth", "positions"])
    return {(one["birth"], one["positions"][0]) for one in tracks.to_pylist() if one["kind"] == "flicker"}


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, FlickerChoice]]) -> Drawn:
    """A column a model: attention received at three steps in a row, with a mark at the place of the flicker."""
    shown = [(model, choice.flicker) for model, choice in gathered if choice.flicker is not None]
    notes = [_why_not(model, choice, sheet.focus) for model, choice in gathered if choice.flicker is None]
    if not shown:
        return sheet.skip(*notes)
    figure = new_figure(width=COLUMN if len(shown) == 1 else max(PAGE, 2.3 * len(shown)), height=4.2)
    columns = figure.subplots(3, len(shown), squeeze=False, sharex="col", sharey="col").T
    for (model, flicker), column in zip(shown, columns, strict=True):
        _panels(column, model, flicker)
    explain_shading(figure, masks=any(flicker.canvases.masked.any() for _, flicker in shown))
    return sheet.finish(figure, _rows(shown), notes=notes)


def _panels(column: Any, model: Model, flicker: Flicker) -> None:
    keys = np.arange(flicker.share.shape[1] + 1) - 0.5
    for axis, step, share in zip(column, flicker.steps.tolist(), flicker.share, strict=True):
        axis.stairs(np.nan_to_num(share), keys, fill=True, color=COLOURS[0], linewidth=0)
        shade(axis, flicker.canvases.masked[step])
        axis.axhline(1, color="#444444", linewidth=0.5, linestyle=":")
        axis.plot(
            [flicker.position], [1.06], "v", color=COLOURS[1], markersize=4, transform=axis.get_xaxis_transform(),
            clip_on=False,
        )  # fmt: skip
        axis.set_title(f"{model.step_word} {step}", loc="left", pad=9)
        axis.set_ylabel("attention received\n(fair shares)", fontsize=7)
    column[0].set_xlim(keys[0], keys[-1])
    column[0].set_ylim(0, 1.05 * float(np.nanmax(flicker.share)))
    column[-1].set_xlabel("token index")
    place = f"layer {flicker.layer}, head {flicker.head}\nsink at {flicker.position} “{flicker.token}”"
    column[0].set_title(f"{model.short}\n{place}\n{column[0].get_title(loc='left')}", loc="left", pad=9)


def _why_not(model: Model, choice: FlickerChoice, focus: Focus) -> str:
    if not choice.possible:
        return (
            f"{model.label}: its trace has detail 'sinks', where tracks need epsilon {THINNED_FROM:g} or more; "
            "raise epsilon, or record one with `sinklens trace ... --detail full`"
        )
    asked = "" if focus == Focus(epsilon=focus.epsilon) else " where it was asked for"
    return f"{model.label}: no sink lives for one step only{asked} (epsilon {focus.epsilon:g})"


def _rows(shown: Sequence[tuple[Model, Flicker]]) -> Iterator[dict[str, Any]]:
    for model, flicker in shown:
        for step, share in zip(flicker.steps.tolist(), flicker.share, strict=True):
            there = flicker.canvases.ids[step] >= 0
            position = np.flatnonzero(there)
            fixed = {
                "model": model.label,
                "sample": model.sample,
                "layer": flicker.layer,
                "head": flicker.head,
                "step": step,
            }
            columns = {
                "position": position,
                "token_id": flicker.canvases.ids[step][there],
                "masked": flicker.canvases.masked[step][there],
                "flicker": (position == flicker.position) & (step == flicker.steps[1]),
                "received_fair_shares": share[there],
            }
            yield from columns_to_rows(fixed, columns)
