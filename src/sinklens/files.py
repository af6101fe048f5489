"""Files written whole: a reader finds all of a file or what was there before, whenever the writer is killed.

What is written goes to a temporary name beside the file, then to the disk, and then gets its name. Temporary names
begin with a dot, so that readers of Parquet folders pass over them, and no two writers have the same. An exception
leaves none behind; a killed writer leaves one, and nothing reads it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sinklens.errors import SinklensError

PART = ".part"  # behind the name of what is not finished


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes `path` when all of it is on the disk; the errors of the disk pass."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}{PART}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        with suppress(OSError):  # it is gone where all went well
            temporary.unlink()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """`replacing`, in a folder that is made where it is missing, with a worded error when the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise SinklensError(
            f"cannot write {path} ({error.strerror or error}); choose another folder, or make room"
        ) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """A JSON document, whole. NaN is not JSON and would be refused by strict readers: so is it here."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    with written_whole(path) as temporary:
        temporary.write_text(text, "utf-8")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
