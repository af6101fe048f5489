"""A threshold in place of a number of keys: accuracy, and keys hidden, against epsilon."""

from collections.abc import Sequence
from typing import Any

from sinklens.report.masking_grid import Entry, Result, models_of, task_name
from sinklens.report.masking_marks import handle, legend, mark_point, panel_grid, sign, spread
from sinklens.report.style import escape_missing, line_style


def threshold_cells(family: Entry) -> list[Entry]:
    """Sinks above a threshold, with the family's own settings, in ascending order."""
    found = [cell for cell in family["cells"] if cell["choose"] == "sinks" and cell["plain"]]
    return sorted((cell for cell in found if cell["epsilon"] is not None), key=lambda cell: cell["epsilon"])


def draw_thresholds(result: Result) -> Any | None:
    """Two rows of panels, a column for each task, a line for each model; the untouched model stands at the right."""
    swept: dict[str, dict[str, list[Entry]]] = {}
    for family in result["families"]:
        if cells := threshold_cells(family):
            unmasked = [cell for cell in family["cells"] if cell["choose"] == "none"]
            swept.setdefault(task_name(result, family), {})[family["model"]] = [*cells, *unmasked]
    if not swept:
        return None
    models = [model for model in models_of(result) if any(model in by_model for by_model in swept.values())]
    everything = [cell for by_model in swept.values() for cells in by_model.values() for cell in cells]
    epsilons = sorted({cell["epsilon"] for cell in everything if cell["epsilon"] is not None})
    figure, axes = panel_grid(2, len(swept), height=1.75)
    for place, (task, by_model) in enumerate(swept.items()):
        above, below = axes[place], axes[len(swept) + place]
        above.set_title(escape_missing(task))
        for number, model in enumerate(models):
            where = _places(by_model.get(model, []), epsilons, shift=spread(number, len(models)))
            _lines(above, below, where, number=number)
        for axis in (above, below):
            axis.set_xticks(range(len(epsilons) + 1), [*(f"{one:g}" for one in epsilons), "no mask"])
            axis.set_xlim(-0.4, len(epsilons) + 0.4)
        above.set_ylim(-0.02, 1.02)
        below.set_ylim(bottom=0)
        below.set_xlabel("threshold epsilon (fair shares)")
    axes[0].set_ylabel("answered right")
    axes[len(swept)].set_ylabel("keys hidden a head")
    legend(figure, [handle(escape_missing(m), marker=sign(n), **line_style(n)) for n, m in enumerate(models)])
    return figure


def _places(cells: Sequence[Entry], epsilons: Sequence[float], *, shift: float) -> list[tuple[float, Entry]]:
    numbers = [len(epsilons) if cell["epsilon"] is None else epsilons.index(cell["epsilon"]) for cell in cells]
    return [(number + shift, cell) for number, cell in zip(numbers, cells, strict=True)]


def _lines(above: Any, below: Any, cells: Sequence[tuple[float, Entry]], *, number: int) -> None:
    style, marker = line_style(number), sign(number)
    above.plot([x for x, _ in cells], [cell["accuracy"]["value"] for _, cell in cells], **style)
    for x, cell in cells:
        mark_point(above, x, cell["accuracy"], colour=style["color"], marker=marker, hollow=False)
    hidden = [(x, 0.0 if cell["choose"] == "none" else cell["keys_removed"]) for x, cell in cells]
    known = [(x, keys) for x, keys in hidden if keys is not None]
    below.plot([x for x, _ in known], [k for _, k in known], marker=marker, markersize=3.8, clip_on=False, **style)
