"""What a card says from rows: accuracies, costs, and what they mean, by hand."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.report.card_cells import ACCURACY, ELBO, NLL, READINGS, read_value_effect, summarise_cells

Rows = list[dict[str, Any]]


def rows_of(
    choose: str, top: int | None, scores: list[list[float]], *, act: str = "mask", dose: float | None = None
) -> Rows:
    """scores: [draw][unit]."""
    return [
        {
            "choose": choose, "top": top, "act": act, "draw": draw, "problem": unit, "chunk": unit,
            "right": bool(score), "nll": score, "dose": dose, "keys_removed": top,
        }
        for draw, units in enumerate(scores)
        for unit, score in enumerate(units)
    ]  # fmt: skip


def test_the_error_of_a_bound_by_hand() -> None:
    """Units are independent; draws of one share its masks."""
    rows = [*rows_of("none", None, [[2.0, 2.5]]), *rows_of("random", 1, [[3.0, 3.5], [3.2, 3.1]])]
    errors = [0.3, 0.4, 0.1, 0.6, 0.5, 0.2]  # of the second cell: (0.1, 0.6) in one draw, (0.5, 0.2) in the other
    found = by_key(summarise_cells([row | {"error": one} for row, one in zip(rows, errors, strict=True)], ELBO))
    assert found["none", None, "mask"]["error"] == pytest.approx(0.5 / 2)
    assert found["random", 1, "mask"]["error"] == pytest.approx((0.3**2 + 0.4**2) ** 0.5 / 2)
    some = [row | {"error": None if number == 1 else 0.3} for number, row in enumerate(rows)]
    assert by_key(summarise_cells(some, ELBO))["none", None, "mask"]["error"] is None
    assert {one["error"] for one in summarise_cells(rows, ELBO)["cells"]} == {None}


def by_key(found: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(one["choose"], one["top"], one["act"]): one for one in found["cells"]}


EXPERIMENT = [
    *rows_of("none", None, [[1, 1, 1, 0]]),
    *rows_of("sinks", 5, [[0, 0, 1, 0]], dose=0.9),
    *rows_of("random", 5, [[1, 1, 1, 0], [1, 0, 1, 0]], dose=0.25),
    *rows_of("sinks", 5, [[1, 1, 0, 0]], act="zero", dose=0.9),
]


def test_accuracies_and_costs_by_hand() -> None:
    found = summarise_cells(EXPERIMENT, ACCURACY)
    cells = by_key(found)
    assert (found["measure"], found["unit"], found["n"], found["tops"]) == ("accuracy", "problem", 4, [5])
    assert [one["value"]["value"] for one in found["cells"]] == [0.75, 0.25, 0.5, 0.625]
    assert cells["none", None, "mask"]["cost"] is None
    sinks = cells["sinks", 5, "mask"]
    assert sinks["cost"]["value"] == 0.5
    assert sinks["cost"]["p"] == 0.5  # two discordant problems, both lost
    assert sinks["more_than_random"]["value"] == pytest.approx((0.5 + 0.0 + 1.0) / 4)
    assert (sinks["dose"], sinks["keys_removed"], sinks["less_than_mask"]) == (0.9, 5.0, None)
    assert cells["random", 5, "mask"]["draws"] == 2
    assert cells["random", 5, "mask"]["cost"]["value"] == 0.125
    assert cells["random", 5, "mask"]["more_than_random"] is None
    zero = cells["sinks", 5, "zero"]
    assert (zero["cost"]["value"], zero["less_than_mask"]["value"]) == (0.25, 0.25)
    assert zero["more_than_random"] is None  # no random keys were treated alike


def test_more_nats_are_a_cost() -> None:
    rows = [*rows_of("none", None, [[2.0, 3.0]]), *rows_of("sinks", 1, [[2.5, 4.5]])]
    rows += rows_of("random", 1, [[2.0, 3.0], [2.5, 3.5]])
    cells = by_key(summarise_cells(rows, NLL))
    assert cells["sinks", 1, "mask"]["value"]["value"] == 3.5
    assert cells["sinks", 1, "mask"]["cost"] == {"value": 1.0, "low": 0.5, "high": 1.5, "n": 2, "p": None}
    assert cells["random", 1, "mask"]["cost"]["value"] == 0.25
    assert cells["sinks", 1, "mask"]["more_than_random"]["value"] == 0.75


def test_only_units_that_all_cells_have_count() -> None:
    more = [*EXPERIMENT, *({**row, "problem": 9} for row in rows_of("none", None, [[0]]))]
    assert summarise_cells(more, ACCURACY) == summarise_cells(EXPERIMENT, ACCURACY)
    without = [row for row in EXPERIMENT if not (row["draw"] == 1 and row["problem"] == 3)]
    found = summarise_cells(without, ACCURACY)
    assert found["n"] == 3
    assert found["cells"][0]["value"]["value"] == 1.0


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_plays_no_part(chance: random.Random) -> None:
    shuffled = list(EXPERIMENT)
    chance.shuffle(shuffled)
    assert summarise_cells(shuffled, ACCURACY) == summarise_cells(EXPERIMENT, ACCURACY)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="no unmasked cell"):
        summarise_cells(rows_of("sinks", 1, [[1]]), ACCURACY)
    apart = [*rows_of("none", None, [[1]]), *({**row, "problem": 7} for row in rows_of("sinks", 1, [[1]]))]
    with pytest.raises(UsageError, match="no problem has a row in every cell"):
        summarise_cells(apart, ACCURACY)


def effect(mask: float, zero: float, mean: float, *, units: int = 40, verdicts: dict[str, int] | None = None) -> Any:
    """The reading where so many of the units are lost under each act; all are right unmasked."""
    rows = rows_of("none", None, [[1] * units])
    for act, lost in (("mask", mask), ("zero", zero), ("mean", mean)):
        wrong = round(lost * units)
        rows += rows_of("sinks", 1, [[0] * wrong + [1] * (units - wrong)], act=act)
    return read_value_effect(summarise_cells(rows, ACCURACY)["cells"], verdicts or {})


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ((0.0, 0.0, 0.0), "no cost shown"),
        ((0.9, 0.0, 0.0), "no-op"),
        ((0.9, 0.1, 0.9), "no-op"),
        ((0.9, 0.9, 0.1), "bias"),
        ((0.9, 0.9, 0.9), "content"),
        ((0.9, 0.45, 0.0), "bias"),
        ((0.15, 0.05, 0.0), "undecided"),
    ],
)
def test_readings(lost: tuple[float, float, float], expected: str) -> None:
    found = effect(*lost)
    assert (found["reading"], found["top"]) == (expected, 1)
    assert found["reading"] in READINGS
    assert found["acts"]["zero"]["less_than_mask"]["value"] == pytest.approx(lost[0] - lost[1])


def test_heads_that_write_one_direction_make_it_a_broadcast() -> None:
    lost = (0.9, 0.9, 0.9)
    assert effect(*lost, verdicts={"broadcast": 3, "mixed": 2, "no sink": 9})["reading"] == "broadcast"
    assert effect(*lost, verdicts={"broadcast": 2, "mixed": 1, "no-op": 1})["reading"] == "content"


def test_few_units_are_not_read() -> None:
    assert effect(0.9, 0.0, 0.0, units=9)["reading"] == "undecided"
    right = [[1] * 3 + [0] * 17]
    rows = [row for act in ("mask", "zero", "mean") for row in rows_of("sinks", 1, right, act=act)]
    assert (
        read_value_effect(summarise_cells([*rows_of("none", None, right), *rows], ACCURACY)["cells"], {})["reading"]
        == "undecided"
    )  # not "no cost shown": the untouched model solves 3 of 20
    assert read_value_effect(summarise_cells(rows_of("none", None, [[1]]), ACCURACY)["cells"], {})["reading"] is None
