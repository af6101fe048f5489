"""Files written whole: a reader finds all of a file or what was there before, whenever the writer is killed.

What is written goes to a temporary name beside the file, then to the disk, and then gets its name. Temporary names
begin with a dot, so that readers of Parquet folders pass over them, and no two writers have the same. An exception
leaves none behind; a killed writer leaves one, and nothing reads it.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sinklens.errors import SinklensError, UsageError

PART = ".part"  # behind the name of what is not finished
LARGEST = 64 * 2**20  # bytes of a document that is read whole
_UNFINISHED = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(PART)}")


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else has."""
    return path.with_name(f".{path.name}.{uuid4().hex}{PART}")


def is_unfinished(path: Path) -> bool:
    """Whether that is such a name."""
    return _UNFINISHED.fullmatch(path.name) is not None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes `path` when all of it is on the disk; the errors of the disk pass."""
    temporary = temporary_name(path)
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
    with _worded(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary


@contextmanager
def _worded(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinklensError(
            f"cannot write {path} ({error.strerror or error}); choose another folder, or make room"
        ) from error


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """A JSON document, whole. NaN is not JSON and would be refused by strict readers: so is it here."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    with written_whole(path) as temporary:
        temporary.write_text(text, "utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Any], *, metadata: Mapping[str, str]) -> None:
    """A safetensors file, whole, and the same bytes for the same tensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with written_whole(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata={"format": "pt", **metadata})
        except SafetensorError as error:  # how it says that the disk refuses
            raise OSError(str(error)) from error
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """safetensors writes the metadata of a file in an order that changes from process to process."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > size:
            raise SinklensError(f"the header of {path} cannot be put in order; this is a bug")
        file.seek(8)
        file.write(text.ljust(size))


def append_line(path: Path, line: str) -> None:
    """One more line. Of a killed writer its beginning may be there: without its end, it does not count."""
    with _worded(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """In place of what is there, whole."""
    with written_whole(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def whole_lines(path: Path) -> list[str]:
    """The lines that have an end."""
    return path.read_text("utf-8").rpartition("\n")[0].splitlines()


def is_step_log(path: Path) -> bool:
    """Whether all that is there, if anything, are objects with a step, one a line; the last may be cut off."""
    try:
        *lines, rest = path.read_text("utf-8").split("\n")
        found = [parse_json(line) for line in lines]
    except (OSError, ValueError):
        return False
    return all(isinstance(one, dict) and "step" in one for one in found) and (not rest or rest.startswith('{"'))


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """A folder that is gone at the end; a killed process leaves it under a temporary name."""
    folder = temporary_name(beside)
    with _worded(folder):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_file(folder: Path) -> None:
    """Where a folder is to be written."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder")


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file could have is an answer too."""
    try:
        return path.is_file()
    except OSError:  # too long, say
        return False


def read_text(path: Path) -> str:
    """The text of a file of modest size. A pipe would be waited for without end, a device read without end."""
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    if path.stat().st_size > LARGEST:
        raise OSError(f"it is larger than {LARGEST >> 20} MiB")
    return path.read_text("utf-8")


def read_json(path: Path) -> Any:
    """The value in a JSON file; what cannot be read is an OSError, what is no JSON a ValueError."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """`json.loads`, which leaves brackets without end to Python's stack: they are a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
