"""The folder of an experiment.

    experiment.json    everything that decides the rows; written first
    rows/*.parquet     one file a finished batch: a model, a task, a condition, some problems (columns: answering.ROW)
    timings/*.parquet  how long the batch took
    flows/*.parquet    where the attention went, for batches that were followed

A batch is there when its file of rows is: that one is written last, each under a temporary name, synced and renamed. So
a folder is whole at any time, and what is there is never done again.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinklens.errors import SinklensError, UsageError
from sinklens.evaluation.answering import ROW
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.row_files import read_batch
from sinklens.files import write_json, written_whole
from sinklens.locks import refuse_strangers, writing_alone

EXPERIMENT = "experiment.json"
FORMAT = "sinklens-experiment"
_BATCH = {
    "model": "string",
    "task": "string",
    "condition": "string",
    "start": "int64",  # the first problem
    "problems": "int64",
}
TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "rows": ROW,
        "timings": {**_BATCH, "batch": "int64", "seconds": "float64", "followed": "bool", "device": "string"},
        "flows": {
            **_BATCH,
            "neighbours": "float64",
            "next_ranked": "float64",
            "others": "float64",
            "null": "float64",
            "new_sinks": "float64",
        },
    }
)
_SPAN = re.compile(r"\.(\d{6,})-(\d{6,})\.parquet")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Problems `start` to `stop - 1` of a task, for one model under one condition."""

    model: str
    task: str
    condition: Condition
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of its files: to be read, and different for every batch."""
        parts = [re.sub(r"[^\w-]+", "_", part) for part in (self.model, self.task, str(self.condition))]
        told = json.dumps([self.model, self.task, self.condition.fingerprint])
        return ".".join([*parts, sha256(told.encode()).hexdigest()[:8], f"{self.start:06d}-{self.stop:06d}", "parquet"])

    def head(self) -> dict[str, Any]:
        """The columns that timings and flows have in common."""
        told = {"model": self.model, "task": self.task, "condition": str(self.condition)}
        return {**told, "start": self.start, "problems": self.stop - self.start}


def spans(known: Sequence[tuple[int, int]], *, count: int, batch: int) -> list[tuple[int, int]]:
    """Problems 0 to count - 1 in batches: as they were taken before, and what is left anew.

    Where a task has ended, its last batch is shorter than that of the others, and theirs counts.

    >>> spans([(0, 4), (0, 3)], count=10, batch=3)
    [(0, 4), (4, 7), (7, 10)]
    """
    found: list[tuple[int, int]] = []
    at = 0
    before = sorted((span for span in known if span[0] < count), key=lambda span: (span[0], -span[1]))
    for start, stop in [*before, (count, count)]:
        found += [(first, min(first + batch, start)) for first in range(at, start, batch)]
        if at <= start < stop:
            found.append((start, stop))
        at = max(at, stop)
    return found


class Store:
    """Reads and writes the folder of an experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def claimed(self, document: Mapping[str, Any]) -> Iterator[None]:
        """This process alone writes, and only what belongs to the experiment of `document`."""
        self._refuse_other(document)  # before a lock is put there
        with writing_alone(self.folder):
            there = self._refuse_other(document)
            if there is None or there["problems"] < document["problems"]:  # else what made the rows stays said
                self.write_document(EXPERIMENT, {"format": FORMAT, **document})
            yield

    def document(self) -> dict[str, Any] | None:
        """experiment.json; None where there is none."""
        path = self.folder / EXPERIMENT
        try:
            found = json.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise SinklensError(f"{path} is damaged ({error}); restore it, or choose another folder") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise UsageError(f"{path} does not say format {FORMAT!r}; choose another folder")
        return found

    def _refuse_other(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        """What stands there already, if it is the same experiment."""
        refuse_strangers(self.folder, what="experiment", mark=EXPERIMENT)
        there = self.document()
        if there is None:
            return None
        if there["fingerprint"] != document["fingerprint"]:
            lines = differences(there.get("decisive", {}), document.get("decisive", {}))
            raise UsageError(
                f"{self.folder} holds another experiment: {'; '.join(lines)}; run it with the same settings, or write "
                "to another folder"
            )
        return there

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """A JSON file, whole."""
        write_json(self.folder / name, document)

    def finished(self) -> set[str]:
        """The names of all batches that are there."""
        return {path.name for path in (self.folder / "rows").glob("*.parquet")}

    def spans(self) -> list[tuple[int, int]]:
        """Problems that were taken together so far, from first to last + 1, whatever the cell."""
        found = (_SPAN.search(name) for name in self.finished())
        return sorted({(int(match[1]), int(match[2])) for match in found if match is not None})

    def save(self, batch: Batch, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Everything of one batch; tables by name, without rows: nothing is written."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for name in sorted(tables, key=lambda name: name == "rows"):  # rows last: they say that all is there
            if not tables[name]:
                continue
            schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in TABLES[name].items()])
            table = pa.Table.from_pylist([dict(row) for row in tables[name]], schema=schema)
            with written_whole(self.folder / name / batch.name) as temporary:
                pq.write_table(table, temporary, compression="zstd")

    def read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """A table as pyarrow holds it, all batches in one; in the order of their names."""
        import pyarrow as pa

        schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in TABLES[name].items()])
        wanted = schema if columns is None else pa.schema([schema.field(column) for column in columns])
        files = sorted((self.folder / name).glob("*.parquet"))
        tables = [read_batch(path, wanted.names) for path in files]
        return pa.concat_tables(tables) if tables else wanted.empty_table()


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two documents have different, each with both values."""
    before, after = _flat(there), _flat(now)
    return [
        f"{name}: {_compared(before.get(name), after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names, so that a difference is named where it is."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        path: leaf for key, inner in value.items() for path, leaf in _flat(inner, f"{name}.{key}".strip(".")).items()
    }


def _compared(there: Any, now: Any) -> str:
    if isinstance(there, list) and isinstance(now, list):  # of cells, say: those that both have tell nothing
        there, now = [one for one in there if one not in now], [one for one in now if one not in there]
    return f"{_short(there)} there, {_short(now)} now"


def _short(value: Any) -> str:
    text = "nothing" if value in (None, []) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
