"""`sinklens mask`: from a command line to rows and a report, and on from where it stopped."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinklens.evaluation import experiment
from sinklens.evaluation.store import Store

SMALL = ("--problems", 3, "--batch", 2, "--length", 4, "--steps", 2, "--device", "cpu")
FEW = ("--top", "0,1", "--draws", 2)
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose rows are all there."""
    from sinklens.cli import main

    folder = tmp_path_factory.mktemp("mask") / "a"
    with pytest.raises(SystemExit) as end:
        main([str(part) for part in ("mask", "tiny-llada", *FEW, *SMALL, "--rows-only", "--to", folder)])
    assert end.value.code in (None, 0)
    return folder


def test_rows_of_all_cells_on_the_same_problems(finished: Path) -> None:
    rows = Store(finished).read("rows").to_pylist()
    cells = ["none", "random:top=1", "random:top=1,draw=1", "sinks:top=1"]
    assert sorted({row["condition"] for row in rows}) == cells
    for cell in cells:
        assert [row["problem"] for row in rows if row["condition"] == cell] == [0, 1, 2]
    assert all((row["dose"] is None) == (row["condition"] == "none") for row in rows)
    told = Store(finished).document() or {}
    assert told["models"]["tiny-llada"]["causal"] is False and told["problems"] == 3


def test_a_rerun_with_all_rows_there_makes_the_report_alone(
    sinklens: Run, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "answer_batch", None)  # calling it would fail
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.parquet")}
    done = sinklens("mask", "tiny-llada", *FEW, *SMALL, "--to", finished)
    assert done.returncode == 0, done.stderr
    assert "tiny-llada" in done.stdout and "8 batches; rows, result.json, table.md and figures" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.parquet")} == before
    result = json.loads((finished / "result.json").read_text())
    (family,) = result["families"]
    assert family["n"] == 3 and [cell["condition"] for cell in family["cells"]] == [
        "none",
        "sinks:top=1",
        "random:top=1",
    ]
    assert "tiny-llada" in (finished / "table.md").read_text()
    assert (finished / "figure_masking.png").stat().st_size > 5000


def test_json_is_one_document(sinklens: Run, finished: Path) -> None:
    done = sinklens("mask", "tiny-llada", *FEW, *SMALL, "--rows-only", "--json", "--to", finished)
    document = json.loads(done.stdout)
    assert document == {
        "to": str(finished), "batches": 8, "answered": 0, "problems": 3, "stopped_early": False, "result": None,
    }  # fmt: skip


def test_another_experiment_in_the_folder_is_refused(sinklens: Run, finished: Path) -> None:
    done = sinklens("mask", "tiny-llada", *FEW, *SMALL, "--seed", 5, "--to", finished)
    assert done.returncode == 2 and done.stdout == ""
    assert "holds another experiment: tasks.word_problems.seed: 0 there, 5 now" in done.stderr


def test_an_interrupt_loses_nothing_and_says_how_to_go_on(
    sinklens: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, calls = experiment.answer_batch, []

    def twice(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(*given, **more)

    monkeypatch.setattr(experiment, "answer_batch", twice)
    cells = tmp_path / "cells.txt"
    cells.write_text("none\n\n# the sinks\nsinks:top=1,keys=cached  # as in a cache\n")
    command = ("mask", "tiny-llada", "--cells", cells, *SMALL, "--to", "my runs", "--rows-only")
    done = sinklens(*command)
    assert done.returncode == 130 and done.stdout == ""
    assert "interrupted: finished batches in my runs: 2; the same command with --to 'my runs' goes on" in done.stderr
    again = sinklens(*command)
    assert again.returncode == 0 and "4 batches in my runs" in again.stdout
    assert len(calls) == 3 + 2
    assert {row["condition"] for row in Store(tmp_path / "my runs").read("rows").to_pylist()} == {
        "none",
        "sinks:top=1,keys=cached",
    }


def test_ctrl_c_from_a_terminal(running: Run, tmp_path: Path) -> None:
    few = ("--problems", 400, "--batch", 1, "--length", 8, "--device", "cpu")
    process = running("mask", "tiny-llama", *few, "--to", "x")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "x" / "rows").glob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "") and "the same command with --to x goes on" in stderr
    assert Store(tmp_path / "x").read("rows").num_rows == len(Store(tmp_path / "x").finished())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "sums"), "unknown task 'sums'"),
        (("--top", "one"), "--top 'one' is no list of numbers"),
        (("--epsilon", "1,x"), "--epsilon '1,x' is no list of numbers; expected e.g. 1,2,3,5,10"),
        (("--control", "sinks"), "unknown control 'sinks'; expected one of 'random'"),
        (("--act", "drop"), "unknown act 'drop'"),
        (("--draws", 0), "Invalid value for '--draws'"),
        (("--problems", 0), "Invalid value for '--problems'"),
        (("--split", "exam"), "unknown split 'exam'"),
        (("--cells", "none.txt"), "cannot read --cells none.txt"),
        (("--cells", "none.txt", "--top", "1", "--act", "zero"), "leave out --top, --act"),
        (("--top", "0", "--stop-early"), "stopping early watches a contrast"),
        (("tiny-llada",), "a model stands twice"),
        (("--cells", "/dev/null"), "--cells /dev/null holds no condition"),
    ],
)
def test_what_cannot_be_meant_is_refused(sinklens: Run, arguments: tuple[object, ...], message: str) -> None:
    done = sinklens("mask", "tiny-llada", *arguments, "--device", "cpu")
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not Path("runs").exists()


def test_a_published_task_is_answered_in_blocks(sinklens: Run, tmp_path: Path) -> None:
    row = json.dumps({"question": "How many?", "answer": "#### 1"}) + "\n"
    for split, count in (("train", 6), ("test", 1)):
        (tmp_path / f"{split}.jsonl").write_text(row * count)
    sized = ("--problems", 1, "--length", 32, "--steps", 1, "--top", "0", "--device", "cpu", "--rows-only")
    done = sinklens("mask", "tiny-llada", "--task", "gsm8k", "--data", tmp_path, *sized, "--to", "g")
    assert done.returncode == 0, done.stderr
    told = Store(tmp_path / "g").document() or {}
    assert told["decisive"]["tasks"]["gsm8k"]["block"] == 32
