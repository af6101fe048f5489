"""`sinklens sweep`: what it prints, what it refuses, and what Ctrl-C leaves."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sinklens.cli import main
from sinklens.errors import ModelError, UsageError
from sinklens.evaluation.answering import ROW
from sinklens.sweeps import local, presence
from sinklens.sweeps.folder import SweepFolder, schema
from sinklens.sweeps.grid import jobs_of, read_grid
from sinklens.sweeps.job import Failure, Job, Outcome, Resources, Rows
from sinklens.sweeps.presence import refuse_missing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sweeps.md").read_text("utf-8")
TOML = """
models = ["tiny-llama"]
tasks = ["word_problems"]
interventions = ["none", "sinks:top=1", "random:top=1"]
seeds = [0, 1]
problems = 2
answering = { length = 12 }
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sinklens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process, in an empty folder with a grid."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")  # a table that does not fit is told row by row
    (tmp_path / "grid.toml").write_text(TOML)

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        code = end.value.code or 0
        assert isinstance(code, int)
        written = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, written.out, written.err)

    return run


def answered(job: Job, *, right: Sequence[bool] = (True, False)) -> Outcome:
    told = {"job": job.fingerprint, "seed": job.seed, "model": str(job.model), "task": job.answering.task}
    told |= {"condition": str(job.condition)}
    rows = [{**dict.fromkeys(ROW), **told, "problem": place, "right": value} for place, value in enumerate(right)]
    return Outcome(job=job, rows=rows, timing={"problems": 2, "seconds": 1.0, "device": "cpu", "host": "h"})


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs are answered at once; those whose condition is in the list fail. Whoever runs them talks."""
    conditions: list[str] = []

    def running(jobs: Sequence[Job], resources: Resources) -> Iterator[Outcome]:
        for job in jobs:
            print("a process was lost")
            broken = Failure(type="ModelError", message="no [weights]", traceback="here")
            yield Outcome(job=job, failure=broken) if str(job.condition) in conditions else answered(job)

    monkeypatch.setattr(local, "run_locally", running)
    return conditions


def states(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [job["state"] for job in json.loads(done.stdout)["jobs"]]


def test_a_failed_job_makes_the_exit_code_and_is_tried_again(sinklens: Run, failing: list[str]) -> None:
    failing.append("sinks:top=1")
    done = sinklens("sweep", "grid.toml")
    assert done.returncode == 1
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["job", "fingerprint", "model", "task", "intervention", "seed", "right", "state"]
    assert [line[-1] for line in table[1:5]] == ["finished", "failed", "finished", "finished"]
    assert table[1][2:] == ["tiny-llama", "word_problems", "none", "-", "1/2", "finished"]
    assert table[4][4:] == ["random:top=1", "1", "1/2", "finished"]
    assert "runs/sweep-grid: 3 finished, 1 failed" in done.stdout
    assert "why: runs/sweep-grid/errors; the same command tries them again" in done.stdout
    assert "4 of 4 jobs to run; rows go to runs/sweep-grid" in done.stderr
    assert "failed: tiny-llama, word_problems, 1 sink: ModelError: no [weights]" in done.stderr.replace("\n", " ")
    failing.clear()
    again = sinklens("sweep", "grid.toml", "--json")
    assert again.returncode == 0 and states(again) == ["finished"] * 4
    assert "1 of 4 jobs to run, 3 finished before" in again.stderr


def test_the_document_is_all_that_is_on_stdout(sinklens: Run, failing: list[str]) -> None:
    failing.append("none")
    done = sinklens("sweep", "grid.toml", "--to", "d", "--json")
    assert done.returncode == 1 and "a process was lost" in done.stderr
    document = json.loads(done.stdout)
    counts = {"folder": "d", "interrupted": False, "finished": 3, "failed": 1, "open": 0}
    assert document.items() >= counts.items()
    assert document["jobs"][0]["error"] == "ModelError: no [weights]"
    assert document["jobs"][3].items() >= {"index": 3, "seed": 1, "right": 1, "problems": 2}.items()


def test_a_folder_of_something_else_is_left_alone(sinklens: Run, failing: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    done = sinklens("sweep", "grid.toml", "--to", "mine")
    assert done.returncode == 2 and "mine is not empty and holds no sweep (thesis.tex); give a new" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_list_runs_nothing_and_shows_what_is_known(sinklens: Run, failing: list[str], tmp_path: Path) -> None:
    listed = sinklens("sweep", "grid.toml", "--list", "--json")
    assert listed.returncode == 0 and states(listed) == ["open"] * 4 and not (tmp_path / "runs").exists()
    failing.append("random:top=1")
    sinklens("sweep", "grid.toml")
    known = sinklens("sweep", "grid.toml", "--list", "--json")
    assert known.returncode == 0 and states(known) == ["finished"] * 2 + ["failed"] * 2
    prints = [job.fingerprint for job in jobs_of(read_grid(tmp_path / "grid.toml")[0])]
    assert [job["fingerprint"] for job in json.loads(known.stdout)["jobs"]] == prints


def test_ctrl_c_keeps_finished_jobs(sinklens: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def running(jobs: Sequence[Job], resources: Resources) -> Iterator[Outcome]:
        yield answered(jobs[0])
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(local, "run_locally", running)
    done = sinklens("sweep", "grid.toml", "--json")
    assert done.returncode == 130 and json.loads(done.stdout)["interrupted"]
    assert "interrupted: 1 of 4 jobs are finished; the same command goes on from there" in done.stderr
    assert states(done) == ["finished", "open", "open", "open"]
    folder = SweepFolder(path=tmp_path / "runs" / "sweep-grid")
    assert [folder.is_finished(job) for job in read_grid(tmp_path / "grid.toml")[1]] == [True, False, False, False]


def test_one_job_runs_in_this_process(sinklens: Run, expected: dict[str, Rows], tmp_path: Path) -> None:
    done = sinklens("sweep", "grid.toml", "--job", 2, "--to", "d", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["index"], job["condition"], job["seed"], job["state"]) == (2, "random:top=1", 0, "finished")
    (file,) = (tmp_path / "d" / "jobs").iterdir()
    assert pq.read_table(file).to_pylist() == expected[job["fingerprint"]]
    again = sinklens("sweep", "grid.toml", "--job", 2, "--to", "d")
    assert again.returncode == 0 and "0 of 1 jobs to run, 1 finished before" in again.stderr


def test_paths_start_from_where_the_command_runs(sinklens: Run, tmp_path: Path) -> None:
    """And not from where a process happens to be."""
    import shutil

    from sinklens.models.catalog import ZOO

    shutil.copytree(ZOO / "tiny-llama", tmp_path / "mine" / "model")
    (tmp_path / "grid.toml").write_text(TOML.replace("tiny-llama", "mine/model"))
    resources = Resources(device="cpu")
    assert resources.base == str(tmp_path)
    job = read_grid(tmp_path / "grid.toml")[1][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        rows = job.answer(resources)
    assert {row["model"] for row in rows} == {"mine/model"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--job", 4), "--job is 4; this grid has jobs 0 to 3: --list shows them"),
        (("--job", -1), "--job is -1; this grid has"),
        (("--job", 1, "--workers", 2), "--job runs one job in this process; leave out --on ray and --workers"),
        (("--job", 1, "--on", "ray"), "--job runs one job in this process"),
        (("--on", "slurm"), "unknown --on 'slurm'; expected one of 'local', 'ray'"),
        (("--address", "auto"), "--address auto is for --on ray; add that, or leave it out"),
        (("--workers", 0), "workers is 0; expected a whole number from 1"),
        (("--gpus-per-job", 1.5), "GPUs per job is 1.5; expected"),
    ],
)
def test_misuse_is_refused_before_anything_is_written(
    sinklens: Run, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    done = sinklens("sweep", "grid.toml", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_queries_of_the_page_run(sinklens: Run, failing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert sinklens("sweep", "grid.toml", "--to", "runs/sweep-grid").returncode == 0
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["accuracy"].fetchall() == [
        ("tiny-llama", "word_problems", "none", 1, 2, 0.5),
        ("tiny-llama", "word_problems", "random:top=1", 2, 2, 0.5),
        ("tiny-llama", "word_problems", "sinks:top=1", 1, 2, 0.5),
    ]
    assert names["seconds"].fetchall() == [(4.0,)]
    assert names["table"].num_rows == 8


def test_the_page_says_what_there_is() -> None:
    for name in ("jobs/", "errors/", "timings/", "sweep.json", "--job", "--list", "--gpus-per-job", "--address"):
        assert name in PAGE
    for column in schema().names:
        assert f"`{column}`" in PAGE
    for setting in fields(jobs_of(read_grid(ROOT / "examples" / "sweep.toml")[0])[0].answering):
        assert setting.name == "seed" or f"`{setting.name}`" in PAGE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("tiny-llama", "tiny-lama"),
            "models: unknown model 'tiny-lama'; expected a checkpoint folder, a hub id such as ",
        ),
        (
            ("tiny-llama", "./mine/model"),
            "models: no folder ./mine/model; expected a checkpoint folder: check the path",
        ),
        (('"tiny-llama"', '{ name = "tiny-llama", revision = "main" }'), "models: revision 'main' is for hub ids"),
        (('"word_problems"', '{ task = "gsm8k", data = "test.jsonl" }'), "tasks: data of gsm8k is "),
        (('"word_problems"', '{ task = "gsm8k" }'), "tasks: gsm8k reads its problems from a file and was given none"),
        (('"word_problems"', '{ task = "gsm8k", data = "one.jsonl", shots = 0 }'), "has 1 problems; 2 are asked for"),
    ],
)
def test_what_is_not_there_is_refused_when_the_grid_is_read(
    sinklens: Run, failing: list[str], tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "How many?", "answer": "One.\n#### 1"}) + "\n")
    (tmp_path / "grid.toml").write_text(TOML.replace(*change))
    done = sinklens("sweep", "grid.toml")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: grid.toml: ")
    assert message in done.stderr and not (tmp_path / "runs").exists()
    assert sinklens("sweep", "grid.toml", "--list").returncode == 0  # what is there to run can still be seen


def test_jobs_that_are_finished_need_their_model_no_more(sinklens: Run, failing: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "grid.toml").write_text(TOML.replace("tiny-llama", "./mine"))
    assert sinklens("sweep", "grid.toml").returncode == 0
    (tmp_path / "mine").rmdir()
    again = sinklens("sweep", "grid.toml")
    assert again.returncode == 0 and "0 of 4 jobs to run" in again.stderr


def test_the_disks_of_a_cluster_are_not_looked_at_from_here() -> None:
    there = {"models": ["/scratch/model"], "tasks": [{"task": "gsm8k", "data": "/scratch/test.jsonl", "length": 8}]}
    jobs = jobs_of({**there, "problems": 2})
    refuse_missing(jobs, source="g", base="/", elsewhere=True)
    with pytest.raises(UsageError, match=r"^g: models: no folder /scratch/model"):
        refuse_missing(jobs, source="g", base="/")
    with pytest.raises(UsageError, match=r"^g: models: unknown model 'tiny-lama'"):
        refuse_missing(jobs_of({**there, "models": ["tiny-lama"], "problems": 2}), source="g", base="/", elsewhere=True)


def test_a_model_that_the_hub_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that it cannot be asked about is not."""
    asked: list[Any] = []

    def answering(error: Exception) -> Callable[..., Any]:
        def download(hub_id: str, revision: str | None, patterns: list[str]) -> Any:
            asked.append((hub_id, revision, patterns))
            raise error

        return download

    jobs = jobs_of({"models": ["some/model"], "tasks": ["word_problems"], "problems": 2})
    monkeypatch.setattr(presence, "download", answering(UsageError("the hub has no such model")))
    with pytest.raises(UsageError, match=r"^g: models: the hub has no such model"):
        refuse_missing(jobs, source="g", base="/")
    monkeypatch.setattr(presence, "download", answering(ModelError("the hub cannot be reached")))
    refuse_missing(jobs, source="g", base="/")
    assert asked == [("some/model", None, ["config.json"])] * 2
