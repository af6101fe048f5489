"""Panels, points with intervals and legends that the figures of a masking result share."""

from collections.abc import Mapping, Sequence
from typing import Any

from sinklens.report.style import COLUMN, MARKERS, PAGE, new_figure

DODGE = 0.09  # of the step between two places: points beside each other do not hide their intervals
SIGNS = (*MARKERS, "*")  # as many as there are choices of keys
ACROSS = 4  # panels in a row at most
CHARACTERS = 18  # of legend text to an inch, at its size
ENTRY = 0.16  # inches of height that a line of a legend takes


def panel_grid(rows: int, columns: int, *, height: float) -> tuple[Any, list[Any]]:
    """A figure with rows x columns panels, row by row; more columns than fit go on in a further row.

    The panels of a row share their vertical axis, so its numbers stand at the left alone.
    """
    across = min(columns, ACROSS)
    down = -(-columns // across) * rows
    width = COLUMN if across == 1 else PAGE
    figure = new_figure(width=width, height=height * down + 0.3)
    axes = figure.subplots(down, across, squeeze=False, sharey="row")
    used = []
    for row in range(rows):
        flat = [axis for line in axes[row * down // rows : (row + 1) * down // rows] for axis in line]
        for unused in flat[columns:]:
            unused.remove()
        used += flat[:columns]
    return figure, used


def spread(number: int, of: int) -> float:
    """How far the n-th line stands beside the place that all share."""
    return DODGE * (number - (of - 1) / 2)


def sign(number: int) -> str:
    """The marker of the n-th line."""
    return SIGNS[number % len(SIGNS)]


def mark_point(
    axis: Any, x: float, interval: Mapping[str, Any], *, colour: Any, marker: str, hollow: bool | None
) -> None:
    """A value and its interval, if it has one. Hollow: with the paper showing through."""
    if interval["low"] is not None:
        axis.vlines(x, interval["low"], interval["high"], color=colour, linewidth=0.9)
    face = "#FFFFFF" if hollow else colour
    size = 5.4 if marker == "*" else 3.8
    axis.plot(
        [x], [interval["value"]], marker=marker, markersize=size, markerfacecolor=face, markeredgecolor=colour,
        markeredgewidth=0.9, linestyle="none", clip_on=False, zorder=3,
    )  # fmt: skip


def handle(label: str, **style: Any) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, markersize=4, **style)


def hollow_handle() -> Any:
    """What a hollow point says."""
    return handle("hollow: dose differs", color="#444444", linestyle="none", marker="o", markerfacecolor="#FFFFFF")


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Below all panels, in as many columns as the width holds; the figure grows by what it takes."""
    width, height = figure.get_size_inches()
    widest = max(len(one.get_label()) for one in handles) / CHARACTERS + 0.6
    columns = max(1, min(len(handles), int(width / widest)))
    figure.set_size_inches(width, height + ENTRY * -(-len(handles) // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3.2)
