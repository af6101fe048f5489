"""Jobs in processes of this machine: the rows, a process that is lost, a job that fails, and the end of it all."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from sweep_jobs import GRID, MISSING, begun, deadly, rows_in, troubled

from sinklens.errors import UsageError
from sinklens.evaluation.memory import Room
from sinklens.sweeps import local
from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Job, Outcome, Resources, Rows, attempt
from sinklens.sweeps.local import gpus_of, run_locally
from sinklens.sweeps.run import left_to_do, run_sweep, summarise


@dataclass(frozen=True, kw_only=True)
class Made:
    folder: SweepFolder
    jobs: list[Job]
    outcomes: list[Outcome]
    record: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Two processes at once; one job loses its process once, one each time, and one fails."""
    record = tmp_path_factory.mktemp("record")
    folder = SweepFolder(path=tmp_path_factory.mktemp("sweep") / "out")
    jobs, outcomes = troubled(record), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(local, "RETRIES", 1)
        resources = Resources(workers=2, device="cpu")
        run_sweep(folder, jobs, running=run_locally, resources=resources, seen=outcomes.append)
    yield Made(folder=folder, jobs=jobs, outcomes=outcomes, record=record)


def test_rows_are_those_of_one_process_bit_for_bit(made: Made, expected: dict[str, Rows]) -> None:
    assert rows_in(made.folder) == expected  # each job once, each row once
    assert [len(rows) for rows in expected.values()] == [2] * 4
    texts = {job.fingerprint: [row["text"] for row in expected[job.fingerprint]] for job in made.jobs[:4]}
    assert len({tuple(text) for text in texts.values()}) > 1  # the interventions did something


def test_a_process_that_is_killed_costs_a_retry(made: Made) -> None:
    assert begun(made.record / "once") == 2
    assert len(set((made.record / "once").read_text().split())) == 2  # processes
    assert str(os.getpid()) not in (made.record / "once").read_text().split()
    assert summarise(made.folder, made.jobs)[1]["state"] == "finished"


def test_a_job_that_loses_every_process_fails_and_stops_no_other(made: Made) -> None:
    assert begun(made.record / "lost") == 2
    failure = made.folder.failure_of(made.jobs[5])
    assert failure is not None and failure.type == "WorkerLost"
    assert failure.message.startswith("the process that ran it ended 2 times, the last time with signal 9; memory")


def test_a_job_that_fails_is_recorded_and_stops_no_other(made: Made) -> None:
    failure = made.folder.failure_of(made.jobs[4])
    assert failure is not None and failure.type == "UsageError"
    assert f"no folder {MISSING}" in failure.message and "Traceback (most recent call last)" in failure.traceback
    assert "load_once" in failure.traceback
    assert [state["state"] for state in summarise(made.folder, made.jobs)] == ["finished"] * 4 + ["failed"] * 2
    assert left_to_do(made.folder, made.jobs) == made.jobs[4:]


def test_each_job_has_one_outcome_and_its_process_ends(made: Made) -> None:
    assert sorted(outcome.job.fingerprint for outcome in made.outcomes) == sorted(j.fingerprint for j in made.jobs)
    assert active_children() == []
    first = made.outcomes[0]
    assert first.timing["device"] == "cpu" and first.timing["problems"] == 2 and first.timing["seconds"] > 0


def test_closing_ends_the_processes_and_leaves_the_environment(tmp_path: Path) -> None:
    before = dict(os.environ)
    job = deadly(jobs_of(GRID)[0], tmp_path / "begun", lives=0)
    outcomes = run_locally([job, *jobs_of(GRID)[1:]], Resources(device="cpu"))
    next(outcomes)
    (process,) = active_children()
    outcomes.close()
    assert active_children() == [] and not process.is_alive()
    assert dict(os.environ) == before


def test_threads_are_those_of_the_job_and_only_while_it_runs() -> None:
    seen, before = [], torch.get_num_threads()

    class Watching(Job):
        def answer(self, resources: Resources, room: Room | None = None) -> Rows:
            seen.append(torch.get_num_threads())
            time.sleep(0.01)
            raise ValueError("nothing to say")

    job = jobs_of(GRID)[0]
    watching = Watching(model=job.model, condition=job.condition, answering=job.answering, problems=1)
    outcome = attempt(watching, Resources(threads=before + 1))
    assert outcome.rows is None and outcome.failure is not None
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", "nothing to say")
    assert seen == [before + 1] and torch.get_num_threads() == before


def test_an_interrupt_is_no_failure_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object) -> Rows:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("a library's own") from None
        return []

    monkeypatch.setattr(Job, "answer", answer)
    with pytest.raises(KeyboardInterrupt):
        attempt(jobs_of(GRID)[0], Resources())


def test_more_problems_than_there_are_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.sweeps.job.problems", lambda answering, count: [])
    failure = attempt(jobs_of(GRID)[0], Resources()).failure
    assert failure is not None
    assert failure.message == "word_problems, split test, has 0 problems; 2 are asked for: ask for fewer"


def test_a_share_of_gpus_names_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpus_of(number, 0.0) for number in range(2)] == [None, None]
    assert [gpus_of(number, 1.0) for number in range(3)] == ["0", "1", "2"]
    assert [gpus_of(number, 0.5) for number in range(4)] == ["0", "0", "1", "1"]
    assert [gpus_of(number, 0.3) for number in range(4)] == ["0", "0", "0", "1"]
    assert [gpus_of(number, 2.0) for number in range(2)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert [gpus_of(number, 1.0) for number in range(2)] == ["GPU-a", "GPU-b"]
    with pytest.raises(UsageError, match="2 workers with 2 GPUs each, and CUDA_VISIBLE_DEVICES names 2; use fewer"):
        gpus_of(1, 2.0)
    with pytest.raises(UsageError, match="3 workers with 1 GPUs each"):
        next(run_locally(jobs_of(GRID), Resources(workers=3, gpus=1.0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers is 0; expected a whole number from 1"),
        ({"threads": 0}, "threads is 0; expected a whole number from 1"),
        ({"gpus": -1.0}, "GPUs per job is -1; expected 0, a share of one such as 0.5, or a whole number"),
        ({"gpus": 1.5}, "GPUs per job is 1.5; expected"),
        ({"gpus": 1.0, "device": "cpu"}, "1 GPUs per job and device 'cpu'; leave one of them out"),
    ],
)
def test_resources_that_cannot_be_meant_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Resources(**settings)


def test_the_device_is_a_gpu_where_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, chosen in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert Resources().chosen_device() == chosen
        assert Resources(gpus=0.5).chosen_device() == "cuda"  # never in silence on a CPU
        assert Resources(device="cuda:1").chosen_device() == "cuda:1"
