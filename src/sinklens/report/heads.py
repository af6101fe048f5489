"""The one head that figures 1 and 7 follow, and its main sink over the steps.

The head is the one with the strongest moving main sink. Of every head: at how many steps does its main sink stand
elsewhere than where it most often stands, yet within two tokens of its place at a step next to that one, so that a
leader that changes at random does not count? A head for which this holds at a quarter of its steps is called moving;
among the moving heads the largest excess, averaged over steps and counted only where the sink has moved, wins. If no
head moves, as in many autoregressive models, the head with the largest mean excess is taken.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.report.scene import Focus, Model
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS, excess
from sinklens.sinks.profile import main_sink

STRIDE = 2  # tokens: a sink this near to its last place is the same, moving
MOVING = 0.25  # share of the steps


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadSeries:
    """One head of one sample over the stored steps."""

    layer: int
    head: int
    canvases: Canvases
    moving: bool
    steps: Int[np.ndarray, " step"]
    share: Float[np.ndarray, "step key"]  # fair shares; NaN: no such token
    viewers: Float[np.ndarray, "step key"]
    position: Int[np.ndarray, " step"]  # of the main sink; -1: no token that enough queries see
    sink: Bool[np.ndarray, " step"]  # whether it exceeds the others by more than epsilon

    @property
    def masked(self) -> Bool[np.ndarray, "step key"]:
        """The mask state at the stored steps."""
        masked: np.ndarray = self.canvases.masked[self.steps]
        return masked

    @property
    def place(self) -> str:
        return f"layer {self.layer}, head {self.head}"


class HeadChoice:
    """Keeps the head to follow, so that its layer need not be read again."""

    groups = False

    def __init__(self, model: Model, focus: Focus) -> None:
        self._model = model
        self._focus = focus
        self._rank = (False, -np.inf)
        self.series: HeadSeries | None = None

    def wants(self, sample: int, layer: int) -> bool:
        return sample == self._model.sample and self._focus.has(layer)

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        position = main_sink(layer).position
        above = _main_excess(layer, position)
        sink = above > self._focus.epsilon
        for index, head in enumerate(layer.heads.tolist()):
            if not self._focus.has(layer.layer, head):
                continue
            counted = np.where(sink[:, index], above[:, index], 0.0)
            moved = _moved(position[:, index], sink[:, index])
            moving = bool(moved.mean() >= MOVING)
            rank = (moving, float((counted * moved).mean() if moving else counted.mean()))
            if self.series is None or rank > self._rank:
                self._rank = rank
                self.series = _series(layer, index, canvases, position=position, sink=sink, moving=moving)


def _main_excess(layer: LayerArrays, position: Int[np.ndarray, "step head"]) -> Float[np.ndarray, "step head"]:
    """By how many fair shares the main sink exceeds the others; -inf where there is none."""
    over = excess(layer.received, layer.expected, viewers=layer.viewers)
    at_main = np.take_along_axis(over, np.maximum(position, 0)[..., None], axis=-1)[..., 0]
    return np.where((position >= 0) & ~np.isnan(at_main), at_main, -np.inf)


def _moved(position: Int[np.ndarray, " step"], sink: Bool[np.ndarray, " step"]) -> Bool[np.ndarray, " step"]:
    """Steps at which the main sink is away from its most frequent place, and near its place a step before or after."""
    if not sink.any():
        return np.zeros_like(sink)
    home = np.bincount(position[sink]).argmax()
    near = (np.abs(np.diff(position)) <= STRIDE) & sink[1:] & sink[:-1]
    steady = np.append(near, False) | np.append(False, near)
    return np.asarray(sink & steady & (position != home))


def _series(
    layer: LayerArrays, index: int, canvases: Canvases, *, position: np.ndarray, sink: np.ndarray, moving: bool
) -> HeadSeries:
    viewers = layer.viewers[:, min(index, layer.viewers.shape[1] - 1)]
    return HeadSeries(
        layer=layer.layer,
        head=int(layer.heads[index]),
        canvases=canvases,
        moving=moving,
        steps=layer.steps,
        share=layer.fair_share[:, index].copy(),
        viewers=viewers.copy(),
        position=position[:, index].copy(),
        sink=sink[:, index].copy(),
    )


def chosen_by(series: HeadSeries, focus: Focus) -> str:
    """Why this head is shown."""
    if focus.layer is not None and focus.head is not None:
        return "as asked"
    return "strongest moving main sink" if series.moving else "strongest main sink, none moves"


def seen_by_enough(series: HeadSeries) -> Float[np.ndarray, "step key"]:
    """Fair shares of the tokens that enough queries see.

    In causal attention the newest tokens are seen by a few queries only; one of these looking at itself gives a large
    fair share that says nothing about a sink.
    """
    return np.where(series.viewers >= MIN_VIEWERS, series.share, np.nan)
