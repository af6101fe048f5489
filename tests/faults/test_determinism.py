"""The same seed on the same machine gives the same bytes, from process to process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import COMMANDS, Whole, contents, differing, every
from faults.nursery import Nursery


@pytest.mark.parametrize("name", every("trace", "mask", "evaluate", "compress"))
def test_two_runs_give_the_same_files(
    name: str, nursery: Nursery, inputs: Path, whole: Callable[[str], Whole], tmp_path: Path
) -> None:
    ended = nursery.run(COMMANDS[name].line(inputs, tmp_path / "again"), cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert not differing(contents(tmp_path / "again"), whole(name).contents)
