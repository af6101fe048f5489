"""The Parquet files of one sample while it is being written: one row group a layer and run of steps."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.files import sync
from sinklens.traces.pack import Lists, Packed
from sinklens.traces.schema import schema
from sinklens.traces.storage import Storage

Guard = Callable[[], AbstractContextManager[None]]  # around whatever touches the disk


class SampleFiles:
    """Writers that open with their first row group."""

    def __init__(self, folder: Path, *, sample: int, causal: bool, detail: str, storage: Storage, guard: Guard) -> None:
        self.folder = folder
        self.sample = sample
        self._kind: dict[str, Any] = {"causal": causal, "detail": detail}
        self._storage = storage
        self._guard = guard
        self._writers: dict[str, Any] = {}

    def write(self, table: str, columns: Mapping[str, Any], rows: int) -> None:
        """One row group; columns that are missing are null, `sample` is added."""
        columns = {"sample": np.full(rows, self.sample), **columns}
        wanted = schema(table, **self._kind)
        arrays = [
            _array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in wanted
        ]
        with self._guard():
            self._writer(table).write_table(pa.Table.from_arrays(arrays, schema=wanted), row_group_size=max(1, rows))

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
        with self._guard():
            while self._writers:
                table, writer = next(iter(self._writers.items()))
                writer.close()
                del self._writers[table]
                sync(self._path(table))
            sync(self.folder)

    def abandon(self) -> None:
        """Let go of the files; what they hold is thrown away with the folder."""
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()
            writer.is_open = False  # else it would try, and fail, once more when it is collected
        self._writers.clear()

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def _writer(self, table: str) -> Any:
        if table not in self._writers:
            wanted = schema(table, **self._kind)
            options = self._storage.writer_options(wanted)
            self._writers[table] = pq.ParquetWriter(str(self._path(table)), wanted, **options)
        return self._writers[table]


def _array(values: Any, kind: Any) -> Any:
    """A column: NaN among scalars and in lists of nullable numbers is null."""
    if isinstance(values, Lists):
        flat = np.concatenate(values.values) if values.values else np.zeros(0)
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
