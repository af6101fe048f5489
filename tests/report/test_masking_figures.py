"""Tables and figures of a masking result: what they say, that they fit, and that only what is there is drawn."""

import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from evaluation.experiment_rows import cell_rows, random_rows, write_rows, write_table
from sinklens.errors import UsageError
from sinklens.evaluation.report import summarise
from sinklens.report.masking import draw, table_latex, table_markdown, table_text
from sinklens.report.masking_figures import draw_accuracy, draw_square
from sinklens.report.masking_flow import draw_flow
from sinklens.report.masking_page import MARK, read_result, write_page, write_summary
from sinklens.report.masking_thresholds import draw_thresholds
from sinklens.report.style import styled

MODELS = ("tiny-dream", "tiny-llama")
FLOW = {"neighbours": 0.25, "next_ranked": 0.25, "others": 0.5, "null": 0.0, "new_sinks": 0.125}


def right(count: int, n: int = 20) -> list[int]:
    return [int(place < count) for place in range(n)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, two tasks, twenty problems."""
    to = tmp_path_factory.mktemp("masking")
    rows: list[dict[str, Any]] = []
    for model in MODELS:
        causal = model == "tiny-llama"
        for task in ("small_programs", "word_problems"):
            options: dict[str, Any] = {"task": task, "causal": causal}
            masked = options | {"dose": 0.9, "keys_removed": 5.0}
            rows += cell_rows(model, "none", right(20), **options)
            for top in (1, 5):
                rows += cell_rows(model, f"sinks:top={top}", right(2 if causal else 15), **masked)
                rows += random_rows(model, f"random:top={top}", [right(18), right(16)], **options, dose=0.1)
                rows += cell_rows(model, f"next:top={top}", right(12), **masked)
            rows += cell_rows(model, f"sinks:top=5,keys={'recomputed' if causal else 'cached'}", right(10), **masked)
            rows += cell_rows(model, "sinks:top=5,act=zero", right(19), **masked)
            rows += [row for e in (1, 3) for row in cell_rows(model, f"sinks:epsilon={e}", right(9 + e), **masked)]
    write_rows(to, rows)
    flows = [{"model": model, "task": "word_problems", "condition": "sinks:top=5", "problems": 20} for model in MODELS]
    write_table(to / "flows" / "a.parquet", [flow | FLOW for flow in flows])
    command = {"command": "sinklens mask tiny-llama tiny-dream --to runs/masking", "stop_early": False}
    (to / "experiment.json").write_text(json.dumps(command))
    return to


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    return summarise(folder)


@pytest.fixture(scope="module")
def figures(result: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw(result, tmp_path_factory.mktemp("figures"))


def primary_points(result: dict[str, Any]) -> str:
    """Of tiny-llama on word problems: 2 of 20 right, less 17."""
    one = result["families"][3]["primary"]
    assert one["value"] == pytest.approx(-0.75)
    return f"-75.0 [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"


def test_the_text_has_the_shape_of_table_1(result: dict[str, Any]) -> None:
    lines = table_text(result).splitlines()
    assert max(map(len, lines)) <= 80
    head = next(place for place, line in enumerate(lines) if "small_programs" in line)
    assert lines[head].split() == ["small_programs", "word_problems"]
    assert lines[head + 1].split() == ["0", "1", "5", "0", "1", "5"]
    assert lines[head + 2] == "tiny-dream (diffusion)"
    assert lines[head + 3].split() == ["sinks", "100", "75", "75", "100", "75", "75"]
    assert lines[head + 4].split() == ["84-100", "53-89", "53-89"] * 2
    assert lines[head + 5].split() == ["random", "85*", "85*", "85*", "85*"]
    assert lines[head + 7].split() == ["next", "ranked", "60", "60", "60", "60"]  # the dose of the sinks: no star
    columns = [lines[head + 3].index("100"), lines[head + 3].rindex("100")]
    assert all(lines[head + 5][place : place + 3] == "   " for place in columns)  # controls have no column 0
    assert "* dose differs: by more than .10 from that of the sinks in its column" in lines


def test_the_text_tells_the_contrasts(result: dict[str, Any]) -> None:
    text = table_text(result)
    assert "Primary contrast, 5 sinks - 5 random, in points" in text
    assert f" tiny-llama  word_problems   {primary_points(result)}  p <.001  dose differs" in text
    assert "Robust, within 2 points of unmasked (90 %): no cell" in text
    assert "tiny-llama - tiny-dream, word_problems, in points; p by Holm" in text
    assert "\n 5 sinks - unmasked  -65.0 [-85.0, -45.0]  p <.001\n" in text


def test_one_sink_is_singular_wherever_it_stands(result: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    page = write_page([folder], tmp_path / "page.md")[0].read_text("utf-8")
    said = [table_text(result), table_markdown(result), table_latex(result), page, json.dumps(summarise(folder))]
    assert not any(re.search(r"(?<!eps )\b1 sinks", text) for text in said)
    assert "\n 1 sink - unmasked " in said[0] and "| 1 sink - " in page
    alone = deepcopy(result)
    for family in alone["families"]:
        family["primary"]["a"] = "sinks:top=1"
    assert "Primary contrast, 1 sink - 1 random, in points" in table_text(alone)
    alone["families"][0]["primary"]["a"] = "sinks:top=5"
    assert "Primary contrast, 1 or 5 sinks - 1 or 5 random, in points" in table_text(alone)
    square = deepcopy(result)
    for one in square["squares"]:
        one["top"] = 1
    with styled():
        titles = [axis.get_title() for axis in draw_square(square).axes]
    assert any(title.endswith("\n1 sink") for title in titles)


def test_tasks_that_do_not_fit_side_by_side_stand_below_each_other(result: dict[str, Any]) -> None:
    wide = deepcopy(result)
    third = deepcopy([one for one in wide["families"] if one["task"] == "word_problems"])
    name = "a_task_of_a_long_name"
    wide["families"] += [family | {"task": name} for family in third]
    lines = table_text(wide).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(name in line for line in lines) == 3  # the head of its columns, and two primary contrasts: never cut
    assert sum(line == "tiny-llama (causal)" for line in lines) == 2


def test_what_a_reader_must_know_is_said(result: dict[str, Any]) -> None:
    changed = deepcopy(result)
    changed["families"][0]["left_out"] = {"none": 3}
    changed["families"][1] |= {"n": 0, "cells": [], "contrasts": [], "primary": None}
    for cell in changed["families"][2]["cells"]:
        cell["dose"] = None if cell["dose"] is None else 0.5
    text = " ".join(table_text(changed).split())
    assert "tiny-dream, small_programs: up to 3 further problems of some cells are left out" in text
    assert "tiny-dream, word_problems: no problem is answered in every cell yet" in text
    assert "doses of the sinks differ between models (columns small_programs 1, small_programs 5)" in text
    changed["rules"]["watched"] = 4
    assert "confidence sequences" in table_text(changed)
    assert "confidence sequences" not in text


def test_without_a_control_there_is_no_primary_contrast(tmp_path: Path) -> None:
    rows = [*cell_rows("tiny-llama", "none", [1, 1]), *cell_rows("tiny-llama", "sinks:top=1", [1, 0])]
    text = table_text(summarise(write_rows(tmp_path, rows)))
    assert "No primary contrast: no cells of sinks and as many random keys." in text


def test_markdown_and_latex_hold_the_same_numbers(result: dict[str, Any]) -> None:
    markdown = table_markdown(result).splitlines()
    assert markdown[0] == "| keys hidden a head | small_programs<br>0 | 1 | 5 | word_problems<br>0 | 1 | 5 |"
    assert markdown[2].startswith("| **tiny-dream**, sinks | 1.00 <sub>.84-1.00</sub> | .75 <sub>.53-.89</sub> |")
    assert markdown[3].startswith("| random |  | .85† <sub>")
    assert len({line.count("|") for line in markdown if line.startswith("|")}) == 1
    latex = table_latex(result)
    assert "\\multicolumn{3}{c}{small\\_programs} & \\multicolumn{3}{c}{word\\_problems} \\\\" in latex
    assert "\\cmidrule(lr){2-4}\\cmidrule(lr){5-7}" in latex
    assert "\\quad sinks & 1.00 {\\scriptsize .84--1.00} & .75 {\\scriptsize .53--.89}" in latex
    assert "\\quad random &  & .85$^\\dagger$ {\\scriptsize" in latex
    rows = [line for line in latex.splitlines() if line.startswith("\\quad")]
    assert {line.count("&") for line in rows} == {6}


def test_everything_is_drawn(figures: list[Path]) -> None:
    names = ["figure_masking", "figure_square", "figure_epsilon", "figure_flow"]
    assert [path.name for path in figures] == [
        *(name + suffix for name in names for suffix in (".png", ".svg")), "table.md", "table.tex"
    ]  # fmt: skip
    assert all(path.stat().st_size > 500 for path in figures)


def test_only_what_is_there_is_drawn(tmp_path: Path) -> None:
    rows = [*cell_rows("tiny-llama", "none", [1, 1]), *cell_rows("tiny-llama", "sinks:top=1", [1, 0])]
    written = draw(summarise(write_rows(tmp_path, rows)), tmp_path)
    assert {path.name for path in written} == {"figure_masking.png", "figure_masking.svg", "table.md", "table.tex"}
    other = cell_rows("tiny-llama", "sinks:top=1,act=zero", [1, 0])  # not the family's own way: not in the table
    unmasked = summarise(write_rows(tmp_path / "none", [*rows[:2], *other]))
    assert [make(unmasked) for make in (draw_accuracy, draw_square, draw_thresholds, draw_flow)] == [None] * 4


def drawn(axis: Any) -> list[tuple[list[float], list[float]]]:
    """The lines and points of a panel, as x and y."""
    return [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in axis.get_lines()]


def test_the_accuracy_figure_shows_the_cells(result: dict[str, Any]) -> None:
    with styled():
        figure = draw_accuracy(result)
    assert figure is not None
    panel = next(axis for axis in figure.axes if axis.get_title() == "tiny-llama\ncausal, word_problems")
    lines = [ys for xs, ys in drawn(panel) if len(xs) == 3]
    assert lines == [[1.0, 0.1, 0.1], [1.0, 0.85, 0.85], [1.0, 0.6, 0.6]]
    hollow = {line.get_marker() for line in panel.get_lines() if line.get_markerfacecolor() == "#FFFFFF"}
    assert hollow == {"s"}  # the random control, whose dose differs
    styles = {(line.get_color(), str(line.get_linestyle())) for line in panel.get_lines() if len(line.get_xdata()) == 3}
    assert len(styles) == 3
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["sinks", "random", "next ranked", "unmasked", "hollow: dose differs"]


def test_the_square_shows_differences_in_points(result: dict[str, Any]) -> None:
    with styled():
        figure = draw_square(result)
    assert figure is not None
    panel = next(axis for axis in figure.axes if axis.get_title() == "word_problems\n5 sinks")
    lines = [ys for xs, ys in drawn(panel) if len(xs) == 2 and xs != [0.0, 1.0]]
    assert lines == [pytest.approx([-50.0, -25.0]), pytest.approx([-90.0, -50.0])]  # cached, recomputed by model


def test_the_threshold_figure_ends_at_the_untouched_model(result: dict[str, Any]) -> None:
    with styled():
        figure = draw_thresholds(result)
    assert figure is not None
    above, below = figure.axes[0], figure.axes[2]
    assert next(ys for xs, ys in drawn(above) if len(xs) > 1) == [0.5, 0.6, 1.0]
    assert next(ys for xs, ys in drawn(below) if len(xs) > 1) == [5.0, 5.0, 0.0]
    assert [label.get_text() for label in below.get_xticklabels()] == ["1", "3", "no mask"]


def test_the_page_has_tables_and_the_command(
    folder: Path, result: dict[str, Any], figures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "preface.md").write_text("# By hand\n\nWhat it says.\n")
    page, *shown = write_page([folder], tmp_path / "out" / "masking.md", preface=tmp_path / "preface.md")
    text = page.read_text()
    assert text.startswith("# By hand\n\nWhat it says.\n")
    assert "```\nsinklens mask tiny-llama tiny-dream --to runs/masking\n```" in text
    drawn_before = {path.name: path.read_bytes() for path in figures if path.suffix == ".png"}
    assert {path.name: path.read_bytes() for path in shown} == drawn_before  # the same numbers, the same bytes
    assert all(f"]({path.relative_to(page.parent).as_posix()})" in text for path in shown)
    assert "- tiny-llama (causal), word_problems: 20 problems, 11 cells" in text
    assert f"| tiny-llama | word_problems | 20 | 5 sinks - 5 random | {primary_points(result)} | <.001 |" in text
    assert ".90 / .10, dose differs" in text
    assert "| tiny-llama - tiny-dream | word_problems | 5 sinks - unmasked | -65.0 [-85.0, -45.0] |" in text
    assert "| tiny-llama | word_problems | 5 sinks, zero value | .95 <sub>" in text
    assert "| tiny-llama | word_problems | 5 sinks | .25 | .25 | .50 | .12 |" in text
    assert "| tiny-llama | word_problems | 3 | .60 <sub>" in text


def test_a_page_needs_no_rows_where_the_result_is_kept(folder: Path, result: dict[str, Any], tmp_path: Path) -> None:
    kept = tmp_path / folder.name
    kept.mkdir()
    (kept / "result.json").write_text(json.dumps(result))
    assert read_result(kept) == read_result(folder)


def test_a_page_without_a_preface_has_a_title_and_forgets_old_figures(tmp_path: Path) -> None:
    rows = [*cell_rows("tiny-llama", "none", [1, 1]), *cell_rows("tiny-llama", "sinks:top=1", [1, 0])]
    old = tmp_path / "page" / "experiment" / "figure_flow.png"
    old.parent.mkdir(parents=True)
    old.touch()
    page, figure = write_page([write_rows(tmp_path / "experiment", rows)], tmp_path / "page.md")
    assert page.read_text().startswith(f"# What removing sinks does\n\n{MARK}\n\n## experiment\n")
    assert figure == old.with_name("figure_masking.png")
    assert not old.exists()


def test_a_summary_is_the_plain_table_of_one_task(folder: Path, tmp_path: Path) -> None:
    write_summary(folder, tmp_path / "masking.json")
    found = json.loads((tmp_path / "masking.json").read_text())
    assert (found["task"], found["problems"]) == ("word_problems", 20)
    read = {(cell["model"], cell["keys"], cell["top"]): cell for cell in found["cells"]}
    assert {keys for _, keys, _ in read} == {"none", "sinks", "random"}
    whole = next(one for one in read_result(folder)["families"] if one["model"] == "tiny-llama")
    sinks = next(cell for cell in whole["cells"] if cell["condition"] == "sinks:top=5")
    assert read["tiny-llama", "sinks", 5]["accuracy"] == sinks["accuracy"]["value"]


def test_a_page_is_its_own_preface(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "masking.md"
    page.write_text("# By hand\n\nWhat it says.\n")
    write_page([folder], page, preface=page)
    once = page.read_text()
    write_page([folder], page, preface=page)
    assert page.read_text() == once
    assert once.count("# By hand") == once.count(MARK) == 1


def test_folders_that_cannot_make_a_page_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has neither rows/ nor result\.json; expected a folder"):
        write_page([tmp_path], tmp_path / "page.md")
    with pytest.raises(UsageError, match="two folders have the same name"):
        write_page([folder, folder], tmp_path / "page.md")
    with pytest.raises(UsageError, match="cannot read the preface"):
        write_page([folder], tmp_path / "page.md", preface=tmp_path / "none.md")


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, sinklens.evaluation.report, sinklens.report.masking_page\n"
        "assert not {'torch', 'matplotlib', 'scipy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
