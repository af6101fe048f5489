"""The table of a masking result in the shape of the paper's Table 1: plain text for a terminal, Markdown, and LaTeX."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from textwrap import wrap
from typing import Any

from sinklens.evaluation.conditions import counted
from sinklens.report.masking_grid import Entry, Grid, Result, family_kind, grid_of, primary_tops, task_name
from sinklens.report.masking_words import DAGGER, chance, percent, percent_range, points, share, share_range
from sinklens.report.numbers import latex

WIDTH = 80
NAMES = 23  # columns of a terminal for what stands in front of the numbers
STEP = 7  # and for each number


def table_text(result: Result) -> str:
    """What a terminal shows: the table, the primary contrasts, the interactions; 80 columns unless names are long."""
    grid = grid_of(result)
    lines = [f"Answered right (%), 95 % interval, {_problems(result)}; columns: keys hidden a head"]
    for some in _fitting(grid):
        lines += ["", *_text_block(grid.restricted(some), result)]
    lines += ["", *_text_primaries(result), "", *_text_robust(result), *_text_interactions(result)]
    notes = [line for note in notes_of(result, star="*") for line in wrap(note, WIDTH, subsequent_indent="  ")]
    lines += ["", *notes] if notes else []
    return "\n".join(line.rstrip() for line in lines) + "\n"


def table_markdown(result: Result) -> str:
    """Models and controls down, tasks and numbers of keys across, intervals in small type."""
    grid = grid_of(result)
    before = [None, *(one.task for one in grid.columns)]
    titles = [
        str(one.top) if one.task == task else f"{one.task}<br>{one.top}"
        for one, task in zip(grid.columns, before, strict=False)
    ]
    lines = [f"| keys hidden a head | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for model, block in grid.blocks.items():
        for line in block:
            name = f"**{model}**, {line.label}" if line is block[0] else line.label
            lines.append(f"| {name} | {' | '.join(map(_markdown_cell, line.cells))} |")
    told = f"Share of {_problems(result)} answered right; small: 95 % interval (Wilson)"
    return "\n".join([*lines, "", *(f"{note}.  " for note in [told, *notes_of(result, star=DAGGER)])]) + "\n"


def table_latex(result: Result) -> str:
    """The same table for a paper."""
    grid = grid_of(result)
    ends = [0]
    for count in grid.tasks.values():
        ends.append(ends[-1] + count)
    lines = [
        "% needs: \\usepackage{booktabs,textcomp}",
        f"\\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        "\\toprule",
        "".join(f" & \\multicolumn{{{count}}}{{c}}{{{latex(task)}}}" for task, count in grid.tasks.items()) + " \\\\",
        "".join(f"\\cmidrule(lr){{{start + 2}-{end + 1}}}" for start, end in pairwise(ends)),
        "keys hidden a head & " + " & ".join(str(one.top) for one in grid.columns) + " \\\\",
    ]
    for model, block in grid.blocks.items():
        lines += ["\\midrule", f"\\multicolumn{{{len(grid.columns) + 1}}}{{l}}{{{latex(model)}}} \\\\"]
        lines += [f"\\quad {latex(line.label)} & {' & '.join(map(_latex_cell, line.cells))} \\\\" for line in block]
    lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in notes_of(result, star="dagger:")), ""])


def notes_of(result: Result, *, star: str) -> Iterator[str]:
    """What a reader of the table must know."""
    if grid_of(result).flagged:
        tolerance = share(result["rules"]["dose_tolerance"])
        yield f"{star} dose differs: by more than {tolerance} from that of the sinks in its column"
    apart = grid_of(result).doses_apart()
    if apart:
        columns = ", ".join(f"{one.task} {one.top}" for one in apart)
        yield f"The doses of the sinks differ between models (columns {columns}): compare them with care"
    if result["rules"]["watched"] is not None:
        yield (
            "The run could stop early: differences have confidence sequences; intervals of single cells and "
            "of models against each other are made for a fixed number of problems and only describe"
        )
    for family in result["families"]:
        who = f"{family['model']}, {task_name(result, family)}"
        if not family["n"]:
            yield f"{who}: no problem is answered in every cell yet"
        elif family["left_out"]:
            most = max(family["left_out"].values())
            yield f"{who}: up to {most} further problems of some cells are left out, as not all cells have them"


def robust_labels(family: Entry) -> list[str]:
    """The cells of a family whose difference from the untouched model is ruled to be within the margin."""
    close = {one["a"] for one in family["contrasts"] if one["kind"] == "unmasked" and one["robust"]}
    return [cell["label"] for cell in family["cells"] if cell["condition"] in close]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{one:<{width}}" for one, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _problems(result: Result) -> str:
    counts = sorted({family["n"] for family in result["families"]})
    return f"{counts[0]} problems" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} problems"


def _fitting(grid: Grid) -> Iterator[list[str]]:
    """Tasks that stand side by side."""
    some: list[str] = []
    for task in grid.tasks:
        if some and NAMES + sum(_width(grid, one) for one in [*some, task]) > WIDTH:
            yield some
            some = []
        some.append(task)
    if some:
        yield some


def _width(grid: Grid, task: str) -> int:
    """Of the columns of a task, in characters: no name is cut."""
    return max(STEP * grid.tasks[task], len(task) + 1)


def _text_block(grid: Grid, result: Result) -> Iterator[str]:
    yield " " * NAMES + "".join(f" {task:^{_width(grid, task) - 1}}" for task in grid.tasks)
    yield _text_line("", [f"{one.top} " for one in grid.columns], grid)
    kinds = {family["model"]: family_kind(family["causal"]) for family in result["families"]}
    for model, lines in grid.blocks.items():
        yield f"{model} ({kinds[model]})"
        for line in lines:
            yield _text_line(f" {line.label}", [cell and _text_value(cell) for cell in line.cells], grid)
            yield _text_line("", [cell and f"{percent_range(cell['accuracy'])} " for cell in line.cells], grid)


def _text_value(cell: Entry) -> str:
    return percent(cell["accuracy"]["value"]) + ("*" if cell["dose_differs"] else " ")


def _text_line(name: str, shown: Sequence[Any], grid: Grid) -> str:
    """One place for each column of the grid; None: an empty one."""
    groups = groupby(zip(grid.columns, shown, strict=True), key=lambda pair: pair[0].task)
    texts = {task: "".join(f"{one or '':>{STEP}}" for _, one in pairs) for task, pairs in groups}
    return f"{name:<{NAMES}}" + "".join(f"{text:>{_width(grid, task)}}" for task, text in texts.items())


def _text_primaries(result: Result) -> list[str]:
    found = [
        [f" {family['model']}", task_name(result, family), *_difference(one, one)]
        for family in result["families"]
        if (one := family["primary"])
    ]
    if not found:
        reasons = dict.fromkeys(family["no_primary"] for family in result["families"])
        return [f"No primary contrast: {'; '.join(reasons)}."]
    *others, last = primary_tops(result)
    tops = "".join(f"{top} or " for top in others)
    return [f"Primary contrast, {tops}{counted(last)} - {tops}{last} random, in points", *aligned(found)]


def _text_robust(result: Result) -> list[str]:
    """The cells that may be called as good as the untouched model."""
    found = [
        f"{family['model']}, {task_name(result, family)}: {', '.join(labels)}"
        for family in result["families"]
        if (labels := robust_labels(family))
    ]
    title = f"Robust, within {percent(result['rules']['margin'])} points of unmasked (90 %)"
    lines = [f"{title}: {'' if found else 'no cell'}", *found]
    return [line for one in lines for line in wrap(one, WIDTH, subsequent_indent="  ")]


def _text_interactions(result: Result) -> list[str]:
    lines = []
    told = sorted(result["interactions"], key=_pair)
    for (causal, diffusion, _, _), group in groupby(told, key=_pair):
        some = list(group)
        lines += ["", f"{causal} - {diffusion}, {task_name(result, some[0])}, in points; p by Holm"]
        if some[0]["refused"]:
            lines += wrap(some[0]["refused"], WIDTH, initial_indent=" ", subsequent_indent=" ")
            continue
        whats = [f" {counted(one['top'])} - {_against(one)}" for one in some]
        lines += aligned([[what, *_difference(one, one["points"])] for what, one in zip(whats, some, strict=True)])
    return lines


def _pair(one: Entry) -> tuple[str, str, str, str]:
    return one["causal"], one["diffusion"], one["task"], one["split"]


def _against(one: Entry) -> str:
    return "unmasked" if one["against"] == "unmasked" else f"{one['top']} random"


def _difference(one: Entry, interval: Entry) -> list[str]:
    return [points(interval), f"p {chance(one['adjusted_p'])}", "dose differs" if one["dose_differs"] else ""]


def _markdown_cell(cell: Entry | None) -> str:
    if cell is None:
        return ""
    star = DAGGER if cell["dose_differs"] else ""
    return f"{share(cell['accuracy']['value'])}{star} <sub>{share_range(cell['accuracy'])}</sub>"


def _latex_cell(cell: Entry | None) -> str:
    if cell is None:
        return ""
    star = "$^\\dagger$" if cell["dose_differs"] else ""
    return (
        f"{share(cell['accuracy']['value'])}{star} {{\\scriptsize {share_range(cell['accuracy']).replace('-', '--')}}}"
    )
