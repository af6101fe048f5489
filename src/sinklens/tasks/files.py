"""Problems that others published, read from a local file: JSON Lines, the same gzipped, or Parquet.

A data set is given by the path of a file, or of a folder in which its file is found under a published name.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def data_path(data: Any, *, task: str, how: str) -> Path:
    """The path that the caller gave; `how` says what is accepted and where it comes from."""
    if data is None:
        raise UsageError(
            f"{task} reads its problems from a file and was given none; give data=PATH (--data PATH): {how}"
        )
    if not isinstance(data, str | Path):
        raise UsageError(f"data of {task} is {data!r}; give a path: {how}")
    path = Path(data).expanduser()
    if not path.exists():
        raise UsageError(f"data of {task} is {path}, which is not there; give {how}")
    return path


def content_hash(data: str | Path) -> str:
    """Of the file and the training file beside it, from which examples come, or of all data files of the folder.

    The same data under another path have the same.
    """
    path = Path(data).expanduser()
    files = sorted(found for end in SUFFIXES for found in path.rglob(f"*{end}"))
    if path.is_file():
        training = find_file(path.parent, split_names("train"))
        files = [path] if training is None else [path, training]
    digest = sha256()
    for file in files:
        digest.update(sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def find_file(folder: Path, patterns: Sequence[str]) -> Path | None:
    """The first file of a folder that fits a pattern, in the order of the patterns."""
    found = (path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file())
    return next(found, None)


def split_names(split: str) -> tuple[str, ...]:
    """How files of a split are named where data sets are published, at the top of a folder or one below."""
    return tuple(f"{below}{split}{end}" for below in ("", "*/") for end in (*SUFFIXES, "-*.parquet"))


def read_rows(path: Path, *, fields: Sequence[str]) -> list[Mapping[str, str]]:
    """The rows of a file, each with these fields as text; others are left out."""
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"{path} is of no known kind; give a file that ends in one of {', '.join(SUFFIXES)}")
    records = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    if not records:
        raise UsageError(f"{path} has no rows; give a file with at least one problem")
    return [_row(record, fields, f"{path}, row {number}") for number, record in enumerate(records)]


def _json_lines(path: Path) -> list[Any]:
    raw = path.read_bytes()
    records = []
    try:
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        for line in text.split("\n"):  # not splitlines: it cuts at characters that JSON leaves as they are
            if line.strip():
                records.append(json.loads(line))
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read after {len(records)} rows ({error}); expected one JSON object a line"
        ) from error
    return records


def _parquet(path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Any] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as Parquet ({error}); fetch it again") from error
    return rows


def _row(record: Any, fields: Sequence[str], where: str) -> Mapping[str, str]:
    wrong = [name for name in fields if not isinstance(record, dict) or not isinstance(record.get(name), str)]
    if wrong:
        raise UsageError(f"{where} has no text under {', '.join(wrong)}; expected {', '.join(fields)} in each row")
    return {name: record[name] for name in fields}
