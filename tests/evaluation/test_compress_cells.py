"""Cells as data: what they are called, what they come to, what is refused; and the statistics of rows."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.cache.settings import Compression
from sinklens.errors import UsageError
from sinklens.evaluation.compress_cells import Cell, cross, layers_of
from sinklens.evaluation.compress_language import language
from sinklens.evaluation.compress_statistics import by_cell, entry, rank


def test_names() -> None:
    assert str(Cell()) == str(Cell(strict=True, schedule="cap", keep="9")) == "none"
    assert str(Cell(order="low", keep="50%")) == "low:keep=50%,skip=0+1"
    told = Cell(order="random", keep="128", skip="", schedule="cap", draw=3, first=4)
    assert str(told) == "random:keep=128,skip=none,schedule=cap,first=4,draw=3"


def test_all_cells_have_different_names() -> None:
    made = cross(orders=["low", "random"], keeps=["50%", "9"], skips=["0", "0,1", "none"], schedule="once", draws=3)
    assert made[0] == Cell() and len(made) == 1 + 2 * 3 * (1 + 3)
    assert len({str(cell) for cell in made}) == len(made)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 3000), st.integers(1, 100))
def test_what_a_cell_comes_to(length: int, percent: int) -> None:
    cell = Cell(order="low", keep=f"{percent}%", skip="0,m")
    told = Compression(**cell.settings(length=length, layers=8, seed=0))
    assert told.keep == -(-percent * length // 100) and told.skip == (0, 4) and told.above is None


def test_a_saw_is_the_published_one() -> None:
    cell = Cell(order="low", keep="2000", schedule="saw")
    told = Compression(**cell.settings(length=5000, layers=32, seed=0))
    assert (told.keep, told.above, told.skip) == (1960, 2000, (0, 1))
    least = Compression(**Cell(order="low", keep="3", schedule="saw").settings(length=9, layers=4, seed=0))
    assert (least.keep, least.above) == (2, 3)


def test_layers() -> None:
    assert layers_of("0,1,m", 30) == (0, 1, 15) and layers_of("none", 4) == layers_of("", 4) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": "lowest", "keep": "50%"}, "unknown order 'lowest'; expected one of 'none', 'low'"),
        ({"order": "low", "keep": "half"}, "keep is 'half'; expected a number of entries"),
        ({"order": "low", "keep": "0"}, "keep is 0; expected"),
        ({"order": "low", "keep": "50%", "skip": "0;1"}, "skip is '0;1'; expected layers such as 0,1"),
        ({"order": "low", "keep": "50%", "schedule": "daily"}, "unknown schedule 'daily'"),
        (
            {"order": "low", "keep": "50%", "schedule": "cap", "strict": True},
            "strict is for schedule 'once', not 'cap'",
        ),
    ],
)
def test_what_cannot_be_meant(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cell(**given)


def test_orders_and_draws_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match=r"an order stands twice \(low, low\)"):
        cross(orders=["low", "low"], keeps=["9"], skips=["0"], schedule="once")
    with pytest.raises(UsageError, match="draws is 0; expected at least 1"):
        cross(orders=["low"], keeps=["9"], skips=["0"], schedule="once", draws=0)


def test_larger_budgets_stand_first() -> None:
    made = cross(orders=["high", "low"], keeps=["9%", "50%"], skips=["0,1", "0"], schedule="once")
    assert [str(cell).replace("keep=", "") for cell in sorted(made, key=rank)] == [
        "none",
        *(
            f"{order}:{keep},skip={skip}"
            for skip in ("0", "0+1")
            for keep in ("50%", "9%")
            for order in ("low", "high")
        ),
    ]


def rows(cell: Cell, scores: list[float], **more: Any) -> list[dict[str, Any]]:
    told = cell.as_dict() | {"depth": None, **more}
    return [told | {"problem": problem, "score": float(score)} for problem, score in enumerate(scores)]


LOW = Cell(order="low", keep="50%")


def drawn(number: int) -> Cell:
    return Cell(order="random", keep="50%", draw=number)


def test_levels_and_paired_differences() -> None:
    table = [
        *rows(Cell(), [1, 1, 1, 0]),
        *rows(LOW, [1, 1, 0, 0]),
        *rows(drawn(0), [1, 0, 0, 0]),
        *rows(drawn(1), [0, 0, 0, 0]),
    ]
    values = by_cell(table, lambda row: row["score"])
    low = entry(LOW, values, binary=True)
    assert low["value"]["value"] == 0.5 and low["value"]["n"] == 4 and low["draws"] == 1
    assert low["value"]["low"] == pytest.approx(0.150, abs=1e-3)  # Wilson's for 2 of 4
    assert low["to_none"]["value"] == -0.25 and low["to_none"]["low"] < -0.25 <= low["to_none"]["high"]
    assert low["to_random"]["value"] == pytest.approx(0.5 - 0.125)
    random = entry(Cell(order="random", keep="50%"), values, binary=True)
    assert random["draws"] == 2 and random["value"]["n"] == 4 and random["value"]["value"] == 0.125
    assert random["to_random"] is None and random["to_none"]["value"] == pytest.approx(-0.625)
    plain = entry(Cell(), values, binary=True)
    assert plain["to_none"] is None and plain["to_random"] is None


def test_differences_are_over_the_problems_that_both_have() -> None:
    values = by_cell([*rows(Cell(), [1, 1]), *rows(LOW, [0, 1, 0, 0])], lambda row: row["score"])
    found = entry(LOW, values, binary=True)
    assert found["to_none"]["n"] == 2 and found["to_none"]["value"] == -0.5


def test_random_of_another_budget_is_no_control() -> None:
    other = Cell(order="random", keep="10%")
    values = by_cell([*rows(LOW, [1, 0]), *rows(other, [0, 0])], lambda row: row["score"])
    assert entry(LOW, values, binary=False)["to_random"] is None


def test_curves_are_the_log_of_the_mean_perplexity_so_far() -> None:
    from math import exp, log

    table = [
        Cell().as_dict()
        | {"length": 5, "stride": 1, "problem": n, "kept": 5, "losses": losses, "hits": [True, False, True, True]}
        for n, losses in enumerate([[1.0, 3.0, 2.0, 2.0], [3.0, 1.0, 5.0, 3.0]])
    ]
    (found,) = language(table)
    (cell,) = found["cells"]
    assert cell["tokens"] == [1, 2, 3, 4]
    assert cell["log_perplexity"] == pytest.approx(
        [log((exp(1) + exp(3)) / 2), 2.0, log((exp(2) + exp(3)) / 2), log((exp(2) + exp(3)) / 2)]
    )
    assert cell["hits"] == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4])
    assert cell["nll"]["value"] == pytest.approx(2.5) and cell["accuracy"]["value"] == 0.75 and cell["chunks"] == 2
    assert [one["nll"]["value"] for one in cell["bins"]] == pytest.approx([2.0, 2.0, 3.5, 2.5])
    assert [(one["first"], one["last"]) for one in cell["bins"]] == [(1, 1), (2, 2), (3, 3), (4, 4)]
