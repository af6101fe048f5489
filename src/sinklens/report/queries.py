"""Figure 6a: masked and unmasked queries look at different sinks in the same step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinklens.report.maps import ATTENTION, draw_map, stored_maps
from sinklens.report.numbers import columns_to_rows
from sinklens.report.scene import Drawn, Focus, Model, Sheet
from sinklens.report.style import BLANK, COLOURS, COLUMN, PAGE, new_figure, printable
from sinklens.sinks.arrays import Canvases, LayerArrays, Received
from sinklens.sinks.detect import MIN_VIEWERS, excess

GROUPS = ("unmasked", "masked")


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One head at one step, seen by the queries of each group."""

    layer: int
    head: int
    step: int
    canvases: Canvases
    share: dict[str, Float[np.ndarray, " key"]]  # fair shares, by group
    sink: dict[str, int]  # position of the greatest sink, by group

    @property
    def masked(self) -> Bool[np.ndarray, " key"]:
        masked: np.ndarray = self.canvases.masked[self.step]
        return masked

    def token(self, group: str) -> str:
        return printable(self.canvases.label(int(self.canvases.ids[self.step, self.sink[group]])))


class SplitChoice:
    """Keeps the head and step at which the two groups differ most.

    Each group must have a sink of its own, more than epsilon above the others in its own fair shares, at different
    places. How much they differ: by how many fair shares each sink is stronger for its own group; the smaller one.
    """

    groups = True

    def __init__(self, model: Model, focus: Focus) -> None:
        self._model = model
        self._focus = focus
        self._best = 0.0
        self.recorded = False
        self.split: Split | None = None

    def wants(self, sample: int, layer: int) -> bool:
        return sample == self._model.sample and not self._model.trace.causal and self._focus.has(layer)

    def add(self, layer: LayerArrays, canvases: Canvases) -> None:
        if not set(GROUPS) <= set(layer.groups):
            return
        self.recorded = True
        readings = {name: layer.groups[name] for name in GROUPS}
        above = {name: _eligible_excess(one) for name, one in readings.items()}
        main = {name: one.argmax(axis=-1)[..., None] for name, one in above.items()}
        differ = np.full(layer.received.shape[:2], np.inf)
        for own, other in (GROUPS, GROUPS[::-1]):
            here, there = (np.take_along_axis(above[name], main[own], axis=-1)[..., 0] for name in (own, other))
            differ = np.minimum(differ, np.where(here > self._focus.epsilon, here - np.maximum(there, 0), 0))
        heads, steps = layer.heads.tolist(), layer.steps.tolist()
        asked = np.array([[self._focus.has(layer.layer, head, step) for head in heads] for step in steps])
        differ = np.where((main["masked"] != main["unmasked"])[..., 0] & asked, differ, 0)
        at = np.unravel_index(differ.argmax(), differ.shape)
        if differ[at] > self._best:
            self._best = float(differ[at])
            self.split = Split(
                layer=layer.layer,
                head=heads[at[1]],
                step=steps[at[0]],
                canvases=canvases,
                share={name: one.fair_share[at].copy() for name, one in readings.items()},
                sink={name: int(one[at][0]) for name, one in main.items()},
            )


def _eligible_excess(reading: Received) -> Float[np.ndarray, "step head key"]:
    above = excess(reading.received, reading.expected)
    return np.where(~np.isnan(above) & (reading.viewers >= MIN_VIEWERS), above, -np.inf)


