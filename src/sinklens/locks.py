"""One writer of a folder at a time.

The lock is the kernel's (flock) on an empty file that stays behind: it goes with the process that holds it, however
that ends, and processes that it starts do not inherit it. Readers need none.
"""

import errno
import os
import shutil
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sinklens.errors import SinklensError, UsageError
from sinklens.files import PART, is_unfinished, refuse_file

LOCK = "writer.lock"
LOST = "lost+found"  # of every new disk
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # some network file systems have none


class Lock:
    """Held from the moment it is made until `release`. shared: beside others that share it, but no writer alone."""

    def __init__(self, folder: Path, *, shared: bool = False, error: type[SinklensError] = SinklensError) -> None:
        import fcntl

        _forget_in_children()
        self._file: Any = (folder / LOCK).open("a")
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise error(
                f"another process is writing to {folder}; wait for it to end, or write to another folder"
            ) from None
        except OSError as refused:
            if refused.errno not in _WITHOUT_LOCKS:
                self._file.close()
                raise
            warnings.warn(
                f"the file system of {folder} has no locks ({refused.strerror}): see to it that no other process "
                "writes there",
                stacklevel=2,
            )
        _HELD.add(self)

    def release(self) -> None:
        _HELD.discard(self)
        self._file.close()


_HELD: WeakSet[Lock] = WeakSet()


@cache
def _forget_in_children() -> None:
    """A forked process would keep the lock of one that is killed."""

    def forget() -> None:
        for lock in list(_HELD):
            lock.release()

    os.register_at_fork(after_in_child=forget)


def refuse_strangers(folder: Path, *, what: str, mark: str | None = None, own: Collection[str] = ()) -> None:
    """Files beside `own`, in a folder without its mark, are somebody else's. Asked before a lock is put there.

    What is hidden may be the system's, and we write nothing over it.
    """
    refuse_file(folder)
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(name for name in found - {LOCK, LOST, *own} if not name.startswith("."))
    if others and (mark is None or not (folder / mark).exists()):  # looked for last: another program may be making it
        named = ", ".join(others[:3])
        raise UsageError(f"{folder} is not empty and holds no {what} ({named}); give a new or an empty folder")


@contextmanager
def writing_alone(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Make the folder, and keep other writers out of it until the end of the block.

    shared: beside others that share it. Alone, what killed writers left unfinished is removed.
    """
    refuse_file(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder, shared=shared)
    except OSError as error:
        raise SinklensError(
            f"cannot write to {folder} ({error.strerror or error}); choose another folder, or make room"
        ) from error
    try:
        if not shared:
            remove_unfinished(folder)
        yield
    finally:
        lock.release()


def remove_unfinished(folder: Path) -> None:
    """What killed writers left under temporary names, here and one folder down. Only for who writes alone."""
    for leftover in [*folder.glob(f".*{PART}"), *folder.glob(f"*/.*{PART}")]:
        if is_unfinished(leftover):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
