"""The figure and the table of a text experiment."""

import json
from pathlib import Path
from typing import Any

import pytest

from sinklens.errors import UsageError
from sinklens.report.text_masking import draw, read_result, table


def cell(condition: str, value: float | None, **changes: Any) -> dict[str, Any]:
    difference = None if value is None else {"value": value, "low": value - 0.1, "high": value + 0.2, "n": 7}
    plain = {
        "condition": condition, "ranked": None if value is None else "prompt", "clean": None,
        "nll": {"value": 2.5 + (value or 0.0), "low": 2.0, "high": 3.0, "n": 7},
        "to_unmasked": difference, "to_random": None, "dose": None if value is None else 0.875,
        "removed": None if value is None else 0.5, "draws": 1,
    }  # fmt: skip
    return plain | changes


CELLS = [
    cell("random:top=5,scope=head,keys=cached", 0.01, draws=5),
    cell("sinks:top=1,keys=cached", 1.18, ranked="steps", clean=1),
    cell("sinks:top=1,scope=head,keys=recomputed,rank_by=last_row", 0.7),
    cell("sinks:top=5,scope=model,keys=recomputed", 0.03),
    cell("sinks:top=1,scope=head,keys=cached", 0.95, to_random={"value": 0.9, "low": None, "high": None, "n": 1}),
    cell("first:top=1,act=zero,keys=cached", 0.6, ranked=None),
    cell("first:top=1,keys=recomputed", 0.007, ranked=None),
    cell("none", None),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "result.json").write_text(json.dumps({"cells": CELLS}))
    return tmp_path


def test_the_table_has_every_cell_in_order(folder: Path) -> None:
    lines = [line.strip("|\n ").split(" | ") for line in table(read_result(folder)).splitlines(keepends=True)]
    assert [line[0] for line in lines[2:]] == [
        "unmasked",
        "position 0",
        "position 0, value 0",
        "1 sink a head",
        "5 sinks for the whole model",
        "1 sink a head, by the prompt's last query",
        "1 sink a head, as in generation, no clean prompt",
        "5 random a head",
    ]
    row = dict(zip(lines[0], lines[5], strict=True))
    assert row["NLL"] == "3.450" and row["difference to unmasked"] == "+0.950 [+0.850, +1.150]"
    assert (row["difference to random"], row["removed"], row["dose"]) == ("+0.900", "0.50", "0.88")
    assert (row["chunks"], row["draws"], row["chosen"]) == ("7", "1", "once, by the prompt")


def test_the_figure_is_the_same_for_the_same_numbers(folder: Path) -> None:
    cells = read_result(folder)
    first, second = (draw(cells, folder / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["text_masking.png", "text_masking.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    moved = draw([*cells[:-1], cell("random:top=5,scope=head,keys=cached", 0.5)], folder / "c")
    assert moved[0].read_bytes() != first[0].read_bytes()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no result of a text experiment"):
        read_result(tmp_path)
    with pytest.raises(UsageError, match="no cell is masked, so there is nothing to draw"):
        draw([cell("none", None)], tmp_path)
