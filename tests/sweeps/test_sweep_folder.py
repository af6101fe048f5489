"""The folder of a sweep: whole files, one dataset, and no jobs of another grid."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from sweep_jobs import GRID

from sinklens.errors import SinklensError, UsageError
from sinklens.evaluation.answering import ROW
from sinklens.files import temporary_name
from sinklens.sweeps.folder import SweepFolder, read_manifest
from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Failure, Job, Outcome, Resources
from sinklens.sweeps.run import left_to_do, run_sweep, summarise

TIMING = {"problems": 2, "seconds": 1.5, "device": "cpu", "host": "here"}


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(path=tmp_path / "sweep")


def rows(job: Job, *, right: Sequence[bool] = (True, False)) -> list[dict[str, Any]]:
    """As `Job.answer` gives them, with only some columns filled: the rest are null."""
    empty = dict.fromkeys(ROW)
    told = {"job": job.fingerprint, "seed": job.seed, "condition": str(job.condition), "top": job.condition.top}
    return [{**empty, **told, "problem": number, "right": value} for number, value in enumerate(right)]


def finished(job: Job) -> Outcome:
    return Outcome(job=job, rows=rows(job), timing=TIMING)


def failed(job: Job) -> Outcome:
    return Outcome(job=job, failure=Failure(type="ModelError", message="broken", traceback="at line 3"))


def test_files_of_jobs_read_as_one_dataset(folder: SweepFolder) -> None:
    jobs = jobs_of(GRID)  # in one file all tops are null, in another all are numbers
    for job in jobs:
        folder.write(finished(job))
    table = ds.dataset(folder.path / "jobs").to_table()
    assert table.num_rows == 2 * len(jobs) and set(table["job"].to_pylist()) == {job.fingerprint for job in jobs}
    assert table.schema.names == ["job", "seed", "source", *ROW]
    assert str(table.schema.field("top").type) == "int64" and str(table.schema.field("epsilon").type) == "double"
    assert sorted(map(str, table["seed"].unique().to_pylist())) == ["0", "1", "None"]
    timings = ds.dataset(folder.path / "timings").to_table().to_pylist()
    assert {row["job"] for row in timings} == {job.fingerprint for job in jobs}
    assert (
        timings[0].items() >= {"seconds": 1.5, "host": "here", "model": "tiny-llama", "task": "word_problems"}.items()
    )


def test_a_column_that_is_not_known_is_refused(folder: SweepFolder) -> None:
    job = jobs_of(GRID)[0]
    with pytest.raises(SinklensError, match="columns that no file has: colour"):
        folder.write(Outcome(job=job, rows=[{**rows(job)[0], "colour": 3}], timing=TIMING))
    assert not folder.is_finished(job)


def test_an_error_is_kept_until_the_job_is_finished(folder: SweepFolder) -> None:
    job = jobs_of(GRID)[0]
    folder.write(failed(job))
    told = json.loads((folder.path / "errors" / f"{job.fingerprint}.json").read_text())
    assert told == {"job": job.fingerprint, "label": str(job), "type": "ModelError", "message": "broken",
                    "traceback": "at line 3"}  # fmt: skip
    assert left_to_do(folder, [job]) == [job]
    assert summarise(folder, [job])[0].items() >= {"state": "failed", "error": "ModelError: broken"}.items()
    folder.write(finished(job))
    assert not list((folder.path / "errors").iterdir()) and left_to_do(folder, [job]) == []
    assert summarise(folder, [job])[0].items() >= {"state": "finished", "right": 1, "problems": 2}.items()


def test_a_file_that_is_not_whole_has_no_name(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs_of(GRID)[0]
    seen = []

    def full(table: Any, file: Path) -> None:
        file.write_bytes(b"PAR1")
        seen.extend(entry.name for entry in os.scandir(file.parent))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(SinklensError, match=r"cannot write .*parquet \(No space left on device\); choose another"):
        folder.write(finished(job))
    (name,) = seen
    assert name.startswith(".") and name.endswith(".part")  # what readers of Parquet folders pass over
    assert not folder.is_finished(job) and not list((folder.path / "timings").iterdir())


def test_the_manifest_lists_the_jobs_and_a_grid_may_grow(folder: SweepFolder) -> None:
    small = {**GRID, "interventions": ["none"]}
    folder.claim(small, jobs_of(small))
    folder.write(finished(jobs_of(small)[0]))
    folder.claim(GRID, jobs_of(GRID))
    manifest = read_manifest(folder.path)
    assert manifest["grid"] == GRID
    assert [(job["index"], job["fingerprint"]) for job in manifest["jobs"]] == [
        (index, job.fingerprint) for index, job in enumerate(jobs_of(GRID))
    ]
    assert left_to_do(folder, jobs_of(GRID)) == jobs_of(GRID)[1:]


def test_another_grid_is_refused_by_what_differs(folder: SweepFolder) -> None:
    folder.claim(GRID, jobs_of(GRID))
    changed = {**GRID, "answering": {"length": 13}}
    with pytest.raises(UsageError, match=r"1 random, seed 0 and 1 more \(answering.length: 12 there, 13 now\); a grid"):
        folder.claim(changed, jobs_of(changed))
    fewer = {**GRID, "interventions": ["none"]}
    with pytest.raises(UsageError, match=r"does not have: tiny-llama, word_problems, 1 sink; .* give another folder"):
        folder.claim(fewer, jobs_of(fewer))
    assert read_manifest(folder.path)["grid"] == GRID


def test_a_folder_of_something_else_is_left_alone(folder: SweepFolder, tmp_path: Path) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"is not empty and holds no sweep \(thesis.tex\); give a new or an empty"):
        folder.claim(GRID, jobs_of(GRID))
    assert [entry.name for entry in folder.path.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file; give a folder"):
        SweepFolder(path=tmp_path / "file").claim(GRID, jobs_of(GRID))


def test_the_hidden_files_of_another_program_are_no_reason_to_refuse(folder: SweepFolder) -> None:
    folder.path.mkdir()
    temporary_name(folder.path / "sweep.json").touch()
    folder.claim(GRID, jobs_of(GRID))
    assert read_manifest(folder.path)["format"] == "sinklens-sweep"


@pytest.mark.parametrize(
    ("text", "message"), [("{", r"cannot be read \("), ("[]", "is of no sweep"), ('{"format": "x"}', "is of no sweep")]
)
def test_a_broken_manifest_is_named(folder: SweepFolder, text: str, message: str) -> None:
    folder.path.mkdir()
    (folder.path / "sweep.json").write_text(text)
    with pytest.raises(SinklensError, match=f"sweep.json {message}"):
        folder.claim(GRID, jobs_of(GRID))


def test_what_ends_a_sweep_early_keeps_what_is_finished(folder: SweepFolder) -> None:
    jobs, closed = jobs_of(GRID), []

    def running(left: Sequence[Job], resources: Resources) -> Any:
        try:
            yield finished(left[0])
            yield failed(left[1])
            raise KeyboardInterrupt
        finally:
            closed.append(len(left))

    seen: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        run_sweep(folder, jobs, running=running, resources=Resources(), seen=seen.append)
    assert [outcome.job for outcome in seen] == jobs[:2] and closed == [4]
    assert [state["state"] for state in summarise(folder, jobs)] == ["finished", "failed", "open", "open"]
    assert left_to_do(folder, jobs) == jobs[1:]


def test_whoever_runs_the_jobs_is_ended_when_writing_fails(folder: SweepFolder) -> None:
    closed = []

    def running(left: Sequence[Job], resources: Resources) -> Any:
        try:
            yield finished(left[0])
        finally:
            closed.append(True)

    folder.path.write_text("a file")
    with pytest.raises(SinklensError, match="cannot write") as caught:
        run_sweep(folder, jobs_of(GRID), running=running, resources=Resources())
    assert closed == [True] and caught.tb is not None  # while the error is held, nothing is closed by chance


def test_nothing_is_started_when_nothing_is_left(folder: SweepFolder) -> None:
    jobs = jobs_of(GRID)
    for job in jobs:
        folder.write(finished(job))

    def running(left: Sequence[Job], resources: Resources) -> Any:
        raise AssertionError(left)

    run_sweep(folder, jobs, running=running, resources=Resources())
