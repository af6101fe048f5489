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


def layer_ranges(metadata: Any) -> Sequence[tuple[int, int]] | None:
    """The least and greatest layer of each row group, where the file says so."""
    index = metadata.schema.names.index("layer") if "layer" in metadata.schema.names else None
    if index is None:
        return None
    found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if any(statistics is None or not statistics.has_min_max for statistics in found):
        return None
    return [(statistics.min, statistics.max) for statistics in found]
