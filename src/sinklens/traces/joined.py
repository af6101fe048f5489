"""One Parquet file out of several that were made apart, each in memory: their row groups one behind the other.

A writer of pyarrow makes one row group at a time, on one core. Made apart they take as many cores as there are; what is
joined is, byte for byte, the file that one writer would have written. Old ones (15) repeat what is known of a column
behind it; such a repetition names places in its own part, so nothing points to it.
"""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from sinklens.traces import thrift
from sinklens.traces.thrift import I16, I64, Items, Struct

MAGIC = b"PAR1"
TAIL = 8  # the length of the footer, and the magic once more
SYNC_BYTES = 8 * 2**20

# Numbers of fields in parquet.thrift.
ROWS, GROUPS = 3, 4  # of the footer
COLUMNS, GROUP_ROWS, GROUP_OFFSET, ORDINAL = 1, 3, 5, 7  # of a row group
CHUNK_OFFSET, CHUNK, OFFSET_INDEX, COLUMN_INDEX = 2, 3, 4, 6  # of a column in it; the first is that of a repetition
PAGE_OFFSETS = (9, 10, 11, 14)  # of what is known of it: data, index and dictionary pages, bloom filter


class JoinedFile:
    """Takes whole Parquet files of one schema, in order."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - open until `close`
        self._unsynced = 0  # bytes
        self._footer: Struct = {}
        self._groups: list[bytes] = []  # as they will stand in the footer: at the end there is no time for it
        self._rows = 0

    def append(self, part: memoryview, turn: AbstractContextManager[Any]) -> None:
        """The row groups of one more file. Now and then what was written is seen to the disk."""
        start = len(part) - TAIL - int.from_bytes(part[-TAIL:-4], "little")
        with turn:
            footer = thrift.read(bytes(part[start:-TAIL]))
            if not self._footer:
                self._footer = footer
                self._file.write(MAGIC)
            shift = self._file.tell() - len(MAGIC)
            for group in footer[GROUPS][1].values:
                _shift(group, shift, ordinal=len(self._groups))
                self._groups.append(thrift.write(group))
                self._rows += group[GROUP_ROWS][1]
        self._file.write(part[len(MAGIC) : start])
        self._unsynced += start
        if self._unsynced >= SYNC_BYTES:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def close(self) -> None:
        """Write the footer of all."""
        if self._footer:
            self._footer[ROWS] = (I64, self._rows)
            self._footer[GROUPS] = (thrift.LIST, Items(thrift.STRUCT, list(self._groups)))
            footer = thrift.write(self._footer)
            self._file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, whatever it holds. A full disk refuses what is left in its buffer once more."""
        with suppress(OSError):
            self._file.close()


def _shift(group: Struct, by: int, *, ordinal: int) -> None:
    """Move everything that a row group says of places in its file."""
    _add(group, GROUP_OFFSET, by)
    if ORDINAL in group:
        group[ORDINAL] = (I16, ordinal)
    for column in group[COLUMNS][1].values:
        column[CHUNK_OFFSET] = (I64, 0)
        for name in (OFFSET_INDEX, COLUMN_INDEX):
            _add(column, name, by)
        for name in PAGE_OFFSETS:
            _add(column[CHUNK][1], name, by)


def _add(struct: Struct, name: int, by: int) -> None:
    if name in struct and struct[name][1] > 0:  # 0: not said
        struct[name] = (I64, struct[name][1] + by)
