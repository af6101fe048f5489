"""Ctrl-C in the middle of the work: exit code 130, what is finished is kept, and the rest can be done later."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, PATIENCE, Whole, contents, differing, every
from faults.nursery import Nursery

FINISHED = {  # the first thing that is kept
    "trace": "samples/00000",
    "mask": "rows/*.parquet",
    "evaluate": "rows/*.parquet",
    "compress": "rows/*.parquet",
    "sweep": "jobs/*.parquet",
    "sweep job": "sweep.json",
    "train": "training.json",
    "select train": "training.json",
    "select evaluate": "rows/*.parquet",
}


@pytest.mark.parametrize("name", every("trace", "mask", "train"))
def test_finished_work_is_kept(
    name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    command, to = COMMANDS[name], tmp_path / "a"
    run = nursery.start(command.line(inputs, to), cwd=tmp_path)
    while not list(to.glob(FINISHED[name])) and time.monotonic() < run.began + PATIENCE:
        time.sleep(0.005)
    run.send(signal.SIGINT)
    ended = run.wait()
    assert ended.code == 130, ended.stderr
    assert len(re.findall("^interrupted", ended.stderr, re.MULTILINE)) == 1 and "Traceback" not in ended.stderr
    kept = contents(to)
    assert not [path for path in kept if path.endswith(".part")]
    rows = [path for path in kept if path.endswith((".parquet", ".safetensors"))]
    assert (rows or name == "sweep job") and not set(rows) - {"state.safetensors", *whole(name).contents}
    same = [path for path in rows if not path.endswith(".safetensors")]  # of weights, an earlier step
    assert not [path for path in same if kept[path] != whole(name).contents[path]]
    again = nursery.run(command.line(inputs, to), cwd=tmp_path)
    assert again.code == 0, again.stderr
    assert not differing(contents(to), whole(name).contents)
