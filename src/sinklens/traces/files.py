"""The Parquet files of one sample while it is being written.

Row groups are made elsewhere (traces/makers.py), joined in the order they were asked for, and seen to the disk as they
come: little is left to be waited for at the end.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sinklens.files import sync
from sinklens.traces.gather import PART_BYTES, Part, RowsPart
from sinklens.traces.joined import JoinedFile
from sinklens.traces.makers import Makers, Turn
from sinklens.traces.pack import Lists
from sinklens.traces.schema import TABLES, schema
from sinklens.traces.storage import Storage

Guard = Callable[[], AbstractContextManager[None]]  # around whatever touches the disk


class SampleFiles:
    """Files that open with their first row group."""

    def __init__(
        self,
        folder: Path,
        *,
        sample: int,
        causal: bool,
        detail: str,
        storage: Storage,
        guard: Guard,
        makers: Makers,
    ) -> None:
        self.folder = folder
        self.sample = sample
        self._makers = makers
        self._schemas = {table: schema(table, causal=causal, detail=detail) for table in TABLES}
        self._storage = storage
        self._guard = guard
        self._files: dict[str, JoinedFile] = {}

    def write(self, table: str, part: Part) -> None:
        """Row groups. Columns that are missing are null, `sample` is added. Arrays must stay as they are."""
        make = partial(_row_groups, self._schemas[table], part, self.sample, self._storage)
        self._makers.make(make, partial(self._join, table))

    def _join(self, table: str, made: memoryview, turn: Turn) -> None:
        with self._guard():
            self._file(table).append(made, turn)

    def close(self) -> None:
        """All is joined: end every file and wait until all are on the disk."""
        with self._guard():
            while self._files:
                table, file = next(iter(self._files.items()))
                file.close()
                del self._files[table]
                sync(self._path(table))
            sync(self.folder)

    def abandon(self) -> None:
        """Let go of the files; what they hold is thrown away with the folder."""
        for file in self._files.values():
            file.abandon()
        self._files.clear()

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def _file(self, table: str) -> JoinedFile:
        if table not in self._files:
            self._files[table] = JoinedFile(self._path(table))
        return self._files[table]


def _row_groups(wanted: Any, part: Part, sample: int, storage: Storage, turn: Turn) -> memoryview:
    """A Parquet file of these row groups."""
    with turn:
        columns = {"sample": np.full(part.rows, sample), **part.columns()}
        arrays = [
            _array(columns[field.name], field, storage) if field.name in columns else pa.nulls(part.rows, field.type)
            for field in wanted
        ]
        table, made = pa.Table.from_arrays(arrays, schema=wanted), pa.BufferOutputStream()
        writer = pq.ParquetWriter(made, wanted, **storage.writer_options(wanted))
    writer.write_table(table, row_group_size=max(1, part.group_rows))
    with turn:
        writer.close()
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


def warm_up(makers: Makers) -> None:
    """Row groups of no meaning in every thread: their memory is there then, and what is imported late."""
    storage, wanted = Storage(), schema("attention", causal=False, detail="full")
    keys, columns = 256, ("received", "received_masked", "received_unmasked", "output_norm")
    rows = PART_BYTES // (4 * keys * len(columns))
    numbers = np.linspace(0, 1, rows * keys, dtype=np.float32)[None]
    lists = Lists(values=numbers, lengths=np.full((1, rows), keys))
    one = np.zeros(rows, np.int32)
    given = dict.fromkeys(columns, lists) | dict.fromkeys(("step", "layer", "head"), one)
    makers.each(lambda: _row_groups(wanted, RowsPart(given=given, rows=rows), 0, storage, makers.turn).release())
