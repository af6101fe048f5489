"""Experiments: the order of the work, what is skipped, and when it stops. Answers are scripted; models are not run."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.evaluation import experiment as module
from sinklens.evaluation.answering import ROW, Answered, Answering
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.experiment import Experiment, run_experiment
from sinklens.evaluation.grid import primary_cells
from sinklens.evaluation.pace import Pace, Progress
from sinklens.evaluation.report import summarise
from sinklens.evaluation.store import EXPERIMENT, Batch, Store, spans
from sinklens.interventions.flow import Flow
from sinklens.tasks.item import Item

CELLS = tuple(map(parse_condition, ("none", "sinks:top=1", "random:top=1", "random:top=1,draw=1")))
FLOW = Flow(run=0, step=1, layer=0, neighbours=0.1, next_ranked=0.2, others=0.1, null=0.0, new_sinks=0.5)
Right = Callable[[str, int], bool]


class Script:
    """In place of models: remembers what was asked, and answers by rule."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, right: Right = lambda condition, problem: True) -> None:
        self.asked: list[tuple[str, str, str, list[int], bool]] = []
        self.right, self.stop_after = right, -1
        monkeypatch.setattr(module, "answer_batch", self)

    def __call__(
        self, model: Any, items: Sequence[Item], condition: Condition, answering: Answering, *, name: str, follow: bool
    ) -> Answered:
        if len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        self.asked.append((name, answering.task, str(condition), [item.index for item in items], follow))
        shared = {"model": name, "task": answering.task, "condition": str(condition), "split": answering.split}
        rows = [
            dict.fromkeys(ROW) | shared | {"problem": item.index, "right": self.right(str(condition), item.index)}
            for item in items
        ]
        return Answered(rows=rows, seconds=0.25, flows=[FLOW] if follow else [])


@pytest.fixture(scope="module")
def llada(talking_llada: Path) -> Any:
    return sl.load(talking_llada)


@pytest.fixture
def made(llada: Any) -> Callable[..., Experiment]:
    def make(**given: Any) -> Experiment:
        tasks = given.pop("tasks", ("word_problems", "passkey"))
        answering = {"length": 8, "batch": 4} | given.pop("answering", {})
        settings = {"problems": 6, "models": {"m": llada}} | given
        settings.setdefault("cells", dict.fromkeys(settings["models"], CELLS))
        return Experiment(answerings=[Answering(task=task, **answering) for task in tasks], **settings)

    return make


