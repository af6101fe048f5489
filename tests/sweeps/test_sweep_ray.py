"""The same jobs on a real Ray instance: the same rows, whatever is killed on the way."""

import json
import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sweep_jobs
from sweep_jobs import GRID, begun, rows_in, troubled

from sinklens.cli import main
from sinklens.errors import SinklensError, UsageError
from sinklens.sweeps import ray as on_ray
from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Resources, Rows
from sinklens.sweeps.ray import run_on_ray
from sinklens.sweeps.run import run_sweep, summarise

TOML = """
models = ["tiny-llama"]
tasks = ["word_problems"]
interventions = ["none", "sinks:top=1", "random:top=1"]
seeds = [0, 1]
problems = 2
answering = { length = 12 }
"""


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray on two CPUs of this machine, gone after the test."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, OSError) as error:
        pytest.skip(f"Ray cannot start here: {error}")
    ray.cloudpickle.register_pickle_by_value(sweep_jobs)  # its processes do not know the folder of the tests
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(sweep_jobs)
    ray.shutdown()


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    with pytest.raises(SystemExit) as end:
        main(["sweep", *map(str, arguments), "--json"])
    written = capsys.readouterr()
    assert isinstance(end.value.code, int | None), written.err
    return end.value.code or 0, json.loads(written.out), written.err


@pytest.mark.slow
# One test: an instance takes seconds to start, and tests of one file may run in several processes.
def test_ray_gives_the_rows_of_one_process(
    instance: Any,
    tmp_path: Path,
    expected: dict[str, Rows],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(on_ray, "RETRIES", 1)
    folder = SweepFolder(path=tmp_path / "out")
    jobs, outcomes = troubled(tmp_path), []
    run_sweep(folder, jobs, running=run_on_ray, resources=Resources(device="cpu"), seen=outcomes.append)
    assert rows_in(folder) == expected  # bit for bit, each job once, each row once
    assert sorted(outcome.job.fingerprint for outcome in outcomes) == sorted(job.fingerprint for job in jobs)
    assert begun(tmp_path / "once") == 2 and begun(tmp_path / "lost") == 2
    states = summarise(folder, jobs)
    assert [state["state"] for state in states] == ["finished"] * 4 + ["failed"] * 2
    assert states[4]["error"].startswith("UsageError: no folder")
    assert states[5]["error"].startswith("WorkerLost: the process that ran it ended 2 times; memory may be short (")

    # A connection that was there stays; with it, an address or more than there is are refused.
    assert instance.is_initialized()
    with pytest.raises(UsageError, match="connected to Ray already; leave it out"):
        next(run_on_ray(jobs_of(GRID), Resources(), address="auto"))
    with pytest.raises(UsageError, match="a job wants 1 GPU, and Ray has 0 in all; ask for less"):
        next(run_on_ray(jobs_of(GRID), Resources(gpus=1.0)))

    # Closing cancels what is left: a job that only waits to be killed is not begun again.
    outcomes_left = run_on_ray(jobs_of(GRID), Resources(device="cpu", workers=1))
    assert next(outcomes_left).rows == expected[jobs[0].fingerprint]
    outcomes_left.close()
    assert instance.is_initialized()

    # The command, on an instance of its own: what is finished is skipped, what is not there is made again.
    instance.shutdown()
    grid, again = tmp_path / "grid.toml", tmp_path / "again"
    grid.write_text(TOML)
    SweepFolder(path=again).claim(GRID, jobs_of(GRID))
    (folder.path / "jobs").rename(again / "jobs")
    kept = {path: path.stat().st_mtime_ns for path in (again / "jobs").iterdir()}
    removed = SweepFolder(path=again).rows_of(jobs[3])
    removed.unlink()
    capsys.readouterr()
    code, document, said = run_command(capsys, grid, "--on", "ray", "--to", again)
    assert code == 0 and "1 of 4 jobs to run, 3 finished before" in said
    assert [job["state"] for job in document["jobs"]] == ["finished"] * 4 and document["finished"] == 4
    assert rows_in(SweepFolder(path=again)) == expected
    del kept[removed]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not instance.is_initialized()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        UsageError, match="Ray is not installed; install sinklens with the extra `ray`, or use --on local"
    ):
        next(run_on_ray(jobs_of(GRID), Resources()))


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    def never(**settings: Any) -> None:
        raise AssertionError(settings)

    monkeypatch.setattr(on_ray, "_import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=never))
    with socket.socket() as taken:  # a port that nobody listens on
        taken.bind(("127.0.0.1", 0))
        address = f"{prefix}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SinklensError, match=rf"cannot reach a Ray cluster at '{address}' \(.*refused\); check the"):
            next(run_on_ray(jobs_of(GRID), Resources(), address=address))


def test_what_ray_says_of_an_address_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: Any) -> None:
        assert settings["address"] == "auto"
        raise ConnectionError("no instance found\nand so on")

    monkeypatch.setattr(on_ray, "_import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=refuse))
    message = r"cannot reach a Ray cluster at 'auto' \(no instance found\); check the address with `ray status`"
    with pytest.raises(SinklensError, match=message):
        next(run_on_ray(jobs_of(GRID), Resources(), address="auto"))


def test_a_cluster_may_grow() -> None:
    stub = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0})
    with pytest.warns(UserWarning, match="a job wants 2 GPU, and Ray has 0 in all; jobs wait until the cluster grows"):
        on_ray._check_resources(stub, Resources(gpus=2.0), grows=True)
    with pytest.raises(UsageError, match="a job wants 8 CPU, and Ray has 4 in all; ask for less"):
        on_ray._check_resources(stub, Resources(threads=8), grows=False)