def draw(sheet: Sheet, gathered: Sequence[tuple[Model, SplitChoice]]) -> Drawn:
    """A column a model: what unmasked queries give to every token, what masked ones give, and the map if stored."""
    shown = [(model, choice.split) for model, choice in gathered if choice.split is not None]
    notes = [_why_not(model, choice, sheet.focus) for model, choice in gathered if choice.split is None]
    if not shown:
        return sheet.skip(*notes)
    maps = [stored_maps(model).get((split.layer, split.head), {}).get(split.step) for model, split in shown]
    with_maps = any(one is not None for one in maps)
    width = COLUMN if len(shown) == 1 else max(PAGE, 2.3 * len(shown))
    figure = new_figure(width=width, height=5.9 if with_maps else 3.2)
    ratios = [1, 1, 2.6] if with_maps else [1, 1]
    columns = figure.subplots(len(ratios), len(shown), squeeze=False, height_ratios=ratios).T
    for (model, split), attention, column in zip(shown, maps, columns, strict=True):
        for number, (axis, group) in enumerate(zip(column, GROUPS, strict=False)):
            _profile(axis, split, group, colour=COLOURS[number])
        column[1].set_xlabel("token index")
        place = f"{model.short}\nlayer {split.layer}, head {split.head}\n{model.step_word} {split.step}"
        column[0].set_title(f"{place}\n{column[0].get_title(loc='left')}", loc="left")
        if attention is not None:
            image = draw_map(column[2], attention, top=float(attention.max()), causal=False)
            column[2].set_ylabel("query (token index)")
            figure.colorbar(image, ax=column[2], location="bottom", aspect=30, label=ATTENTION)
        elif with_maps:
            column[2].remove()
    explain_shading(figure, masks=True)
    notes += [_map_option(model, split) for (model, split), one in zip(shown, maps, strict=True) if one is None]
    return sheet.finish(figure, _rows(shown), notes=notes)


def _profile(axis: Any, split: Split, group: str, *, colour: str) -> None:
    share = split.share[group]
    keys = np.arange(len(share) + 1) - 0.5
    axis.stairs(np.nan_to_num(share), keys, fill=True, color=colour, linewidth=0)
    shade(axis, split.masked)
    axis.axhline(1, color="#444444", linewidth=0.5, linestyle=":")
    axis.set_title(f"{group} queries: {split.sink[group]} “{split.token(group)}”", loc="left")
    axis.set_xlim(keys[0], keys[-1])
    axis.set_ylim(bottom=0)
    axis.set_ylabel("attention received\n(fair shares)", fontsize=7)


def shade(axis: Any, masked: Bool[np.ndarray, " key"]) -> None:
    """A grey ground behind the tokens that are still masked."""
    keys = np.arange(len(masked) + 1) - 0.5
    axis.stairs(
        masked.astype(float), keys, fill=True, color=BLANK, linewidth=0, zorder=0, transform=axis.get_xaxis_transform()
    )


def explain_shading(figure: Any, *, masks: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Line2D([], [], color="#444444", linewidth=0.5, linestyle=":", label="uniform attention")]
    if masks:
        handles.append(Patch(color=BLANK, label="token still masked"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


def _why_not(model: Model, choice: SplitChoice, focus: Focus) -> str:
    if model.trace.causal:
        return f"{model.label} is autoregressive: it has no masked queries"
    if not choice.recorded:
        return f"{model.label}: the trace does not tell masked from unmasked queries"
    asked = "" if focus == Focus(epsilon=focus.epsilon) else " where it was asked for"
    return (
        f"{model.label}: at no step do masked and unmasked queries have different sinks{asked} "
        f"(epsilon {focus.epsilon:g}, {MIN_VIEWERS} queries of each kind or more)"
    )


def _map_option(model: Model, split: Split) -> str:
    return (
        f"{model.label}: to see the map as well, record it with "
        f"`sinklens trace ... --maps {split.layer}.{split.head}@{split.step}`"
    )


def _rows(shown: Sequence[tuple[Model, Split]]) -> Iterator[dict[str, Any]]:
    for model, split in shown:
        fixed = {
            "model": model.label,
            "sample": model.sample,
            "layer": split.layer,
            "head": split.head,
            "step": split.step,
        }
        there = split.canvases.ids[split.step] >= 0
        columns = {
            "position": np.flatnonzero(there),
            "token_id": split.canvases.ids[split.step][there],
            "masked": split.masked[there],
        }
        for group in GROUPS:
            columns[f"received_from_{group}_fair_shares"] = split.share[group][there]
        yield from columns_to_rows(fixed, columns)