def test_batches_of_problems_come_first_then_models_tasks_and_cells(
    made: Any, llada: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, told = Script(monkeypatch), list[Progress]()
    ran = run_experiment(made(models={"m": llada, "n": llada}), tmp_path, progress=told.append)
    expected = [
        (model, task, str(cell), list(range(*span)))
        for span in ((0, 4), (4, 6))
        for model in ("m", "n")
        for task in ("word_problems", "passkey")
        for cell in CELLS
    ]
    assert [(model, task, cell, sorted(numbers)) for model, task, cell, numbers, _ in script.asked] == expected
    assert (ran.batches, ran.answered, ran.problems, ran.stopped_early) == (32, 32, 6, False)
    assert [one.done for one in told] == list(range(32)) and {one.total for one in told} == {32}
    assert told[0].seconds_left is None and told[1].seconds_left is not None
    rows = Store(tmp_path).read("rows").to_pylist()
    assert len(rows) == 2 * 2 * 4 * 6
    assert len({(row["model"], row["task"], row["condition"], row["problem"]) for row in rows}) == len(rows)


def test_timings_and_flows_have_tables_of_their_own(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch)
    run_experiment(made(tasks=("passkey",)), tmp_path)
    timings = Store(tmp_path).read("timings").to_pylist()
    assert len(timings) == 8 and {one["seconds"] for one in timings} == {0.25}
    assert sum(one["problems"] for one in timings) == 4 * 6
    flows = Store(tmp_path).read("flows").to_pylist()
    # of the first problems, once a control, and not where nothing is masked
    assert [(one["condition"], one["start"]) for one in flows] == [("random:top=1", 0), ("sinks:top=1", 0)]
    assert flows[0]["neighbours"] == pytest.approx(0.25) and flows[0]["new_sinks"] == 0.5
    assert {one["condition"] for one in timings if one["followed"]} == {"random:top=1", "sinks:top=1"}


def test_an_interrupted_experiment_goes_on_and_does_nothing_twice(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Script(monkeypatch)
    run_experiment(made(), tmp_path / "whole")
    cut = Script(monkeypatch)
    cut.stop_after = 10
    with pytest.raises(KeyboardInterrupt):
        run_experiment(made(), tmp_path / "cut")
    rows = Store(tmp_path / "cut").read("rows").to_pylist()
    assert len(Store(tmp_path / "cut").finished()) == 10
    by_cell = [row["problem"] for row in rows if row["condition"] == "none" and row["task"] == "passkey"]
    assert by_cell == [0, 1, 2, 3]  # all cells of both tasks have the first batch
    rest = Script(monkeypatch)
    ran = run_experiment(made(), tmp_path / "cut")
    assert cut.asked + rest.asked == whole.asked
    assert (ran.batches, ran.answered) == (16, 6)
    assert Store(tmp_path / "cut").read("rows").equals(Store(tmp_path / "whole").read("rows"))
    again = Script(monkeypatch)
    assert run_experiment(made(), tmp_path / "cut").answered == 0 and again.asked == []


def test_more_problems_are_added_behind_those_that_are_there(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    Script(monkeypatch)
    run_experiment(made(tasks=("passkey",)), tmp_path)
    more, wanted = Script(monkeypatch), made(tasks=("passkey",), problems=13, answering={"batch": 5})
    ran = run_experiment(wanted, tmp_path)  # another batch is the same experiment
    assert sorted({tuple(sorted(numbers)) for *_, numbers, _ in more.asked}) == [tuple(range(6, 11)), (11, 12)]
    assert ran.problems == 13 and json.loads((tmp_path / EXPERIMENT).read_text())["problems"] == 13


def test_fewer_problems_are_those_that_are_there(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Batches of the larger number stay whole: cut to the smaller one, they would be answered and counted twice."""
    Script(monkeypatch)
    whole = run_experiment(made(problems=10), tmp_path)
    for count in (6, 1, 10):
        again = Script(monkeypatch)
        assert run_experiment(made(problems=count), tmp_path) == replace(whole, answered=0)
        assert again.asked == [] and json.loads((tmp_path / EXPERIMENT).read_text())["problems"] == 10
    rows = Store(tmp_path).read("rows", ["task", "condition", "problem"]).to_pylist()
    assert len(rows) == len({tuple(row.values()) for row in rows}) == 2 * 4 * 10


def test_fewer_problems_finish_the_batch_that_was_begun(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cut = Script(monkeypatch)
    cut.stop_after = 5  # four cells of the first batch, one of the second
    with pytest.raises(KeyboardInterrupt):
        run_experiment(made(problems=20, tasks=("passkey",)), tmp_path)
    rest = Script(monkeypatch)
    ran = run_experiment(made(problems=6, tasks=("passkey",)), tmp_path)
    assert [sorted(numbers) for *_, numbers, _ in rest.asked] == [[4, 5, 6, 7]] * 3
    assert (ran.batches, ran.problems) == (8, 8)


def test_a_smaller_batch_finishes_what_a_larger_one_began(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    script = Script(monkeypatch)
    script.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        run_experiment(made(problems=4, tasks=("passkey",)), tmp_path)
    script.stop_after = -1
    run_experiment(made(problems=4, tasks=("passkey",), answering={"batch": 3}), tmp_path)
    assert [len(numbers) for *_, numbers, _ in script.asked] == [4, 3, 1, 3, 1, 3, 1]
    rows = Store(tmp_path).read("rows", ["problem"]).to_pylist()
    assert [row["problem"] for row in rows] == [0, 1, 2, 3] * 4


def test_a_task_with_fewer_problems_ends_earlier(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    every = module.problems
    monkeypatch.setattr(
        module, "problems", lambda one, count: every(one, min(count, 5 if one.task == "passkey" else 99))
    )
    for _ in range(2):  # the second time, what is there has to be recognised
        script = Script(monkeypatch)
        ran = run_experiment(made(problems=7, cells={"m": CELLS[:1]}), tmp_path)
        assert ran.batches == 4 and ran.problems == 7
    assert script.asked == []
    rows = Store(tmp_path).read("rows", ["task", "problem"]).to_pylist()
    found = {task: [row["problem"] for row in rows if row["task"] == task] for task in ("passkey", "word_problems")}
    assert found == {"passkey": list(range(5)), "word_problems": list(range(7))}


def test_another_experiment_is_refused(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    Script(monkeypatch)
    run_experiment(made(tasks=("passkey",)), tmp_path)
    with pytest.raises(UsageError, match=r"tasks.passkey.length: 8 there, 9 now"):
        run_experiment(made(tasks=("passkey",), answering={"length": 9}), tmp_path)
    with pytest.raises(UsageError, match=r"cells.m: \[.*\"sinks:top=1\".*\] there, nothing now"):
        run_experiment(made(tasks=("passkey",), cells={"m": CELLS[:1]}), tmp_path)
    with pytest.raises(UsageError, match="stop_early: false there, true now"):
        run_experiment(made(tasks=("passkey",), stop_early=True), tmp_path)


def test_experiment_json_says_what_decides_rows_and_what_models_are(made: Any, tmp_path: Path) -> None:
    told = made().document()
    assert told["models"]["m"]["causal"] is False and told["models"]["m"]["family"] == "llada"
    assert told["decisive"]["cells"] == {"m": [str(cell) for cell in CELLS]}
    assert told["decisive"]["tasks"]["passkey"]["length"] == 8 and "batch" not in told["decisive"]["tasks"]["passkey"]
    assert len(told["decisive"]["models"]["m"]["weights_sha256"]) == 64
    assert made(problems=99).document()["fingerprint"] == told["fingerprint"]
    json.dumps(told, allow_nan=False)


def test_experiment_json_declares_the_primary_contrasts(made: Any, llada: Any) -> None:
    contrast = {"a": "sinks:top=1", "b": "random:top=1", "draws": 2}
    told = made(models={"m": llada, "n": llada}, stop_early=True).document()
    assert told["primary"] == {name: {"word_problems": contrast, "passkey": contrast} for name in "mn"}
    assert told["watched"] == 4
    fixed = made(models={"m": llada, "n": llada}, cells={"m": CELLS, "n": CELLS[:2]}, tasks=("passkey",)).document()
    assert fixed["primary"] == {"m": {"passkey": contrast}, "n": {"passkey": None}}
    assert fixed["watched"] is None  # nothing is watched where the number of problems is fixed


def test_what_was_declared_is_reported_when_it_is_there(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    five = [parse_condition(text) for text in ("sinks:top=5", "random:top=5", "random:top=5,draw=1")]
    wanted = made(tasks=("passkey",), problems=4, cells={"m": (*CELLS, *five)}, stop_early=True)
    found = []
    for stop_after in (4, 2, -1):  # without five keys, then with one of two draws, then whole
        Script(monkeypatch).stop_after = stop_after
        with nullcontext() if stop_after < 0 else pytest.raises(KeyboardInterrupt):
            run_experiment(wanted, tmp_path)
        result = summarise(tmp_path)
        (family,) = result["families"]
        found.append((family["primary"] and family["primary"]["a"], family["no_primary"]))
        assert result["rules"]["watched"] == 1
    declared = "declared as sinks:top=5 - random:top=5"
    assert found == [
        (None, f"{declared}; there are no rows yet of sinks:top=5, random:top=5"),
        (None, f"{declared}; random:top=5 has 1 of 2 draws yet"),
        ("sinks:top=5", None),
    ]


# -------------------------------------------------------------------------------------- stopping early


def test_it_stops_when_every_contrast_is_decided_and_all_cells_share_the_number(
    made: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    Script(monkeypatch, right=lambda condition, problem: not condition.startswith("sinks"))
    wanted = made(stop_early=True, problems=20, answering={"batch": 7})
    ran = run_experiment(wanted, tmp_path)
    assert ran.stopped_early and ran.problems == 14  # an even chance, 14 times: more than 20 to 1 for either task
    rows = Store(tmp_path).read("rows").to_pylist()
    counts = {(row["task"], row["condition"]): 0 for row in rows}
    for row in rows:
        counts[row["task"], row["condition"]] += 1
    assert set(counts.values()) == {ran.problems} and len(counts) == 8
    again = Script(monkeypatch)
    assert run_experiment(wanted, tmp_path) == replace(ran, answered=0)
    assert again.asked == []


def test_it_goes_on_while_one_contrast_is_open(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    Script(monkeypatch, right=lambda condition, problem: True)  # nothing to be found
    ran = run_experiment(made(stop_early=True, tasks=("passkey",)), tmp_path)
    assert not ran.stopped_early and ran.problems == 6


def test_the_primary_contrast() -> None:
    def primary(*texts: str, causal: bool = False) -> tuple[str, list[str]]:
        sinks, draws = primary_cells([parse_condition(text) for text in texts], causal=causal)
        return str(sinks), [str(draw) for draw in draws]

    random = [f"random:top=5{draw}" for draw in ("", ",draw=1")]
    assert primary("sinks:top=5", *random, "sinks:top=10", "random:top=10") == ("sinks:top=5", random)
    assert primary("sinks:top=1", "random:top=1", "sinks:top=3", "random:top=3", "sinks:top=9")[0] == "sinks:top=3"
    own = primary("sinks:top=5", "random:top=5", "random:top=5,keys=cached", "sinks:top=5,keys=cached")
    assert own == ("sinks:top=5", ["random:top=5"])
    said = ("sinks:top=5,keys=cached", "random:top=5,queries=last", "random:top=5,queries=last,draw=1")
    assert primary(*said, causal=True) == (said[0], list(said[1:]))  # the family's own, said aloud
    with pytest.raises(UsageError, match="no primary contrast"):
        primary(*said[:1], "random:top=5,keys=cached")
    with pytest.raises(UsageError, match="no primary contrast"):
        primary("none", "sinks:top=5", "random:top=1", "random:top=5,keys=cached")


# ------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"problems": 0}, "problems is 0; expected at least 1"),
        ({"models": {}}, "at least one model and one task"),
        ({"tasks": ("passkey", "passkey")}, "a task stands twice"),
        ({"cells": {"m": (*CELLS, CELLS[0])}}, "condition 'none' stands twice"),
        (
            {"stop_early": True, "cells": {"m": CELLS[:2]}},
            "m: stopping early watches a contrast, but there is no primary",
        ),
        (
            {"cells": {"m": (parse_condition("sinks:top=1,rank_by=last_row"),)}},
            r"condition 'sinks:top=1,rank_by=last_row' for .*: rank_by='last_row' is for causal models",
        ),
        ({"cells": {"m": (parse_condition("other_head:top=1,scope=layer"),)}}, "scope='layer' for OtherHead"),
        ({"answering": {"length": 8, "block": 3}}, "length 8 is not a multiple of block 3"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(made: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(**given)


def test_blocks_are_for_families_that_have_them(made: Any) -> None:
    causal = sl.load("tiny-llama")
    with pytest.raises(UsageError, match="block is for LLaDA and MMaDA, and no model"):
        made(models={"a": causal}, answering={"block": 4})


def test_graders_are_tried_before_models_write(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    script, graded = Script(monkeypatch), list[str]()

    def refuse(task: str, items: Any, texts: Any, *, unsafe: bool) -> list[bool]:
        graded.append(task)
        raise UsageError("no sandbox here")

    monkeypatch.setattr(module, "graded", refuse)
    with pytest.raises(UsageError, match="no sandbox here"):
        run_experiment(made(tasks=("small_programs",)), tmp_path)
    assert script.asked == [] and graded == ["small_programs"]


# ----------------------------------------------------------------------------------------- spans, pace


@given(st.lists(st.integers(1, 9), max_size=4), st.sets(st.integers(0, 3)), st.integers(1, 60), st.integers(1, 20))
def test_spans_cover_every_problem_once_and_keep_those_that_are_there(
    sizes: list[int], lost: set[int], count: int, batch: int
) -> None:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    whole = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    known = [span for number, span in enumerate(whole) if number not in lost]
    ended = [(start, stop - 1) for start, stop in known if stop - start > 1]  # of a task with fewer problems
    found = spans([*known, *ended], count=count, batch=batch)
    covered = [problem for start, stop in found for problem in range(start, stop)]
    assert covered == list(range(len(covered))) and len(covered) >= count
    assert all(span in found for span in known if span[0] < count)
    assert all(stop - start <= batch for start, stop in found if (start, stop) not in known)


def test_the_time_left_is_judged_by_the_nearest_kin() -> None:
    def batch(condition: str, model: str = "m", stop: int = 10) -> Batch:
        return Batch(model=model, task="t", condition=parse_condition(condition), start=0, stop=stop)

    pace = Pace()
    assert pace.left([batch("none")]) is None
    pace.add(batch("none"), 10.0)
    assert pace.left([batch("none", stop=5)]) == 5.0
    assert pace.left([batch("sinks:top=1"), batch("sinks:top=1,keys=cached")]) == 20.0 + 40.0
    pace.add(batch("sinks:top=1"), 30.0)
    assert pace.of(batch("sinks:top=1")) == pace.of(batch("random:top=5")) == 30.0
    assert pace.of(batch("none", model="n")) == pytest.approx(40 / 3)
