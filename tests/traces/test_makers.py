"""Row groups made by threads and by forked processes: in order, whole, and with what went wrong."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sinklens.errors import TraceError
from sinklens.traces import makers
from sinklens.traces.makers import Forks, Threads

pytestmark = pytest.mark.skipif(not makers.may_fork(), reason="processes are forked on Linux alone")

KINDS: list[type[Any]] = [Threads, Forks]


def data(number: int) -> memoryview:
    return memoryview(bytes([number % 256]) * (number * 1000))


@pytest.mark.parametrize("forks", [1, 3, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_all_is_handed_on_in_order(kind: type[Any], forks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(makers, "FORKS", forks)
    many, got = kind(), []
    for turn in range(3):
        for number in range(turn, 20):
            many.make(lambda number=number: data(number), lambda made: got.append(bytes(made)), small=number % 7 == 3)
        many.go()
        many.step()
        many.settle()
        assert got == [bytes(data(number)) for number in range(turn, 20)]
        got.clear()
    many.close()


def test_between_steps_little_is_handed_on() -> None:
    many, got = Forks(), []
    for number in range(8):
        many.make(lambda number=number: data(number), lambda made: got.append(len(made)))
    many.step()
    assert got == []  # nobody has begun
    many.go()
    for child in many._children:
        child.ready(wait=True)
    many.step()
    assert got == [0, 1000, 2000]
    many.settle()
    assert got == [number * 1000 for number in range(8)]


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [
        (ValueError("odd"), TraceError, "row groups cannot be made: ValueError: odd"),
        (OSError(errno.EIO, "broken"), OSError, "broken"),
        (SystemExit(3), TraceError, "SystemExit: 3"),
    ],
)
def test_what_goes_wrong_in_a_process_is_raised_here(
    raised: BaseException, expected: type[Exception], words: str
) -> None:
    def work() -> memoryview:
        raise raised

    many = Forks()
    many.make(lambda: data(5), lambda made: None)
    many.make(work, lambda made: None)
    many.go()
    with pytest.raises(expected, match=words):
        many.settle()
    many.abandon()
    assert children() == []


def test_a_process_that_is_killed_is_told() -> None:
    def work() -> memoryview:
        os.kill(os.getpid(), signal.SIGKILL)
        return data(1)

    many = Forks()
    many.make(work, lambda made: None)
    many.go()
    with pytest.raises(TraceError, match=r"a process that makes row groups ended with status -9 .*resume"):
        many.settle()
    many.abandon()


def test_what_is_abandoned_is_gone() -> None:
    many = Forks()
    many.make(lambda: memoryview(signal.pause()), lambda made: None)  # type: ignore[arg-type]
    many.go()
    assert len(children()) == 1
    many.abandon()
    assert children() == []
    many.settle()


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_child_runs_nothing_at_its_end() -> None:
    """It is a copy of a process that has files open and things to do at exit."""
    code = """
import atexit, sys
from sinklens.traces.makers import Forks
atexit.register(lambda: print("once"))
print("begun", end=" ")
many = Forks()
many.make(lambda: memoryview(b"abc"), lambda made: print(bytes(made), end=" "))
many.go()
many.settle()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "begun b'abc' once\n" and done.stderr == ""
