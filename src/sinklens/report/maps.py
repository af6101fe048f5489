"""Figures 4 and 8: whole attention maps of one head at consecutive steps, where they were recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.report.heads import HeadChoice
from sinklens.report.numbers import columns_to_rows
from sinklens.report.scene import Drawn, Focus, Model, Sheet
from sinklens.report.style import ACROSS, BLANK, COLUMN, PAGE, colour_bar, colour_map, new_figure

ATTENTION = "attention (share of a query's attention)"


@dataclass(frozen=True, kw_only=True, eq=False)
class MapRun:
    """Maps of one head at up to three steps in a row."""

    layer: int
    head: int
    steps: tuple[int, ...]
    maps: tuple[Float[np.ndarray, "query key"], ...]


def stored_maps(model: Model) -> dict[tuple[int, int], dict[int, np.ndarray]]:
    """(layer, head) to step to map, of the model's sample; empty where none were recorded."""
    read = getattr(model.trace, "maps", None)
    by_head: dict[tuple[int, int], dict[int, np.ndarray]] = {}
    for step, layer, head, attention in read(model.sample) if read else ():
        by_head.setdefault((layer, head), {})[step] = attention
    return by_head


def draw_first(sheet: Sheet, gathered: Sequence[tuple[Model, HeadChoice]]) -> Drawn:
    """Figure 4: the first trace."""
    return _draw(sheet, gathered[:1])


def draw_others(sheet: Sheet, gathered: Sequence[tuple[Model, HeadChoice]]) -> Drawn:
    """Figure 8: the traces after the first, a row each."""
    if len(gathered) < 2:
        return sheet.skip("one trace was given: figure 4 shows it, figure 8 shows the traces after the first")
    return _draw(sheet, gathered[1:])


def _draw(sheet: Sheet, gathered: Sequence[tuple[Model, HeadChoice]]) -> Drawn:
    found = [(model, choice, _choose_run(stored_maps(model), sheet.focus)) for model, choice in gathered]
    notes = [_how_to_record(model, choice, sheet.focus) for model, choice, run in found if run is None]
    shown = [(model, run) for model, _, run in found if run is not None]
    if not shown:
        return sheet.skip(*notes)
    across = max(len(run.steps) for _, run in shown)
    figure = new_figure(width=COLUMN if across == 1 else PAGE, height=(0.5 + 6.2 / max(across, 2)) * len(shown))
    top = max(float(one.max()) for _, run in shown for one in run.maps)
    grid = figure.subplots(len(shown), across, squeeze=False)
    for line, (model, run) in zip(grid, shown, strict=True):
        for axis, step, attention in zip(line, run.steps, run.maps, strict=False):
            image = draw_map(axis, attention, top=top, causal=model.trace.causal)
            axis.set_title(f"{model.short}\nlayer {run.layer}, head {run.head}, {model.step_word} {step}", pad=9)
        line[0].set_ylabel("query (token index)")
        for unused in line[len(run.steps) :]:
            unused.set_axis_off()
    colour_bar(figure, image, axes=list(grid.flat), label=ATTENTION)
    return sheet.finish(figure, _rows(shown), notes=notes)


def draw_map(axis: Any, attention: Float[np.ndarray, "query key"], *, top: float, causal: bool) -> Any:
    """One map, with a mark above the column that receives most. Causal: keys a query may not see are blank."""
    from matplotlib.colors import PowerNorm

    queries, keys = attention.shape
    first = keys - queries  # with fewer queries than keys they are the last ones
    shown = np.ma.masked_array(attention, np.triu(np.ones((queries, keys), bool), first + 1) if causal else False)
    image = axis.imshow(
        shown, cmap=colour_map("viridis"), norm=PowerNorm(0.5, vmin=0, vmax=top), aspect="auto" if queries < 8 else 1,
        extent=(-0.5, keys - 0.5, keys - 0.5, first - 0.5), interpolation="none",
    )  # fmt: skip
    axis.set_facecolor(BLANK)
    most = int(attention.sum(axis=0).argmax())
    axis.plot([most], [1.025], "v", color="#D55E00", markersize=4, transform=axis.get_xaxis_transform(), clip_on=False)
    axis.set_xlabel("attended token (index)")
    return image


def _choose_run(stored: Mapping[tuple[int, int], Mapping[int, np.ndarray]], focus: Focus) -> MapRun | None:
    """The head with most maps; of its runs of three steps the one in which the brightest column moves farthest."""
    candidates = {
        place: maps
        for place, maps in stored.items()
        if focus.has(*place) and (focus.step is None or focus.step in maps)
    }
    if not candidates:
        return None
    (layer, head), maps = max(candidates.items(), key=lambda one: (len(one[1]), (-one[0][0], -one[0][1])))
    steps = sorted(maps)
    brightest = {step: int(maps[step].sum(axis=0).argmax()) for step in steps}
    runs = [steps[at : at + ACROSS] for at in range(max(1, len(steps) - ACROSS + 1))]
    runs = [run for run in runs if focus.step is None or focus.step in run]

    def travelled(run: list[int]) -> int:
        return sum(abs(brightest[after] - brightest[before]) for before, after in pairwise(run))

    run = max(runs, key=travelled)
    return MapRun(layer=layer, head=head, steps=tuple(run), maps=tuple(maps[step] for step in run))


def _how_to_record(model: Model, choice: HeadChoice, focus: Focus) -> str:
    """The option that would store the maps of the head of figure 1, around the step where its sink moves farthest."""
    series = choice.series
    if series is None:
        return f"{model.label}: no maps are stored"
    jumps = np.where(series.sink[1:] & series.sink[:-1], np.abs(np.diff(series.position)), 0)
    at = int(jumps.argmax()) if len(jumps) and focus.step is None else 0
    steps = [focus.step, focus.step + 1] if focus.step is not None else series.steps[at : at + 2].tolist()
    option = ",".join(f"{series.layer}.{series.head}@{step}" for step in steps)
    there = "no maps are stored" if not stored_maps(model) else "no map of what was asked for is stored"
    return f"{model.label}: {there}; record them with `sinklens trace ... --maps {option}`"


def _rows(shown: Sequence[tuple[Model, MapRun]]) -> Iterator[dict[str, Any]]:
    for model, run in shown:
        for step, attention in zip(run.steps, run.maps, strict=True):
            fixed = {"model": model.label, "sample": model.sample, "layer": run.layer, "head": run.head, "step": step}
            query, key = np.indices(attention.shape)
            query += attention.shape[1] - attention.shape[0]
            columns: dict[str, np.ndarray] = {
                "query": np.asarray(query),
                "key": np.asarray(key),
                "attention": attention,
            }
            yield from columns_to_rows(fixed, columns)
