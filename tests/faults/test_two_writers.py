"""Two processes on one folder: the second is refused, and a dead one keeps no lock."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, PATIENCE, Whole, contents, differing, every
from faults.nursery import Nursery
from sinklens.locks import LOCK


@pytest.mark.parametrize("name", every("evaluate", "train", but=[one for one in COMMANDS if COMMANDS[one].shares]))
def test_the_second_is_refused_until_the_first_is_dead(
    name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    command, to = COMMANDS[name], tmp_path / "a"
    first = nursery.start(command.line(inputs, to), cwd=tmp_path)
    try:
        while not any(path.name != LOCK for path in to.glob("*")) and time.monotonic() < first.began + PATIENCE:
            time.sleep(0.005)
        first.send(signal.SIGSTOP)
        before = contents(to)
        second = nursery.run(command.line(inputs, to), cwd=tmp_path)
        assert (second.code, second.stdout) == (1, ""), second.stderr
        told = f"error: another process is writing to {to}; wait for it to end, or write to another folder\n"
        assert second.stderr.endswith(told)
        assert contents(to) == before
    finally:
        first.kill()
        assert first.wait().killed
    third = nursery.run(command.line(inputs, to), cwd=tmp_path)
    assert third.code == 0, third.stderr
    assert not differing(contents(to), whole(name).contents)


def test_jobs_of_one_sweep_share_its_folder(nursery: Nursery, inputs: Path, tmp_path: Path) -> None:
    """As in a Slurm array; but not with a program that runs the whole sweep."""
    to = tmp_path / "a"
    line = COMMANDS["sweep"].line(inputs, to)
    first = nursery.start([*line, "--job", 0], cwd=tmp_path)
    try:
        while not (to / "sweep.json").exists() and time.monotonic() < first.began + PATIENCE:
            time.sleep(0.005)
        first.send(signal.SIGSTOP)
        second = nursery.run([*line, "--job", 1], cwd=tmp_path)
        assert second.code == 0, second.stderr
        assert nursery.run(line, cwd=tmp_path).code == 1
        assert len(list((to / "jobs").iterdir())) == 1
    finally:
        first.kill()
        first.wait()
