"""Accuracy against the number of keys hidden, and the square of cached and recomputed keys."""

from collections.abc import Sequence
from typing import Any

from sinklens.evaluation.conditions import CHOICES, counted
from sinklens.report.masking_grid import Entry, Line, Result, family_kind, grid_of, models_of, task_name
from sinklens.report.masking_marks import ACROSS, handle, hollow_handle, legend, mark_point, panel_grid, sign, spread
from sinklens.report.style import escape_missing, line_style

KEYS = ("cached", "recomputed")
UNMASKED = {"colour": "#000000", "marker": "D"}


def draw_accuracy(result: Result) -> Any | None:
    """Sinks and controls over the number of keys, one panel for each model and task; None without such cells.

    Hollow: a control whose dose is not that of the sinks beside it.
    """
    grid = grid_of(result)
    tops = sorted({one.top for one in grid.columns})
    if not any(tops):
        return None
    choices = [one for one in CHOICES if any(line.choose == one for lines in grid.blocks.values() for line in lines)]
    figure, axes = panel_grid(len(grid.tasks), len(grid.blocks), height=1.75)
    kinds = model_kinds(result)
    for axis, (task, model) in zip(axes, [(t, m) for t in grid.tasks for m in grid.blocks], strict=True):
        axis.set_title(f"{escape_missing(model)}\n{kinds[model]}, {escape_missing(task)}")
        _accuracy_panel(axis, grid.restricted([task]).blocks.get(model, ()), choices=choices, tops=tops)
    label_edges(axes, len(grid.blocks), across="keys hidden a head", up="answered right")
    handles = [handle(CHOICES[one][2], marker=sign(n), **line_style(n)) for n, one in enumerate(choices)]
    if 0 in tops:
        handles.append(handle("unmasked", color=UNMASKED["colour"], marker=UNMASKED["marker"], linestyle="none"))
    if grid.flagged:
        handles.append(hollow_handle())
    legend(figure, handles)
    return figure


def _accuracy_panel(axis: Any, lines: Sequence[Line], *, choices: Sequence[str], tops: Sequence[int]) -> None:
    everything = [cell for line in lines for cell in line.cells if cell is not None]
    unmasked = [cell["accuracy"] for cell in everything if cell["choose"] == "none"]
    for line in lines:
        number = choices.index(line.choose)
        cells = [cell for cell in line.cells if cell is not None and cell["choose"] != "none"]
        where = [tops.index(cell["top"]) + spread(number, len(choices)) for cell in cells]
        style = line_style(number)
        # All lines start at the untouched model, which has no key hidden.
        values = [one["value"] for one in [*unmasked, *(cell["accuracy"] for cell in cells)]]
        axis.plot([0.0] * len(unmasked) + where, values, **style)
        for x, cell in zip(where, cells, strict=True):
            mark_point(
                axis, x, cell["accuracy"], colour=style["color"], marker=sign(number), hollow=cell["dose_differs"]
            )
    for one in unmasked:
        mark_point(axis, 0.0, one, hollow=False, **UNMASKED)
    axis.set_xticks(range(len(tops)), [str(top) for top in tops])
    axis.set_xlim(-0.4, len(tops) - 0.6)
    axis.set_ylim(-0.02, 1.02)


def draw_square(result: Result) -> Any | None:
    """What hiding the sinks costs with keys cached and recomputed, one line a model; None where none has both.

    Hollow: a model whose doses differ between the two.
    """
    squares = {(task_name(result, one), one["top"]): one for one in result["squares"]}
    if not squares:
        return None
    tasks, tops = dict.fromkeys(task for task, _ in squares), sorted({top for _, top in squares})
    models = [model for model in models_of(result) if any(_side(one, model) for one in squares.values())]
    figure, axes = panel_grid(len(tasks), len(tops), height=1.75)
    for axis, place in zip(axes, [(task, top) for task in tasks for top in tops], strict=True):
        if place in squares:
            axis.set_title(f"{escape_missing(place[0])}\n{counted(place[1])}")
            _square_panel(axis, squares[place], models)
        else:
            axis.set_axis_off()
    label_edges(axes, len(tops), across="keys and values", up="sinks - unmasked\n(points)")
    kinds = model_kinds(result)
    names = [escape_missing(f"{model} ({kinds[model]})") for model in models]
    handles = [handle(name, marker=sign(n), **line_style(n)) for n, name in enumerate(names)]
    if any(one["dose_differs"] for square in squares.values() for one in square["within"]):
        handles.append(hollow_handle())
    legend(figure, handles)
    return figure


def _square_panel(axis: Any, square: Entry, models: Sequence[str]) -> None:
    axis.axhline(0, color="#888888", linewidth=0.6)
    flagged = {one["model"] for one in square["within"] if one["dose_differs"]}
    for number, model in enumerate(models):
        corners, style = _side(square, model), line_style(number)
        where = [KEYS.index(corner["keys"]) + spread(number, len(models)) for corner in corners]
        scaled = [
            {end: _in_points(corner["difference"][end]) for end in ("value", "low", "high")} for corner in corners
        ]
        axis.plot(where, [one["value"] for one in scaled], **style)
        for x, one in zip(where, scaled, strict=True):
            mark_point(axis, x, one, colour=style["color"], marker=sign(number), hollow=model in flagged)
    axis.set_xticks(range(len(KEYS)), KEYS)
    axis.set_xlim(-0.4, len(KEYS) - 0.6)


def _side(square: Entry, model: str) -> list[Entry]:
    return [corner for corner in square["corners"] if corner["model"] == model]


def _in_points(value: float | None) -> float | None:
    return None if value is None else 100 * value


def model_kinds(result: Result) -> dict[str, str]:
    return {family["model"]: family_kind(family["causal"]) for family in result["families"]}


def label_edges(axes: Sequence[Any], columns: int, *, across: str, up: str) -> None:
    """Words at the left of every row of panels, and below the last one."""
    in_a_row = min(columns, ACROSS)
    for place, axis in enumerate(axes):
        if place % columns % in_a_row == 0:
            axis.set_ylabel(up)
        if place >= len(axes) - in_a_row:
            axis.set_xlabel(across)
