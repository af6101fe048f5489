"""The figure of a causal model's atlas: key norms against the attention of the next query, nine panels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.report.style import COLOURS, MARKERS, PAGE, colour_map, line_style, new_figure, save, styled

HEIGHT = 7.2  # inches
EDITS = {
    "peaks": "peaks, low-norm keys",
    "random": "random dims, same keys",
    "elsewhere": "peaks, other keys",
}
Entry = Mapping[str, Any]


def draw_key_norms(document: Entry, to: Path, *, name: str = "atlas") -> list[Path]:
    """PNG and SVG."""
    with styled():
        figure = new_figure(width=PAGE, height=HEIGHT)
        figure.suptitle(_title(document), fontsize=8)
        rows = figure.subfigures(3, 1)  # each with a layout of its own: colour bars of one row do not narrow another
        axes = [row.subplots(1, 3) for row in rows]
        _maps(axes, document["heads"])
        _correlation(axes[1][1], document["layers"])
        _between(axes[1][2], document["between_layers"])
        _curves(axes[2][0], document["curves"])
        _kept(axes[2][1], document["layers"])
        _probe(axes[2][2], document["peaks"])
        return save(figure, to, name=name)


def _title(document: Entry) -> str:
    decides = document["decides"]
    return f"{decides['model']['name']}: {document['units']} chunks of {decides['tokens']} tokens"


def _maps(axes: Any, heads: Sequence[Entry]) -> None:
    from matplotlib.colors import TwoSlopeNorm

    ratio = TwoSlopeNorm(vmin=0.0, vcenter=1.0, vmax=2.0)
    around = TwoSlopeNorm(vmin=-1.0, vcenter=0.0, vmax=1.0)
    for axis, column, title, look, norm in (
        (axes[0][0], "alr", "a  ALR", "viridis", None),
        (axes[0][1], "ratio", "b  ALR / expected", "RdBu_r", ratio),
        (axes[0][2], "ratio_rest", "c  the same without position 0", "RdBu_r", ratio),
        (axes[1][0], "next", "d  Spearman, key norm and attention", "RdBu_r", around),
    ):
        image = axis.imshow(grid(heads, column), aspect="auto", origin="upper", cmap=colour_map(look), norm=norm)
        colours(image, axis, label="0 oracle, 1 chance" if norm is ratio else "", past=norm is ratio)
        axis.set_title(title, loc="left")
        whole_ticks(axis)
        axis.set_xlabel("head (grey: too flat)" if norm is ratio else "head")
        axis.set_ylabel("layer")


def colours(image: Any, axis: Any, *, label: str = "", past: bool = False) -> None:
    """A bar beside one panel. past: values above its end are there."""
    bar = axis.figure.colorbar(image, ax=axis, aspect=18, pad=0.03, extend="max" if past else None)
    bar.outline.set_linewidth(0.4)
    bar.set_label(label, fontsize=7)
    if not past and image.norm.vmin == -1.0:
        bar.set_ticks([-1, -0.5, 0, 0.5, 1])
    if past:
        bar.set_ticks([0, 0.5, 1, 1.5, 2])


def grid(heads: Sequence[Entry], column: str) -> Any:
    """[layer, head]; NaN where there is no value."""
    rows, columns = (1 + max(one[name] for one in heads) for name in ("layer", "head"))
    found = np.full((rows, columns), np.nan)
    for one in heads:
        entry = one[column]
        if entry is not None and entry["value"] is not None:
            found[one["layer"], one["head"]] = entry["value"]
    return found


def _correlation(axis: Any, layers: Sequence[Entry]) -> None:
    for number, (column, label) in enumerate(
        (("next", "key, next query"), ("received", "key, received"), ("value", "value, received"))
    ):
        band(axis, layers, column, number=number, label=label)
    _chance(axis, layers, "next")
    axis.axhline(0.0, color="#666666", linewidth=0.6)
    room_above(axis, 0.35)
    axis.legend(loc="upper left", handlelength=2.2, labelspacing=0.2, borderpad=0.1)
    axis.set_title("e  Spearman by layer", loc="left")
    axis.set_xlabel("layer")
    axis.set_ylabel("mean over heads")


def _chance(axis: Any, layers: Sequence[Entry], column: str) -> None:
    """Where random orders of the tokens put it."""
    known = [one for one in layers if one["null"][column]["low"] is not None]
    places = [one["layer"] for one in known]
    low, high = ([one["null"][column][end] for one in known] for end in ("low", "high"))
    axis.fill_between(places, low, high, color="#BBBBBB", alpha=0.6, linewidth=0, label="chance (key, next)")


def band(axis: Any, rows: Sequence[Entry], column: str, *, number: int, label: str, scale: float = 1.0) -> None:
    """A line over layers, with its interval."""
    from matplotlib.ticker import MaxNLocator

    known = [one for one in rows if one[column]["value"] is not None]
    places, values = [one["layer"] for one in known], [scale * one[column]["value"] for one in known]
    axis.plot(places, values, marker=MARKERS[number], markersize=2.5, label=label, **line_style(number))
    ends = [(one[column]["low"], one[column]["high"]) for one in known]
    if all(low is not None for low, _ in ends):
        low, high = ([scale * pair[end] for pair in ends] for end in (0, 1))
        axis.fill_between(places, low, high, color=COLOURS[number], alpha=0.2, linewidth=0)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _between(axis: Any, matrix: Sequence[Sequence[float | None]]) -> None:
    from matplotlib.colors import TwoSlopeNorm

    values = np.array([[np.nan if one is None else one for one in row] for row in matrix])
    norm = TwoSlopeNorm(vmin=-1.0, vcenter=0.0, vmax=1.0)
    image = axis.imshow(values, cmap=colour_map("RdBu_r"), norm=norm, aspect="auto", origin="upper")
    colours(image, axis)
    axis.set_title("f  Received, layer against layer", loc="left")
    whole_ticks(axis)
    axis.set_xlabel("layer")
    axis.set_ylabel("layer")


def _curves(axis: Any, curves: Sequence[Entry]) -> None:
    for number, one in enumerate(curves):
        places = range(len(one["loss"]))
        style = {"color": COLOURS[number], "linewidth": 1.2}
        axis.plot(places, one["loss"], label=f"{one['layer']}.{one['head']}, {one['which']}", **style)
        axis.plot(places, one["oracle"], linestyle=(0, (1.2, 1)), **style)
    axis.plot([], [], color="#666666", linestyle=(0, (1.2, 1)), label="oracle")
    axis.set_xlim(0, 100)
    axis.set_ylim(0, 1.45)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axis.legend(loc="upper left", ncols=2, handlelength=1.5, labelspacing=0.2, columnspacing=0.6, borderpad=0.1)
    axis.set_title("g  Attention lost by heads (by b)", loc="left")
    axis.set_xlabel("keys dropped (%)")
    axis.set_ylabel("attention lost")


def _kept(axis: Any, layers: Sequence[Entry]) -> None:
    for number, (column, label) in enumerate(
        (("kept", "smallest norms"), ("kept_rest", "without 0"), ("kept_oracle", "best half"))
    ):
        band(axis, layers, column, number=number, label=label, scale=100.0)
    axis.axhline(50.0, color="#666666", linewidth=0.8, linestyle=(0, (4, 2)), label="chance")
    axis.set_ylim(0, 145)
    axis.set_yticks([0, 25, 50, 75, 100])
    axis.legend(loc="upper left", ncols=2, handlelength=1.8, labelspacing=0.2, columnspacing=0.6, borderpad=0.1)
    axis.set_title("h  Attention kept by half of the keys", loc="left")
    axis.set_xlabel("layer")
    axis.set_ylabel("attention (%)")


def _probe(axis: Any, edits: Sequence[Entry]) -> None:
    """Change of attention to the right, change of loss upwards; one mark an edit."""
    for number, one in enumerate(edits):
        across, up = one["change"], one["nll_change"]
        axis.errorbar(
            [across["value"]], [up["value"]], xerr=_reach(across), yerr=_reach(up), marker=MARKERS[number],
            color=COLOURS[number], markersize=4, elinewidth=0.8, capsize=1.5, linestyle="none",
            label=EDITS[one["edit"]],
        )  # fmt: skip
    axis.axhline(0.0, color="#666666", linewidth=0.6)
    axis.set_xlim(left=0.0)
    room_above(axis, 0.45)
    axis.legend(loc="upper left", handlelength=1.2, labelspacing=0.2, borderpad=0.1)
    axis.set_title("i  Entries of cached keys set to 0", loc="left")
    axis.set_xlabel("attention moved (share)")
    axis.set_ylabel("change of loss (nats)")


def _reach(entry: Entry) -> list[list[float]] | None:
    if entry["low"] is None:
        return None
    return [[max(0.0, entry["value"] - entry["low"])], [max(0.0, entry["high"] - entry["value"])]]


def room_above(axis: Any, share: float) -> None:
    """For a legend: the axis grows by this share of its height."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + share * (high - low))


def whole_ticks(axis: Any) -> None:
    """Layers and heads are numbers without halves."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(6, integer=True))
