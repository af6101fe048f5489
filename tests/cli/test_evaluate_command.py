"""`sinklens evaluate`: the share of problems solved, in a table, in JSON, and in a folder that goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

import sinklens.evaluation.experiment as experiments
from sinklens.cli.evaluate import length_of, read_data, settle_block
from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering
from sinklens.evaluation.scores import scores
from sinklens.models.load import load

SHORT = ("--length", "6", "--batch", "2")


def row(**given: Any) -> dict[str, Any]:
    plain = {
        "model": "m",
        "task": "t",
        "split": "test",
        "condition": "none",
        "right": True,
        "grades": '{"right": true}',
    }
    return {**plain, "dose": None, "keys_removed": None, "tokens": 10, "steps": 20, **given}


def test_scores_count_by_task_condition_and_grader() -> None:
    rows = [
        row(task="gsm8k", problem=n, right=n < 3, grades=json.dumps({"strict": n < 3, "flexible": n < 6}), tokens=n)
        for n in range(8)
    ]
    masked = {"condition": "sinks:top=5", "right": False, "grades": '{"right": false}'}
    rows += [row(**masked, problem=n, dose=0.5 + n / 10) for n in range(2)]
    timings = [{"model": "m", "task": "gsm8k", "condition": "none", "problems": 4, "seconds": s} for s in (1.0, 3.0)]
    first, second = scores(rows, timings)
    assert (first["task"], first["problems"], first["label"], first["seconds"]) == ("gsm8k", 8, "unmasked", 0.5)
    assert first["right"] == first["graders"]["strict"]
    assert first["right"]["value"] == 3 / 8 and first["graders"]["flexible"]["value"] == 6 / 8
    assert first["right"]["low"] == pytest.approx(0.137, abs=1e-3)  # Wilson's, of 3 in 8
    assert first["right"]["high"] == pytest.approx(0.694, abs=1e-3)
    assert first["tokens"] == 3.5 and first["dose"] is None
    assert second["label"] == "5 sinks" and second["dose"] == pytest.approx(0.55) and second["seconds"] is None
    assert second["right"]["value"] == 0.0 and second["right"]["high"] < 1
    assert scores([]) == []


def test_a_problem_counts_once() -> None:
    rows = [row(problem=n, **one) for n in range(3) for one in ({}, {"task": "u"}, {"condition": "sinks:top=5"})]
    assert [one["problems"] for one in scores(rows)] == [3, 3, 3]
    with pytest.raises(UsageError, match=r"problem 1 of m, t, test stands twice under 'sinks:top=5'; expected one row"):
        scores([*rows, row(condition="sinks:top=5", problem=1)])


def test_a_model_is_evaluated_and_a_rerun_goes_on(sinklens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first batch, on again, then more problems: what is there is not answered again."""
    answered: list[int] = []
    interrupted: list[bool] = []
    real = experiments.answer_batch

    def answer(model: Any, items: Any, condition: Any, *rest: Any, **options: Any) -> Any:
        if len(answered) == 1 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        answered.append(items[0].index)
        return real(model, items, condition, *rest, **options)

    monkeypatch.setattr(experiments, "answer_batch", answer)
    command = ("evaluate", "tiny-llama", *SHORT, "--to", "runs/a")
    cut = sinklens(*command, "--problems", "4")
    assert cut.returncode == 130 and cut.stdout == ""
    assert "interrupted: finished batches in runs/a: 1; the same command with --to runs/a goes on" in cut.stderr
    done = sinklens(*command, "--problems", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert "already" not in cut.stderr
    assert "batches that were in runs/a already: 1; what is missing runs" in done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert (found["task"], found["condition"], found["problems"]) == ("word_problems", "none", 4)
    assert found["right"]["value"] == 0.0  # six tokens solve nothing
    assert found["right"]["high"] == pytest.approx(0.490, abs=1e-3) and found["tokens"] == 6
    assert json.loads(Path("runs/a/scores.json").read_text())["results"] == [found]
    more = sinklens(*command, "--problems", "6")
    assert more.returncode == 0 and "word_problems" in more.stdout and "0.0 to 39.0" in more.stdout
    assert len(answered) == 3  # of two problems each


def test_a_rerun_with_fewer_problems_counts_these_alone(sinklens) -> None:
    command = ("evaluate", "tiny-llama", *SHORT, "--to", "runs/a", "--json")
    for asked in ("4", "3"):
        done = sinklens(*command, "--problems", asked)
        assert done.returncode == 0 and "fewer than" not in done.stderr
        (found,) = json.loads(done.stdout)["results"]
        assert found["problems"] == found["right"]["n"] == int(asked)
    assert json.loads(Path("runs/a/scores.json").read_text())["results"][0]["problems"] == 3


def test_a_file_with_fewer_problems_than_asked_for_is_said(sinklens) -> None:
    lines = [{"question": f"How many are {n} and 1?", "answer": f"So many.\n#### {n + 1}"} for n in range(2)]
    Path("test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = (
        "evaluate",
        "tiny-llama",
        *SHORT,
        "--task",
        "gsm8k,word_problems",
        "--data",
        "test.jsonl",
        "--shots",
        "0",
    )
    done = sinklens(*command, "--problems", "3", "--json", "--to", "runs/a")
    assert done.returncode == 0, done.stderr
    assert "gsm8k has 2 problems here, fewer than the 3 asked for: all of them count\n" in done.stderr
    assert "word_problems has" not in done.stderr
    assert [one["problems"] for one in json.loads(done.stdout)["results"]] == [2, 3]
    enough = sinklens(*command, "--problems", "2", "--to", "runs/b")
    assert enough.returncode == 0 and "fewer than" not in enough.stderr


def test_conditions_stand_in_the_order_they_were_asked(sinklens) -> None:
    masks = ("--mask", "sinks:top=1", "--mask", "none")
    tasks = ("--task", "word_problems,passkey", "--problems", "1", "--length", "3")
    done = sinklens("evaluate", "tiny-llama", *tasks, *masks, "--json", "--to", "runs/b")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"]
    assert [(one["task"], one["condition"]) for one in found] == [
        ("word_problems", "sinks:top=1"), ("word_problems", "none"), ("passkey", "sinks:top=1"), ("passkey", "none"),
    ]  # fmt: skip
    assert found[0]["dose"] is not None and found[1]["dose"] is None
    other = sinklens("evaluate", "tiny-llama", *tasks, "--to", "runs/b")
    assert other.returncode == 2 and "holds another experiment" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "word_problem"), "unknown task 'word_problem'"),
        (("--mask", "sink:top=5"), "sink"),
        (("--data", "x"), "--data x: of the tasks asked, none read files"),
        (
            ("--task", "gsm8k", "--data", "x"),
            "data of gsm8k is x, which is not there; give ",
        ),
        (("--shots", "3"), "--shots 3 with --task word_problems: only gsm8k takes worked examples; leave it out"),
        (("--problems", "0"), "--problems"),
        (("--threshold", "0.9"), "threshold"),
    ],
)
def test_what_cannot_be_meant_is_refused(sinklens, arguments: tuple[str, ...], message: str) -> None:
    done = sinklens("evaluate", "tiny-llama", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_files_belong_to_the_tasks_that_read_them() -> None:
    assert read_data(["a.jsonl"], ["word_problems", "gsm8k"]) == {"word_problems": None, "gsm8k": "a.jsonl"}
    both = ["gsm8k", "humaneval"]
    assert read_data(["gsm8k=a=b", "humaneval=c"], both) == {"gsm8k": "a=b", "humaneval": "c"}
    with pytest.raises(UsageError, match="gsm8k, humaneval read files; expected TASK=PATH for each"):
        read_data(["a"], both)
    with pytest.raises(UsageError, match="humaneval is no task asked for"):
        read_data(["humaneval=a"], ["gsm8k"])


def test_published_tasks_have_the_sizes_of_the_paper(llada: Path, dream: Path) -> None:
    with_blocks, without = load(llada), load(dream)

    def settled(task: str, model: Any, length: int | None = None, block: int | None = None) -> tuple[int, int | None]:
        found = settle_block(Answering(task=task, length=length_of(task, length), block=block), model)
        return found.length, found.block

    assert settled("gsm8k", with_blocks) == (256, 32)
    assert settled("humaneval", without) == (512, None)
    assert settled("gsm8k", with_blocks, 100) == (100, None)
    assert settled("gsm8k", with_blocks, 64, 16) == (64, 16)
    assert settled("word_problems", with_blocks) == (64, None)
