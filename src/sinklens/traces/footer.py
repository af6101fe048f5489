"""What the footer of a Parquet file says: which row groups hold which layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Footer:
    """Metadata of a file, read once."""

    metadata: Any
    layers: Sequence[tuple[int, int]] | None  # least and greatest of each row group; None: not known

    def groups_with(self, layers: Iterable[int]) -> list[int]:
        """The row groups in which rows of these layers may be."""
        ranges = self.layers
        every = range(self.metadata.num_row_groups)
        return [i for i in every if ranges is None or any(ranges[i][0] <= one <= ranges[i][1] for one in layers)]


def check_columns(metadata: Any, wanted: Any) -> None:
    """A file has the columns of its table, each of its type; it may have others. Values are not looked at."""
    import pyarrow as pa

    found = metadata.schema.to_arrow_schema()
    for column in wanted:
        index = found.get_field_index(column.name)
        if index < 0:
            raise ValueError(f"it has no column {column.name}")
        kind, expected = found.field(index).type, column.type
        if pa.types.is_list(kind) and pa.types.is_list(expected):
            kind, expected = kind.value_type, expected.value_type
        if kind != expected:
            raise ValueError(f"its column {column.name} is {found.field(index).type}, not {column.type}")


def check_nulls(rows: Any, wanted: Any) -> None:
    """No null where the table has none."""
    for name in rows.column_names:
        if name in wanted.names and not wanted.field(name).nullable and rows[name].null_count:
            raise ValueError(f"its column {name} has no value in some rows")


def layer_ranges(metadata: Any) -> Sequence[tuple[int, int]] | None:
    """The least and greatest layer of each row group, where the file says so."""
    index = metadata.schema.names.index("layer") if "layer" in metadata.schema.names else None
    if index is None:
        return None
    found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if any(statistics is None or not statistics.has_min_max for statistics in found):
        return None
    return [(statistics.min, statistics.max) for statistics in found]
