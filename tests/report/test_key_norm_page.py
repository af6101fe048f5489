"""The page on key norms: verdicts that follow from the rows, and a page that can be made again without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from sinklens.errors import UsageError
from sinklens.evaluation.compress_cells import Cell
from sinklens.evaluation.compress_store import CompressStore
from sinklens.report.key_norm_page import MARK, write_page
from sinklens.report.key_norm_tables import order_rows, skip_table

PROBLEMS = 12
# Shares of right answers by cell: low beats random, and with layer 0 alone left whole it does not.
SCORES = {
    Cell(): 1.0,
    Cell(order="low", keep="50%"): 0.9,
    Cell(order="low", keep="50%", skip="0"): 0.2,
    Cell(order="random", keep="50%"): 0.4,
    Cell(order="random", keep="50%", draw=1): 0.5,
    Cell(order="high", keep="50%"): 0.5,
    Cell(order="streaming", keep="50%"): 0.0,
}
LOSSES = {
    Cell(): 2.0,
    Cell(order="low", keep="32", schedule="cap"): 2.6,
    Cell(order="random", keep="32", schedule="cap"): 2.4,
    Cell(order="high", keep="32", schedule="cap"): 3.0,
}


def told(cell: Cell, problem: int) -> dict[str, Any]:
    return {"model": "toy", "length": 64, "problem": problem, "cell": str(cell), **cell.as_dict(), "kept": 32}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    asked, text = tmp_path / "asked", tmp_path / "text"
    for folder in (asked, text):
        with CompressStore(folder).claimed({"fingerprint": "1", "model": "toy", "command": "sinklens compress toy"}):
            pass
    for cell, right in SCORES.items():
        rows = [
            told(cell, problem) | {
                "task": "passkey", "prompt_tokens": 64, "text": "", "answer": "",
                "score": float(problem < right * PROBLEMS), "right": problem < right * PROBLEMS, "cache_bytes": 100,
            }
            for problem in range(PROBLEMS)
        ]  # fmt: skip
        CompressStore(asked).add(f"passkey.{cell}", {"rows": rows})
    for cell, loss in LOSSES.items():
        rows = [
            told(cell, chunk)
            | {"stride": 1, "losses": [loss + 0.01 * (chunk + i) for i in range(63)], "hits": [True] * 63}
            for chunk in range(4)
        ]
        CompressStore(text).add(f"lm.{cell}", {"texts": rows})
    return [asked, text]


def blocks_of(folder: Path) -> Path:
    row = {
        "model": "tiny", "task": "sums", "sampler": "whole", "way": "refresh 16, keep 32 low", "problems": 8,
        "draws": 1, "solved": [0.5, 0.3, 0.7], "difference": [-0.25, -0.5, 0.0], "speed": 2.0, "held_bytes": 10,
        "held_share": 0.5,
    }  # fmt: skip
    path = folder / "blocks.jsonl"
    path.write_text(json.dumps({"torch": "2"}) + "\n" + json.dumps(row) + "\n")
    return path


def test_verdicts_tables_and_a_page_that_can_be_made_again(folders: list[Path], tmp_path: Path) -> None:
    page, preface = tmp_path / "docs" / "norms.md", tmp_path / "preface.md"
    preface.write_text("# Norms\n\nBy hand.\n")
    written = write_page(folders, page, preface=preface, blocks=blocks_of(tmp_path))
    assert all(path.is_file() for path in written) and written[0] == page
    figures = {path.relative_to(page.parent).as_posix() for path in written if path.suffix == ".png"}
    assert {"norms/asked/figure_compression.png", "norms/asked/figure_skips.png"} < figures
    assert "norms/text/figure_language.png" in figures
    text = page.read_text()
    assert text.startswith(f"# Norms\n\nBy hand.\n\n{MARK}\n")
    assert all(f"({path})" in text for path in figures)
    assert "| toy | passkey | low better than random | 1 | 0 | 0 |" in text
    assert "| toy | passkey | random better than high | 0 | 1 | 0 |" in text  # .45 against .5: not decided
    assert "| toy | text | low better than random | 0 | 0 | 1 |" in text  # a loss: more is worse
    assert "| toy | text | random better than high | 1 | 0 | 0 |" in text
    assert "| passkey, 64 tokens | 50% | 0 | .25 <sub>.09-.53</sub> | -0.67 [" in text
    assert "| streaming | .00 <sub>.00-.24</sub> |" in text
    assert (
        "| tiny | sums | refresh 16, keep 32 low | .50 <sub>.30-.70</sub> | -0.25 [-0.50, +0.00] | 2.00 | 50 % | 8 |"
        in text
    )
    again = [page.with_suffix("") / folder.name for folder in folders]
    write_page(again, page, preface=page, blocks=blocks_of(tmp_path))
    assert page.read_text() == text


def test_what_is_not_there_is_not_shown() -> None:
    nothing: dict[str, Any] = {"model": "toy", "retrieval": [], "language": [], "grids": []}
    assert order_rows(nothing) == [] and skip_table(nothing) == ""


def test_folders_that_cannot_be_read(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has neither rows nor result\.json"):
        write_page([tmp_path / "missing"], tmp_path / "page.md")
    with pytest.raises(UsageError, match="two folders have the same name"):
        write_page([folders[0], folders[0]], tmp_path / "page.md")
