"""The folder of a compression experiment.

    experiment.json     what decides the rows: the model, the texts, the seed
    rows/*.parquet      one row a problem and cell: what came out, and its score
    texts/*.parquet     one row a chunk and cell: the loss and the hit of every token
    timings/*.parquet   how long each batch took

One file a finished batch of one cell, written whole. Rows say themselves what they belong to: a rerun does what is not
there yet, so problems, lengths, budgets and orders can be added later.
"""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from sinklens.evaluation.row_files import read_batch
from sinklens.evaluation.store import Store
from sinklens.files import written_whole

_CELL = {
    "cell": "string",
    "order": "string",
    "keep": "string",
    "skip": "string",
    "schedule": "string",
    "strict": "bool",
    "first": "int64",
    "last": "int64",
    "draw": "int64",
    "kept": "int64",  # entries of a head in a compressed layer: the budget, or all
}
TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "rows": {
            "model": "string",
            "task": "string",
            "set": "string",  # of longbench
            "length": "int64",  # asked for
            "depth": "float64",  # asked for; null: drawn, or the task has none
            "problem": "int64",
            **_CELL,
            "prompt_tokens": "int64",
            "at": "float64",  # depth that came out
            "answer": "string",
            "text": "string",
            "score": "float64",  # from 0 to 1
            "right": "bool",  # null: the task has scores alone
            "tokens": "int64",  # written
            "cache_bytes": "int64",  # of a problem's keys and values behind its prompt, after the cut
        },
        "texts": {
            "model": "string",
            "length": "int64",
            "problem": "int64",  # number of the chunk
            **_CELL,
            "stride": "int64",
            "losses": "list<float32>",  # nats, of tokens 1, 2, ...
            "hits": "list<bool>",  # whether the most likely token was the right one
        },
        "timings": {
            "task": "string",
            "length": "int64",
            "depth": "float64",
            "cell": "string",
            "problems": "int64",
            "shared": "float64",  # seconds for what all cells of the batch have in common
            "seconds": "float64",  # for the cell alone
            "device": "string",
        },
    }
)
_PLACE = ("model", "task", "set", "length", "depth", "problem", "cell", "stride")
_NOT_PLAIN = re.compile(r"[^\w-]+")
_LISTS = {"list<float32>": "float32", "list<bool>": "bool"}


class CompressStore(Store):
    """Reads and writes that folder."""

    def add(self, name: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Tables of one finished batch; `name` says what it is, to people."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = f"{_NOT_PLAIN.sub('_', name)}.{_told_apart(tables)}.parquet"
        for table in sorted(tables, key=lambda one: one != "timings"):  # timings first: the rest says that all is there
            found = pa.Table.from_pylist([dict(row) for row in tables[table]], schema=schema_of(table))
            with written_whole(self.folder / table / file) as temporary:
                pq.write_table(found, temporary, compression="zstd")

    def batches(self) -> int:
        """Files of rows that are there."""
        return sum(len(list((self.folder / name).glob("*.parquet"))) for name in ("rows", "texts"))

    def read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """A table as pyarrow holds it, all batches in one."""
        import pyarrow as pa

        schema = schema_of(name)
        wanted = schema if columns is None else pa.schema([schema.field(column) for column in columns])
        files = sorted((self.folder / name).glob("*.parquet"))
        tables = [read_batch(path, wanted.names) for path in files]
        return pa.concat_tables(tables) if tables else wanted.empty_table()


def _told_apart(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The first problem of a batch and a hash of what its rows belong to: no other batch has them, and the same one
    has them whenever it runs."""
    rows = [row for name in tables if name != "timings" for row in tables[name]]
    places = [[row.get(column) for column in _PLACE] for row in rows]
    return f"{rows[0]['problem']:06d}.{sha256(json.dumps(places).encode()).hexdigest()[:12]}"


def schema_of(name: str) -> Any:
    import pyarrow as pa

    def kind(alias: str) -> Any:
        return pa.list_(pa.type_for_alias(_LISTS[alias])) if alias in _LISTS else pa.type_for_alias(alias)

    return pa.schema([(column, kind(alias)) for column, alias in TABLES[name].items()])
