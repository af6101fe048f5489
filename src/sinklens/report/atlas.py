"""The figure of a diffusion model's atlas: norms against attention received, by layer, head, step and kind of token."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.report.key_norms import room_above, whole_ticks
from sinklens.report.style import COLOURS, MARKERS, PAGE, colour_map, line_style, new_figure, save, styled

HEIGHT = 8.6  # inches
KINDS = ("prompt", "committed", "masked")
NORMS = {"key": "key norm", "value": "value norm"}
Entry = Mapping[str, Any]


def draw_atlas(document: Entry, to: Path, *, name: str = "atlas") -> list[Path]:
    """PNG and SVG."""
    entries = {(one["kind"], one["norm"]): one for one in document["kinds"]}
    with styled():
        figure = new_figure(width=PAGE, height=HEIGHT)
        figure.suptitle(_title(document), fontsize=8)
        above, below = figure.subfigures(2, 1, height_ratios=(4, 1.15))  # each with a layout of its own
        axes = above.subplots(4, 3)
        image = None
        for row, norm in ((0, "key"), (2, "value")):
            for column, kind in enumerate(KINDS):
                entry = entries.get((kind, norm))
                image = _heads(axes[row][column], entry, f"{kind}, {NORMS[norm]}: by head") or image
                _steps(axes[row + 1][column], entry, f"{kind}, {NORMS[norm]}: by step")
        for axis in axes[:, 0]:
            axis.set_ylabel("layer")
        if image is not None:
            bar = above.colorbar(image, ax=axes, shrink=0.5, aspect=40, label="Spearman (grey: not defined)")
            bar.outline.set_linewidth(0.4)
        lower = below.subplots(1, 3)
        for column, norm in enumerate(NORMS):
            _layers(lower[column], entries, norm)
        _kept(lower[2], entries)
        return save(figure, to, name=name)


def _title(document: Entry) -> str:
    name, units = document["decides"]["model"]["name"], document["units"]
    return f"{name}: rank correlation of norm and attention received, {units} prompts"


def _around() -> Any:
    from matplotlib.colors import TwoSlopeNorm

    return TwoSlopeNorm(vmin=-1.0, vcenter=0.0, vmax=1.0)


def _heads(axis: Any, entry: Entry | None, title: str) -> Any:
    """Layer by head, mean over steps; gives the image."""
    axis.set_title(title, loc="left")
    axis.set_xlabel("head")
    if entry is None:
        return _nothing(axis)
    values = np.array([[_value(head["value"]) for head in layer] for layer in entry["heads"]])
    image = axis.imshow(values, aspect="auto", origin="upper", cmap=colour_map("RdBu_r"), norm=_around())
    whole_ticks(axis)
    return image


def _steps(axis: Any, entry: Entry | None, title: str) -> None:
    """Layer by step, mean over heads."""
    axis.set_title(title, loc="left")
    axis.set_xlabel("step")
    if entry is None:
        _nothing(axis)
        return
    values = np.array([[_value(one) for one in layer] for layer in entry["layers_by_step"]])
    axis.imshow(values, aspect="auto", origin="upper", cmap=colour_map("RdBu_r"), norm=_around())
    whole_ticks(axis)


def _layers(axis: Any, entries: Mapping[tuple[str, str], Entry], norm: str) -> None:
    """By layer with intervals, and the widest band of chance."""
    from matplotlib.ticker import MaxNLocator

    for number, kind in enumerate(KINDS):
        entry = entries.get((kind, norm))
        if entry is None:
            continue
        known = [(layer, one) for layer, one in enumerate(entry["layers"]) if one["value"] is not None]
        places = [layer for layer, _ in known]
        axis.plot(
            places, [one["value"] for _, one in known], marker=MARKERS[number], markersize=2.5, label=kind,
            **line_style(number),
        )  # fmt: skip
        if all(one["low"] is not None for _, one in known):
            low, high = ([one[end] for _, one in known] for end in ("low", "high"))
            axis.fill_between(places, low, high, color=COLOURS[number], alpha=0.2, linewidth=0)
    _chance(axis, [entries[kind, norm] for kind in KINDS if (kind, norm) in entries])
    axis.axhline(0.0, color="#666666", linewidth=0.6)
    room_above(axis, 0.4)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.legend(loc="upper left", ncols=2, handlelength=1.6, labelspacing=0.2, columnspacing=0.6, borderpad=0.1)
    axis.set_title(f"{NORMS[norm]}, by layer", loc="left")
    axis.set_xlabel("layer")
    axis.set_ylabel("Spearman")


def _chance(axis: Any, entries: Sequence[Entry]) -> None:
    """Where random orders of the tokens put a layer: of the kinds, the widest."""
    layers = len(entries[0]["layers_null"]) if entries else 0
    bands = [[entry["layers_null"][layer] for entry in entries] for layer in range(layers)]
    known = [(layer, [one for one in some if one["low"] is not None]) for layer, some in enumerate(bands)]
    known = [(layer, some) for layer, some in known if some]
    axis.fill_between(
        [layer for layer, _ in known], [min(one["low"] for one in some) for _, some in known],
        [max(one["high"] for one in some) for _, some in known], color="#BBBBBB", alpha=0.6, linewidth=0,
        label="chance",
    )  # fmt: skip


def _kept(axis: Any, entries: Mapping[tuple[str, str], Entry]) -> None:
    """What the half of smallest norm receives."""
    shown = [(kind, norm) for norm in NORMS for kind in KINDS if (kind, norm) in entries]
    for place, (kind, norm) in enumerate(shown):
        kept = entries[kind, norm]["kept"]
        colour = COLOURS[KINDS.index(kind)]
        axis.barh([place], [100 * (kept["value"] or 0.0)], height=0.65, color=colour, alpha=0.55)
        if kept["low"] is not None:
            axis.plot([100 * kept["low"], 100 * kept["high"]], [place, place], color="black", linewidth=0.9)
    axis.axvline(50.0, color="#666666", linewidth=0.8, linestyle=(0, (4, 2)))
    axis.set_yticks(range(len(shown)), [f"{norm}, {kind}" for kind, norm in shown])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_title("the half of smallest norm gets", loc="left")
    axis.set_xlabel("attention (%); dashed: chance")


def _nothing(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.text(0.5, 0.5, "too few tokens", transform=axis.transAxes, ha="center", va="center", fontsize=7)


def _value(one: float | None) -> float:
    return float("nan") if one is None else one
