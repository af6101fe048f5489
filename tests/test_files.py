"""A file is there as a whole or not at all, and a disk that refuses says so."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sinklens.errors import SinklensError
from sinklens.files import append_line, is_step_log, replacing, whole_lines, write_json, write_tensors, written_whole


def test_a_file_gets_its_name_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(f"as {Path(b).name}"), replace(a, b))[1])
    with written_whole(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("whole")
        assert temporary.parent == tmp_path / "new" and temporary.name.startswith(".a.txt.")
        assert temporary.name.endswith(".part") and not (tmp_path / "new" / "a.txt").exists()
    assert done == ["sync", "as a.txt", "sync"]  # the file, its name, the folder that holds the name
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("ended", [RuntimeError("in the middle"), KeyboardInterrupt()])
def test_what_is_cut_short_leaves_the_old_file_and_nothing_else(tmp_path: Path, ended: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(ended)), written_whole(path) as temporary:
        temporary.write_text("ne")
        raise ended
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_have_two_temporary_names(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with written_whole(path) as one, written_whole(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_is_worded_or_passed_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"cannot write .*file/a/b \(Not a directory\); choose another folder, or make room"
    with pytest.raises(SinklensError, match=message), written_whole(tmp_path / "file" / "a" / "b"):
        pass
    with pytest.raises(NotADirectoryError), replacing(tmp_path / "file" / "a") as temporary:
        temporary.touch()


def test_json_is_readable_and_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "Zoë", "share": 0.5})
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n  "name": "Zoë",\n  "share": 0.5\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"share": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["share"] == 0.5


def test_a_line_without_its_end_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for line in ("one", "two"):
        append_line(path, line)
    assert whole_lines(path) == ["one", "two"]
    path.write_text("one\ntw")
    assert whole_lines(path) == ["one"]
    path.write_text("on")
    assert whole_lines(path) == []
    with pytest.raises(SinklensError, match="cannot write"):
        append_line(tmp_path / "no" / "log", "one")


def test_tensors_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    """safetensors draws the order of metadata anew for each file."""
    tensors = {"weight é": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(3, dtype=torch.bfloat16)}
    told = {name: name for name in ("step", "seed", "name", "more")}
    for turn in range(8):
        write_tensors(tmp_path / str(turn), tensors, metadata=told)
    assert len({(tmp_path / str(turn)).read_bytes() for turn in range(8)}) == 1
    with safe_open(str(tmp_path / "0"), framework="pt") as handle:
        assert handle.metadata() == {"format": "pt", **told}
        assert handle.get_tensor("weight é").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_disk_that_refuses_tensors_is_worded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinklensError, match=r"cannot write .*file/a"):
        write_tensors(tmp_path / "file" / "a", {"a": torch.ones(1)}, metadata={})


@pytest.mark.parametrize("ours", ["", '{"step": 1}\n', '{"step": 1}\n{"ste', '{"ste'])
@pytest.mark.parametrize("theirs", ["mine", "mine\n", '{"loss": 1}\n', "[1]\n", '{"step": 1}\nmine', "\n"])
def test_a_log_of_steps_is_told_from_what_others_call_so(tmp_path: Path, ours: str, theirs: str) -> None:
    path = tmp_path / "log.jsonl"
    assert not is_step_log(path)
    path.write_text(ours)
    assert is_step_log(path)
    path.write_text(theirs)
    assert not is_step_log(path)
    path.write_bytes(b"\xff\n")
    assert not is_step_log(path)
