"""What the fault tests share: the nursery, what commands read, and what they give when nothing goes wrong."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.commands import COMMANDS, PATIENCE, Whole, contents, write_inputs
from faults.nursery import Nursery, events_of

PAGE = 4096


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def whole(nursery: Nursery, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """By command, made when it is first asked for."""
    made: dict[str, Whole] = {}

    def make(name: str) -> Whole:
        if name not in made:
            to = tmp_path_factory.mktemp("whole") / name.replace(" ", "-")
            run = nursery.start(COMMANDS[name].line(inputs, to), cwd=to.parent, watch=to)
            idle = time_of_first_output(to, run.began)
            ended = run.wait()
            assert ended.code == 0, ended.stderr
            taken = sum(-(-path.stat().st_size // PAGE) * PAGE for path in to.rglob("*") if path.is_file())
            made[name] = Whole(
                contents=contents(to), seconds=ended.seconds, idle=idle, events=events_of(run), bytes=taken
            )
        return made[name]

    return make


def time_of_first_output(folder: Path, began: float) -> float:
    while not folder.exists() and time.monotonic() < began + PATIENCE:
        time.sleep(0.005)
    return time.monotonic() - began
