"""Files of rows, read without anything else of an experiment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read_batch(path: Path, columns: Sequence[str] | None = None) -> Any:
    """One file of rows. In this thread alone: where memory is short, one that cannot start is waited for in vain."""
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=columns, partitioning=None, use_threads=False)
