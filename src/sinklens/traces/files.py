"""The Parquet files of one sample while it is being written.

Row groups are made in threads, while pyarrow lets go of the interpreter, and joined in the order they were asked for by
one thread more, which also sees to it that they reach the disk: little is left to be waited for at the end.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.files import sync
from sinklens.traces.gather import Part
from sinklens.traces.joined import JoinedFile
from sinklens.traces.pack import Lists
from sinklens.traces.schema import TABLES, schema
from sinklens.traces.storage import Storage

Guard = Callable[[], AbstractContextManager[None]]  # around whatever touches the disk

THREADS = max(1, min(16, (os.cpu_count() or 1) - 1))


class SampleFiles:
    """Files that open with their first row group."""

    def __init__(self, folder: Path, *, sample: int, causal: bool, detail: str, storage: Storage, guard: Guard) -> None:
        self.folder = folder
        self.sample = sample
        self._schemas = {table: schema(table, causal=causal, detail=detail) for table in TABLES}
        self._storage = storage
        self._guard = guard
        self._files: dict[str, JoinedFile] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sinklens-row-groups")
        self._joiner = ThreadPoolExecutor(1, thread_name_prefix="sinklens-joining")
        self._joining: deque[Future[None]] = deque()

    def write(self, table: str, part: Part) -> None:
        """Row groups. Columns that are missing are null, `sample` is added. Arrays must stay as they are."""
        make = partial(_row_groups, self._schemas[table], part, self.sample, self._storage)
        self._joining.append(self._joiner.submit(self._join, table, self.submit(make)))

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Work for the threads, done in the order it comes."""
        return self._threads.submit(work, *given)

    def settle(self) -> None:
        """Wait until whatever was asked for so far is in its file."""
        while self._joining:
            self._joining[0].result()  # an interrupt in here loses nothing
            self._joining.popleft()

    def _join(self, table: str, made: "Future[memoryview]") -> None:
        part = made.result()
        with self._guard():
            self._file(table).append(part)

    def close(self) -> None:
        """End every file and wait until all are on the disk."""
        self.settle()
        self._threads.shutdown()
        self._joiner.shutdown()
        with self._guard():
            while self._files:
                table, file = next(iter(self._files.items()))
                file.close()
                del self._files[table]
                sync(self._path(table))
            sync(self.folder)

    def abandon(self) -> None:
        """Let go of the files; what they hold is thrown away with the folder."""
        self._threads.shutdown(cancel_futures=True)
        self._joiner.shutdown(cancel_futures=True)
        self._joining.clear()
        for file in self._files.values():
            file.abandon()
        self._files.clear()

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def _file(self, table: str) -> JoinedFile:
        if table not in self._files:
            self._files[table] = JoinedFile(self._path(table))
        return self._files[table]


def _row_groups(wanted: Any, part: Part, sample: int, storage: Storage) -> memoryview:
    """A Parquet file of these row groups."""
    columns = {"sample": np.full(part.rows, sample), **part.columns()}
    arrays = [
        _array(columns[field.name], field, storage) if field.name in columns else pa.nulls(part.rows, field.type)
        for field in wanted
    ]
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(made, wanted, **storage.writer_options(wanted)) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=wanted), row_group_size=max(1, part.group_rows))
    return memoryview(made.getvalue())


def _array(values: Any, field: Any, storage: Storage) -> Any:
    """A column: NaN among scalars and in lists of nullable numbers is null."""
    kind = field.type
    if isinstance(values, Lists):
        flat = storage.column(field.name, _joined(values.values))
        missing = np.isnan(flat) if kind.value_field.nullable else None
        offsets = np.concatenate([[0], np.cumsum(values.lengths.ravel())]).astype(np.int32)
        inner = pa.array(flat, type=kind.value_type, mask=missing)
        return pa.ListArray.from_arrays(pa.array(offsets), inner, type=kind)
    if isinstance(values, np.ndarray):
        plain = pa.array([], type=kind).to_numpy(zero_copy_only=False).dtype  # to_pandas_dtype may need pandas
        values = values.astype(plain, copy=False)
    return pa.array(values, type=kind, from_pandas=True)


def _joined(pieces: Any) -> Any:
    """As [layer, number] where all layers have as many."""
    if isinstance(pieces, np.ndarray) or len(pieces) == 1:
        return np.asarray(pieces)
    return np.concatenate(pieces) if len(pieces) else np.zeros(0)


def lists_of(arrays: Sequence[Any]) -> Lists:
    """A list column from one array a row."""
    return Lists(values=[np.asarray(array) for array in arrays], lengths=np.array([[len(array) for array in arrays]]))
