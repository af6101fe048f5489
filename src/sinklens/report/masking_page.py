"""The page of results on masking, from the folders of `sinklens mask`.

    python -m sinklens.report.masking_page runs/masking --to docs/results/masking.md --preface docs/results/masking.md

Tables, figures, flags and the commands come from the folders alone. What it all means is written by hand, in the
preface: a file of its own, or the page as it is, of which everything before the first table's mark is kept. Figures are
put beside the page, in a folder of its name.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.report import summarise
from sinklens.files import written_whole
from sinklens.report import masking_sections as sections
from sinklens.report.masking import FIGURES, draw, table_markdown
from sinklens.report.masking_grid import Result, family_kind, task_name
from sinklens.report.masking_tables import robust_labels
from sinklens.report.masking_words import percent, share
from sinklens.report.results_page import place_pictures, words_above

TITLE = "# What removing sinks does\n"
MARK = "<!-- written by sinklens.report.masking_page from here on -->"
CAPTIONS = {
    "figure_masking": "Answered right over the number of keys hidden in every head, with 95 % intervals over problems.",
    "figure_square": "What hiding the sinks costs, with keys and values cached and recomputed.",
    "figure_epsilon": "Hiding all keys above a threshold: answered right, and how many keys that is.",
    "figure_flow": "Where the attention goes that hidden sinks would have received.",
}


def write_page(folders: Sequence[Path], to: Path, *, preface: Path | None = None) -> list[Path]:
    """Write the page and its figures; the paths that were written, the page first."""
    names = [re.sub(r"[^\w.-]+", "-", folder.resolve().name) for folder in folders]
    if len(set(names)) < len(names):
        raise UsageError(f"two folders have the same name ({', '.join(names)}); rename one: figures are named after it")
    parts, figures = [words_above(MARK, preface, title=TITLE), MARK], []
    for folder, name in zip(folders, names, strict=True):
        result = read_result(folder)
        drawn = place_pictures(partial(draw, result), to.with_suffix("") / name, names=FIGURES)
        figures += drawn
        shown = {path.stem: path.relative_to(to.parent).as_posix() for path in drawn}
        parts.append("\n".join(experiment_section(result, name=name, figures=shown)))
    with written_whole(to) as temporary:
        temporary.write_text("\n".join(part.rstrip() + "\n" for part in parts), "utf-8")
    return [to, *figures]


def write_summary(folder: Path, to: Path, *, task: str = "word_problems") -> None:
    """One and five keys of one task, small enough to travel with the package: the demo shows it beside its own."""
    result = read_result(folder)
    families = [family for family in result["families"] if family["task"] == task]
    found = {
        "command": result["experiment"]["command"],
        "task": task,
        "problems": min(family["n"] for family in families),
        "cells": [_summary(family["model"], cell) for family in families for cell in family["cells"] if _simple(cell)],
    }
    with written_whole(to) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _simple(cell: dict[str, Any]) -> bool:
    removed = cell["choose"] in ("sinks", "random") and cell["plain"] and cell["top"] in (1, 5)
    return removed or cell["choose"] == "none"


def _summary(model: str, cell: dict[str, Any]) -> dict[str, Any]:
    right = cell["accuracy"]
    share = {"accuracy": right["value"], "low": right["low"], "high": right["high"]}
    return {"model": model, "keys": cell["choose"], "top": cell["top"] or 0, **share}


def read_result(folder: Path) -> dict[str, Any]:
    """From the rows where they are there, else result.json."""
    if (folder / "rows").is_dir():
        return summarise(folder)
    path = folder / "result.json"
    if not path.is_file():
        raise UsageError(
            f"{folder} has neither rows/ nor result.json; expected a folder that `sinklens mask --to` wrote"
        )
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def experiment_section(result: Result, *, name: str, figures: dict[str, str]) -> Iterator[str]:
    """One experiment: how it was made, the table, and every part that it has cells for. figures: paths by name."""
    yield f"## {name}\n"
    yield from _origin(result)
    yield table_markdown(result)
    yield from _figure("figure_masking", figures)
    yield from _part("Primary contrast", sections.primary_section(result), note=_primary_note(result))
    yield from _robust(result)
    yield from _part("Causal against diffusion", sections.interaction_section(result), note=_floor_note(result))
    square = "The untouched model is the same with cached and recomputed keys, and cancels in the differences."
    yield from _part("Cached or recomputed", sections.square_section(result), note=square)
    yield from _figure("figure_square", figures)
    for kind, title in sections.SETTINGS.items():
        if kind != "keys":  # the square has them
            yield from _part(title, sections.setting_section(result, kind))
    yield from _part("Thresholds", sections.threshold_section(result))
    yield from _figure("figure_epsilon", figures)
    yield from _part("Where the attention goes", sections.flow_section(result))
    yield from _figure("figure_flow", figures)
    yield from _folded("Sinks against every control", sections.contrast_section(result, "control"))
    yield from _folded("Every cell against the untouched model", sections.contrast_section(result, "unmasked"))
    yield from _folded("Every cell", sections.cell_section(result))


def _origin(result: Result) -> Iterator[str]:
    experiment = result["experiment"] or {}
    if experiment.get("command"):
        yield f"```\n{experiment['command']}\n```\n"
    compared = [
        f"{family['model']} ({family_kind(family['causal'])}), {task_name(result, family)}: {family['n']} problems, "
        f"{len(family['cells'])} cells, "
        f"{len(family['contrasts']) + (family['primary'] is not None)} contrasts"
        for family in result["families"]
    ]
    yield "Compared:\n"
    yield "\n".join(f"- {one}" for one in compared) + "\n"


def _primary_note(result: Result) -> str:
    watched = result["rules"]["watched"]
    flag = f"Doses are flagged where they differ by more than {share(result['rules']['dose_tolerance'])}."
    if watched is None:
        return f"Declared beforehand and tested alone; 95 % intervals over problems. {flag}"
    return f"The run could stop early: confidence sequences, {watched} contrasts watched at once. {flag}"


def _floor_note(result: Result) -> str:
    return f"A difference of differences, where both untouched models reach {share(result['rules']['floor'])}."


def _robust(result: Result) -> Iterator[str]:
    yield f"Within {percent(result['rules']['margin'])} points of the untouched model (equivalence test):\n"
    for family in result["families"]:
        labels = robust_labels(family)
        who = f"{family['model']}, {task_name(result, family)}"
        yield f"- {who}: {'; '.join(labels) if labels else 'no cell'}"
    yield ""


def _part(title: str, text: str, *, note: str = "") -> Iterator[str]:
    if text:
        yield f"### {title}\n"
        if note:
            yield f"{note}\n"
        yield text


def _folded(title: str, text: str) -> Iterator[str]:
    if text:
        yield f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def _figure(name: str, figures: dict[str, str]) -> Iterator[str]:
    if name in figures:
        yield f"![{CAPTIONS[name]}]({figures[name]})\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders of `sinklens mask`")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the page, such as docs/results/x.md")
    parser.add_argument("--preface", type=Path, metavar="FILE", help="Markdown to put before the tables")
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", help="also the plain table of the first folder, as JSON"
    )
    chosen = parser.parse_args()
    for path in write_page(chosen.folders, chosen.to, preface=chosen.preface):
        print(path)
    if chosen.summary is not None:
        write_summary(chosen.folders[0], chosen.summary)
        print(chosen.summary)


if __name__ == "__main__":
    main()
