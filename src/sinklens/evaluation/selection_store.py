"""The folder of a selection experiment.

    experiment.json     what decides the rows: the model, the images, the seed
    rows/*.parquet      one row an image and cell: what came out, with which tokens
    speed/*.parquet     images a second, with dropped tokens really taken out

One file a finished batch of one cell, written whole. A rerun does what is not there yet, so budgets, links, baselines
and images can be added later.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from sinklens.evaluation.row_files import read_batch
from sinklens.evaluation.store import Store
from sinklens.files import written_whole

TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "rows": {
            "method": "string",  # gate, a baseline, or fixed
            "model": "string",  # of fixed: which one; else empty
            "alpha": "float64",
            "channel": "string",
            "level": "float64",  # dB, or a probability; null: a wire
            "image": "int64",
            "label": "int64",
            "prediction": "int64",
            "right": "bool",
            "loss": "float64",  # nats
            "kept": "list<int32>",  # patches behind every gate
            "recall": "list<float64>",  # share of the foreground in them; null: none is known, or tokens were merged
            "mask": "binary",  # gate over a wire: which patches, gate after gate, packed bits; else null
            "sent": "int64",  # tokens, class and budget token included
            "rate": "float64",  # channel uses per value of the image, for the tokens
            "side_bits": "float64",  # that say which tokens were sent
            "macs": "int64",
        },
        "speed": {
            "alpha": "float64",
            "batch": "int64",
            "pass": "int64",
            "images": "int64",
            "seconds": "float64",
            "kept": "float64",  # mean share of patches over gates
            "device": "string",
            "threads": "int64",
        },
    }
)
_LISTS = {"list<int32>": "int32", "list<float64>": "float64"}
_NOT_PLAIN = re.compile(r"[^\w.-]+")


class SelectionStore(Store):
    """Reads and writes that folder."""

    def add(self, table: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One finished batch; `name` says what it is, to people."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = pa.Table.from_pylist([dict(row) for row in rows], schema=schema_of(table))
        content = sha256(repr(found.to_pydict()).encode()).hexdigest()[:12]  # a later batch may have the same name
        file = f"{_NOT_PLAIN.sub('_', name)}.{content}.parquet"
        with written_whole(self.folder / table / file) as temporary:
            pq.write_table(found, temporary, compression="zstd")

    def batches(self) -> int:
        """Files of rows that are there."""
        return len(list((self.folder / "rows").glob("*.parquet")))

    def tables(self, name: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """One pyarrow table after the other, each of one finished batch."""

        for path in sorted((self.folder / name).glob("*.parquet")):
            yield read_batch(path, list(columns or TABLES[name]))

    def read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """A table as pyarrow holds it, all batches in one."""
        import pyarrow as pa

        schema = schema_of(name)
        wanted = schema if columns is None else pa.schema([schema.field(column) for column in columns])
        tables = list(self.tables(name, wanted.names))
        return pa.concat_tables(tables) if tables else wanted.empty_table()


def schema_of(name: str) -> Any:
    import pyarrow as pa

    def kind(alias: str) -> Any:
        return pa.list_(pa.type_for_alias(_LISTS[alias])) if alias in _LISTS else pa.type_for_alias(alias)

    return pa.schema([(column, kind(alias)) for column, alias in TABLES[name].items()])
