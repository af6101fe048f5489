"""The Parquet files of one sample while it is being written: one row group a layer and run of steps.

Row groups are made in threads, while pyarrow lets go of the interpreter, and joined in the order they were asked for.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.files import sync
from sinklens.traces.joined import JoinedFile
from sinklens.traces.pack import Lists, Packed
from sinklens.traces.schema import schema
from sinklens.traces.storage import Storage

Guard = Callable[[], AbstractContextManager[None]]  # around whatever touches the disk

THREADS = max(1, min(16, (os.cpu_count() or 1) - 1))


class SampleFiles:
    """Files that open with their first row group."""

    def __init__(self, folder: Path, *, sample: int, causal: bool, detail: str, storage: Storage, guard: Guard) -> None:
        self.folder = folder
        self.sample = sample
        self._kind: dict[str, Any] = {"causal": causal, "detail": detail}
        self._storage = storage
        self._guard = guard
        self._files: dict[str, JoinedFile] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sinklens-row-groups")
        self._making: deque[tuple[str, Future[memoryview]]] = deque()

    def write(self, table: str, columns: Mapping[str, Any], rows: int) -> None:
        """One row group; columns that are missing are null, `sample` is added. Arrays must stay as they are."""
        columns = {"sample": np.full(rows, self.sample), **columns}
        make = partial(_row_group, schema(table, **self._kind), columns, rows, self._storage)
        self._making.append((table, self.submit(make)))

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Work for the threads, done in the order it comes."""
        return self._threads.submit(work, *given)

    def settle(self) -> None:
        """Put to the disk whatever was asked for so far."""
        while self._making:
            table, made = self._making[0]
            part = made.result()  # an interrupt in here loses nothing
            with self._guard():
                self._file(table).append(part)
            self._making.popleft()

    def write_layers(self, table: str, steps: Sequence[tuple[int, Packed]]) -> None:
        """The rows of several steps, one row group a layer."""
        for layer in sorted({layer for _, packed in steps for layer in packed.layers}):
            parts = [(step, packed, packed.layers.index(layer)) for step, packed in steps if layer in packed.layers]
            counts = [len(packed.rows) for _, packed, _ in parts]
            rows = sum(counts)
            columns: dict[str, Any] = {
                "step": np.repeat([step for step, _, _ in parts], counts),
                "layer": np.full(rows, layer),
            }
            first = parts[0][1]
            if first.row_name is not None:
                columns[first.row_name] = np.concatenate([np.asarray(packed.rows) for _, packed, _ in parts])
            for name in first.scalars:
                columns[name] = np.concatenate([packed.scalars[name][index] for _, packed, index in parts])
            for name in first.lists:
                columns[name] = Lists(
                    values=[packed.lists[name].values[index] for _, packed, index in parts],
                    lengths=np.concatenate([packed.lists[name].lengths[index] for _, packed, index in parts])[None],
                )
            self.write(table, columns, rows)

    def close(self) -> None:
        """End every file and wait until all are on the disk."""
        self.settle()
        self._threads.shutdown()
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
        self._making.clear()
        for file in self._files.values():
            file.abandon()
        self._files.clear()

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def _file(self, table: str) -> JoinedFile:
        if table not in self._files:
            self._files[table] = JoinedFile(self._path(table))
        return self._files[table]


def _row_group(wanted: Any, columns: Mapping[str, Any], rows: int, storage: Storage) -> memoryview:
    """A Parquet file of one row group."""
    arrays = [
        _array(columns[field.name], field, storage) if field.name in columns else pa.nulls(rows, field.type)
        for field in wanted
    ]
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(made, wanted, **storage.writer_options(wanted)) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=wanted), row_group_size=max(1, rows))
    return memoryview(made.getvalue())


def _array(values: Any, field: Any, storage: Storage) -> Any:
    """A column: NaN among scalars and in lists of nullable numbers is null."""
    kind = field.type
    if isinstance(values, Lists):
        flat = storage.column(field.name, np.concatenate(values.values) if values.values else np.zeros(0))
        missing = np.isnan(flat) if kind.value_field.nullable else None
        offsets = np.concatenate([[0], np.cumsum(values.lengths.ravel())]).astype(np.int32)
        inner = pa.array(flat, type=kind.value_type, mask=missing)
        return pa.ListArray.from_arrays(pa.array(offsets), inner, type=kind)
    if isinstance(values, np.ndarray):
        plain = pa.array([], type=kind).to_numpy(zero_copy_only=False).dtype  # to_pandas_dtype may need pandas
        values = values.astype(plain, copy=False)
    return pa.array(values, type=kind, from_pandas=True)


def lists_of(arrays: Sequence[Any]) -> Lists:
    """A list column from one array a row."""
    return Lists(values=[np.asarray(array) for array in arrays], lengths=np.array([[len(array) for array in arrays]]))
