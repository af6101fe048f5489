"""A clock that goes back while a run is interrupted, and files from the future: neither matters."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, Whole, contents, differing, every
from faults.nursery import Nursery

DAY = 86_400.0


@pytest.mark.parametrize("name", every("compress"))
def test_going_on_a_day_earlier(
    name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    command, to, half = COMMANDS[name], tmp_path / "a", whole(name).events // 2
    assert nursery.start(command.line(inputs, to), cwd=tmp_path, watch=to, kill_at=half).wait().killed
    for path in to.rglob("*"):
        os.utime(path, (time.time() + DAY, time.time() + DAY))
    ended = nursery.run(command.line(inputs, to), cwd=tmp_path, clock=-DAY)
    assert ended.code == 0, ended.stderr
    assert not differing(contents(to), whole(name).contents)
