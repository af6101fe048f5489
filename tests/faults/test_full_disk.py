"""A disk that fills up in the middle of the work, and a folder that may not be written to: both said, nothing lost."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, Whole, contents, differing, every
from faults.hardship import CANNOT
from faults.nursery import Nursery


@pytest.mark.parametrize("name", every("trace", "train"))
def test_a_disk_that_fills_up(
    name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    """A tmpfs of two thirds of what the result takes; then there is room again."""
    command, to, kept = COMMANDS[name], tmp_path / "disk", tmp_path / "kept"
    room = whole(name).bytes * 2 // 3
    full = nursery.start(command.line(inputs, to), cwd=tmp_path, watch=to, disk=room, kept=str(kept)).wait()
    if full.code == CANNOT:
        pytest.skip(full.stderr.strip())
    assert full.code == 1, full.stderr
    assert "error: cannot write" in full.stderr and "No space left on device" in full.stderr
    assert "unexpected" not in full.stderr and "Traceback" not in full.stderr
    again = nursery.run(command.line(inputs, kept), cwd=tmp_path)
    assert again.code == 0, again.stderr
    assert not differing(contents(kept), whole(name).contents)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_may_not_be_written_to(name: str, nursery: Nursery, inputs: Path, tmp_path: Path) -> None:
    """Run by root, without the capability that makes root write anywhere."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o555)
    refused = nursery.run(COMMANDS[name].line(inputs, tmp_path / "mine"), cwd=tmp_path, unprivileged=True)
    assert refused.code == 1, refused.stderr
    assert f"error: cannot write to {tmp_path / 'mine'} (Permission denied); " in refused.stderr
    assert "unexpected" not in refused.stderr and not os.listdir(tmp_path / "mine")
