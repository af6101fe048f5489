"""The page of results on token selection: from result files alone, with the commands that made them."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_selection_report import a_result, cell, interval

from sinklens.errors import UsageError
from sinklens.report.selection_results import MARK, write_page
from sinklens.report.selection_training import changes
from sinklens.selection.recipe import read_selection_recipe

STARTS = {"losses": {"open": [1.5, 1.7], "half": [2.0, 2.25]}, "last": {"open-0": {"step": 700}, "noise": {"step": 9}}}


def trained(folder: Path, *settings: str) -> None:
    recipe = read_selection_recipe("digits", settings)
    folder.mkdir(parents=True)
    (folder / "training.json").write_text(json.dumps({"recipe": recipe.as_dict(), "step": 300}))
    (folder / "log.jsonl").write_text('{"step": 100}\n{"step": 300, "task": 1.25, "budget": 0.1, "accuracy": 0.625}\n')
    (folder / "data.json").write_text(json.dumps({"data": "digits", "redraw": True}))


def evaluated(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trained(tmp_path / "models" / "reference")
    trained(tmp_path / "models" / "norm", "ranking=norm", "graph=false", "gating.gated=[0, 1]")
    wire = [one for one in a_result()["cells"] if one["channel"] == "wire"]
    wire += [cell("trained:random", alpha, 0.6) for alpha in (0.1, 0.5)]
    wire += [cell("trained:random", 0.2, 0.6) | {"to_gate": interval(0.01)}, cell("gate", 0.2, 0.6)]
    evaluated(tmp_path / "eval" / "reference", a_result() | {"cells": wire, "speed": [], "command": "sinklens a"})
    evaluated(tmp_path / "eval" / "seed1", a_result() | {"cells": [cell("gate", 0.1, 0.65)], "speed": []})
    choices = [cell("gate", 0.1, 0.7), cell("random", 0.1, 0.375)]
    evaluated(tmp_path / "eval" / "choices", a_result() | {"cells": choices, "speed": [], "command": "sinklens c"})
    evaluated(tmp_path / "eval" / "links", a_result() | {"command": "sinklens b"})
    return tmp_path


def rows_of(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_the_page_has_all_parts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "starts.json").write_text(json.dumps(STARTS))
    to = tmp_path / "docs" / "selection.md"
    written = write_page(folder, to, starts=tmp_path / "starts.json")
    text, rows = to.read_text("utf-8"), rows_of(to.read_text("utf-8"))
    assert [path.name for path in written if path.parent.name == "links"] == ["figure_channel.png", "figure_speed.png"]
    assert all(path.relative_to(to.parent).as_posix() in text for path in written[1:])
    assert ["norm", "`ranking=norm`, `gating.gated=[0, 1]`", "300 x 64", "1.250", "0.625"] in rows
    assert "sinklens select train digits --data digits --redraw --set ranking=norm --set graph=false" in text
    assert ["open", "1.500", "1.700", "1.600"] in rows and "4 short trainings, 700 steps each" in text
    assert [row[1:3] for row in rows if row[0] == "norm, trained so"][:2] == [["", ""], ["", ""]]
    assert [
        "random, trained so",
        "-0.125 [-0.175, -0.075]",
        "+0.010 [-0.040, +0.060]",
        "-0.125 [-0.175, -0.075]",
    ] in rows
    assert (
        "*random, trained so* at alpha <= 0.3: the gates are better at 1 of 2 budgets, worse at 0, not to be " in text
    )
    assert ["0.1", "0.110", "0.700 [0.650, 0.750]", "0.110", "0.650 [0.600, 0.700]"] in rows
    assert ["Each token lost with probability 0.1", "0.500 [0.450, 0.550]", ""] in rows
    assert ["random", "0.375 [0.325, 0.425]"] in rows and "sinklens c" in text
    assert "own, on the backbone that was trained with the gates.](selection/choices/figure_accuracy.png)" in text
    assert "sinklens a" in text and "sinklens b" in text and "## Over a channel: links" in text
    assert ["cpu", "2", "64", "0.1", "0.10", "100 (90 to 120)", "2.00"] in rows


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.report.selection_results.save_all", lambda *_, table: [])


@pytest.mark.usefixtures("undrawn")
def test_what_is_written_by_hand_stays(folder: Path, tmp_path: Path) -> None:
    to = tmp_path / "page.md"
    to.write_text(f"# Mine\n\nWords.\n\n{MARK}\nrubbish\n")
    write_page(folder, to, preface=to)
    once = to.read_text("utf-8")
    write_page(folder, to, preface=to)
    assert to.read_text("utf-8") == once and once.startswith(f"# Mine\n\nWords.\n\n{MARK}\n") and "rubbish" not in once


def test_settings_that_differ_from_the_recipe() -> None:
    asked = ("seed=2", "precision=tf32", "schedule.steps=7", "noise.snr_low=-5.0", "noise.snr_high=5.0")
    assert sorted(changes(read_selection_recipe("digits", asked).as_dict())) == sorted(asked)


@pytest.mark.usefixtures("undrawn")
def test_what_is_missing_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"reference has no result.json; expected what `sinklens select evaluate --to`"
    ):
        write_page(tmp_path / "none", tmp_path / "page.md")
    (tmp_path / "starts.json").write_text("{}")
    with pytest.raises(UsageError, match="the file of --starts has no losses"):
        write_page(folder, tmp_path / "page.md", starts=tmp_path / "starts.json")
    (tmp_path / "starts.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*starts.json .*; was it cut short\?"):
        write_page(folder, tmp_path / "page.md", starts=tmp_path / "starts.json")
    (folder / "models" / "reference" / "log.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"reference has an empty log.jsonl; was its training cut short\?"):
        write_page(folder, tmp_path / "page.md")
