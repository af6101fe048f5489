"""`sinklens compress`: from a command line to rows, a table and figures, and on from where it stopped."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinklens.evaluation import compress_experiment
from sinklens.evaluation.compress_store import CompressStore
from sinklens.report import compress as report
from sinklens.tasks import needle

Run = Callable[..., Any]
SMALL = ("--problems", 2, "--draws", 1, "--device", "cpu")
CELLS = 1 + 2 * 2  # the whole cache; two sets of layers, each with low and random
TEXT = "One thing. Another thing. " * 40


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tasks but longbench, whose rows are all there."""
    from sinklens.cli import main

    folder = tmp_path_factory.mktemp("compress")
    (folder / "text.txt").write_text(TEXT)
    passed: tuple[Any, ...] = (
        "compress", "tiny-llama", *arguments(folder), "--rows-only", "--to", folder / "a",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(needle, "NEW_TOKENS", 4)
        main([str(part) for part in passed])
    assert end.value.code in (None, 0)
    return folder


def arguments(folder: Path) -> tuple[Any, ...]:
    asked = ("--task", "passkey,needle,lm", "--lengths", "110", "--depths", "0,100", "--keep", "90%")
    return (*asked, "--order", "low,random", "--skip", "0,1", "--skip", "0", "--text", folder / "text.txt", *SMALL)


def test_rows_of_all_cells_on_the_same_problems(finished: Path) -> None:
    rows = CompressStore(finished / "a").read("rows").to_pylist()
    for task in ("passkey", "needle"):
        some = [row for row in rows if row["task"] == task]
        cells = {row["cell"] for row in some}
        assert len(cells) == CELLS and len(some) == CELLS * 2 * 2
        assert {(row["length"], row["depth"]) for row in some} == {(110, 0.0), (110, 1.0)}
    assert {row["kept"] for row in rows if row["order"] != "none"} == {99}
    assert all(row["prompt_tokens"] == 110 for row in rows)
    texts = CompressStore(finished / "a").read("texts").to_pylist()
    assert {row["schedule"] for row in texts if row["order"] != "none"} == {"cap"}
    assert {len(row["losses"]) for row in texts} == {109} and {row["problem"] for row in texts} == {0, 1}


def test_a_rerun_makes_the_report_alone(sinklens: Run, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress_experiment, "answer", None)  # calling it would fail
    monkeypatch.setattr(compress_experiment, "read", None)
    done = sinklens("compress", "tiny-llama", *arguments(finished), "--to", finished / "a")
    assert done.returncode == 0, done.stderr
    assert "order: which entries are kept" in done.stdout and "vs random" in done.stdout
    assert "passkey, 110 tokens" in done.stdout and "language modelling, 110 tokens" in done.stdout
    assert "batches; rows, result.json, table.md and figures are in" in done.stdout
    result = json.loads((finished / "a" / "result.json").read_text())
    assert result["model"] == "tiny-llama" and len(result["grids"]) == 1 + 2 * 2
    page = (finished / "a" / "table.md").read_text()
    assert "| low | 90% | 0,1 |" in page and "| random | 90% (cap) | 0 |" in page
    for name in report.FIGURES:
        assert (finished / "a" / f"{name}.png").stat().st_size > 5000, name


def test_json_is_one_document(sinklens: Run, finished: Path) -> None:
    done = sinklens("compress", "tiny-llama", *arguments(finished), "--rows-only", "--json", "--to", finished / "a")
    document = json.loads(done.stdout)
    assert document == {"to": str(finished / "a"), "batches": document["batches"], "result": None}
    assert document["batches"] == CELLS * (2 + 2 + 1)


def test_another_experiment_in_the_folder_is_refused(sinklens: Run, finished: Path) -> None:
    done = sinklens("compress", "tiny-llama", *arguments(finished), "--seed", 5, "--to", finished / "a")
    assert done.returncode == 2 and done.stdout == ""
    assert "holds another experiment: settings.seed: 0 there, 5 now" in done.stderr


def test_longbench_from_a_folder(sinklens: Run, tmp_path: Path) -> None:
    row = json.dumps({"input": "Who?", "context": "It was Tom. " * 30, "answers": ["Tom"]}) + "\n"
    (tmp_path / "hotpotqa.jsonl").write_text(row * 2)
    asked = ("--task", "longbench", "--data", tmp_path, "--sets", "hotpotqa", "--lengths", 80, "--keep", "50%")
    done = sinklens("compress", "tiny-llama", *asked, "--order", "low", *SMALL, "--strict", "--to", "x")
    assert done.returncode == 0, done.stderr
    assert "longbench hotpotqa, 80 tokens" in done.stdout and "low, strict" in done.stdout
    told = CompressStore(tmp_path / "x").document() or {}
    assert told["decisive"]["settings"]["longbench"]["published_prompts"] is False


def test_ctrl_c_from_a_terminal(running: Run, tmp_path: Path) -> None:
    process = running("compress", "tiny-llama", "--lengths", "90", "--problems", 400, "--batch", 1, "--to", "x")
    deadline = time.monotonic() + 100
    while not list((tmp_path / "x" / "rows").glob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "") and "the same command with --to x goes on" in stderr
    assert CompressStore(tmp_path / "x").read("rows").num_rows == CompressStore(tmp_path / "x").batches()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "sums"), "unknown task 'sums'; expected one of 'lm', 'passkey'"),
        (("--task", ","), "--task ',' names nothing"),
        (("--order", "lowest"), "unknown order 'lowest'"),
        (("--keep", "half"), "keep is 'half'; expected a number of entries"),
        (("--keep", "0%"), "keep is '0%'"),
        (("--skip", "a"), "skip is 'a'; expected layers such as 0,1"),
        (("--skip", "9"), "skip '9' with 8 layers"),
        (("--lengths", "long"), "--lengths 'long' is no list of numbers"),
        (("--lengths", "20"), "a prompt of 20 tokens is asked for"),
        (("--depths", "0,200"), "--depths '0,200' is no list of percents; expected e.g. 0,50,100"),
        (("--schedule", "daily"), "unknown schedule 'daily'"),
        (("--schedule", "once", "--task", "lm"), "--schedule once with task lm"),
        (("--schedule", "cap", "--strict"), "strict is for schedule 'once'"),
        (("--draws", 0), "Invalid value for '--draws'"),
        (("--problems", 0), "Invalid value for '--problems'"),
        (("--wording", "mine"), "unknown wording 'mine'"),
        (("--text", "none.txt"), "cannot read the text none.txt"),
        (("--task", "longbench"), "longbench reads its problems from a file and was given none"),
        (("--task", "lm", "--problems", 5000), "chunks of 256 tokens, 5000 are asked for"),
    ],
)
def test_what_cannot_be_meant_is_refused(sinklens: Run, arguments: tuple[object, ...], message: str) -> None:
    done = sinklens("compress", "tiny-llama", *arguments, "--device", "cpu")
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not Path("runs").exists()


def test_a_diffusion_model_is_refused(sinklens: Run) -> None:
    done = sinklens("compress", "tiny-llada", "--device", "cpu")
    assert done.returncode == 2
    assert "tiny-llada (llada) keeps no cache of keys and values from token to token" in done.stderr
