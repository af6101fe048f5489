"""One writer of a folder at a time, by the kernel's lock; what killed writers left is removed, and nothing else."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from sinklens.errors import SinklensError, TraceError, UsageError
from sinklens.files import temporary_name, written_whole
from sinklens.locks import LOCK, Lock, refuse_strangers, writing_alone


def test_one_at_a_time_and_again_when_it_is_released(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    with pytest.raises(
        SinklensError, match=r"another process is writing to .*; wait for it to end, or write to another"
    ):
        Lock(tmp_path)
    with pytest.raises(TraceError):
        Lock(tmp_path, error=TraceError)
    first.release()
    Lock(tmp_path).release()
    assert (tmp_path / LOCK).read_bytes() == b""


def test_those_that_share_it_keep_a_lonely_one_out(tmp_path: Path) -> None:
    with writing_alone(tmp_path, shared=True), writing_alone(tmp_path, shared=True):
        assert len(list(tmp_path.iterdir())) == 1
    with writing_alone(tmp_path, shared=True), pytest.raises(SinklensError, match="another process"):
        Lock(tmp_path)
    with writing_alone(tmp_path), pytest.raises(SinklensError, match="another process"):
        Lock(tmp_path, shared=True)


def test_a_forked_process_does_not_keep_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        lock.release()
        deadline = time.monotonic() + 10
        while True:  # the child lets go of it when it first runs
            try:
                Lock(tmp_path).release()
                break
            except SinklensError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_what_killed_writers_left_is_removed_by_who_writes_alone(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    left = [temporary_name(tmp_path / "a.json"), temporary_name(tmp_path / "rows" / "b.parquet")]
    for path in left:
        path.touch()
    folder = temporary_name(tmp_path / "measured")
    folder.mkdir()
    (folder / "model.safetensors").touch()
    others = [tmp_path / name for name in (".hidden.part", "download.part", "rows/c.parquet")]
    for path in others:
        path.touch()
    with writing_alone(tmp_path, shared=True):
        assert folder.exists() and all(path.exists() for path in left)
    with writing_alone(tmp_path):
        assert not folder.exists() and not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file is a file; give a folder"), writing_alone(tmp_path / "file"):
        pass
    message = r"cannot write to .*file/a \(Not a directory\); choose another folder, or make room"
    with pytest.raises(SinklensError, match=message), writing_alone(tmp_path / "file" / "a"):
        pass


def test_a_file_system_without_locks_is_told_of_and_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match=r"has no locks \(Function not implemented\): see to it that no other process"),
        writing_alone(tmp_path),
        written_whole(tmp_path / "a") as temporary,
    ):
        temporary.touch()
    assert (tmp_path / "a").exists()


def test_strangers_are_named_and_what_the_system_puts_there_is_none(tmp_path: Path) -> None:
    for name in (".DS_Store", "lost+found", LOCK, "own.csv"):
        (tmp_path / name).touch()
    refuse_strangers(tmp_path, what="card", own={"own.csv"})
    refuse_strangers(tmp_path / "new", what="card")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        UsageError, match=r"is not empty and holds no card \(notes.txt\); give a new or an empty folder"
    ):
        refuse_strangers(tmp_path, what="card", mark="plan.json", own={"own.csv"})
    (tmp_path / "plan.json").touch()
    refuse_strangers(tmp_path, what="card", mark="plan.json")
