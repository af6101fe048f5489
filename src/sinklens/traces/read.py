"""Open a trace: layer by layer as the arrays every analysis reads, or table by table.

Of a file only the row groups of the layer asked for are read, and of those only the columns asked for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from sinklens.errors import TraceError, UsageError, choose
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.traces.assemble import canvases_of, layer_of
from sinklens.traces.folder import finished_samples, sample_folder
from sinklens.traces.footer import Footer, check_columns, check_nulls, layer_ranges
from sinklens.traces.manifest import read_manifest
from sinklens.traces.schema import ALL, ALWAYS, TABLES, column, groups_of, schema

REMEMBERED = 32  # files whose footers are kept in memory


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleInfo:
    """One sample in short."""

    sample: int
    prompt: str | None  # None: it came as ids or messages
    text: str | None  # None: no tokenizer
    prompt_length: int
    ids: Int[np.ndarray, " position"]  # the final ones, prompt included
    steps: int
    positions: int  # the longest canvas, with what its step committed


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A trace on disk, as it was when it was opened: samples that are finished later are not in it."""

    path: Path
    manifest: Mapping[str, Any]
    samples: Sequence[int]
    _footers: dict[tuple[int, str], Footer] = field(default_factory=dict, repr=False)
    _infos: dict[int, SampleInfo] = field(default_factory=dict, repr=False)
    _there: dict[str, bool] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def __repr__(self) -> str:
        wanted = self.manifest["samples"]
        return f"Trace({str(self.path)!r}, {self.name!r}, {len(self.samples)} of {wanted} samples, {self.detail})"

    @property
    def name(self) -> str:
        return str(self.manifest["model"]["name"])

    @property
    def complete(self) -> bool:
        """False: it is still being written, or was interrupted."""
        return bool(self.manifest["complete"])

    @property
    def causal(self) -> bool:
        return bool(self.manifest["model"]["causal"])

    @property
    def detail(self) -> str:
        return str(self.manifest["detail"])

    @property
    def layers(self) -> list[int]:
        return [int(layer) for layer in self.manifest["layers"]]

    @property
    def heads(self) -> list[int]:
        return [int(head) for head in self.manifest["heads"]]

    def info(self, sample: int) -> SampleInfo:
        """Prompt, text, length and final ids."""
        if sample not in self._infos:
            rows = self._read("sample", sample)
            with self._reading("sample", sample):
                row = rows.to_pylist()[0]
                row["ids"] = np.array(row["ids"], np.int32)
                if row["prompt_length"] < 0 or row["positions"] < 0:
                    raise ValueError(f"{row['positions']} positions behind a prompt of {row['prompt_length']}")
                self._infos[sample] = SampleInfo(**{name: row[name] for name in SampleInfo.__dataclass_fields__})
        return self._infos[sample]

    def canvases(self, sample: int) -> Canvases:
        """What stood where when each forward ran, for every step."""
        info = self.info(sample)
        steps, tokens = self._read("steps", sample), self._read("tokens", sample)
        with self._reading("steps", sample):
            if steps.num_rows != info.steps:
                raise ValueError(f"{steps.num_rows} rows for {info.steps} steps")
            return canvases_of(steps, tokens, sample=sample, prompt_length=info.prompt_length, width=info.positions)

    def layer(self, sample: int, layer: int, *, groups: bool = False, norms: bool = False) -> LayerArrays:
        """One layer of one sample; groups and norms are read only where they are asked for."""
        if layer not in self.layers:
            raise UsageError(f"layer {layer} is not in this trace; it has {_spell(self.layers)}")
        names = (None, *groups_of(self.causal)) if groups else (None,)
        wanted = [column("received", name) for name in names] + [
            "step",
            "head",
            "null_mass",
            "output_rank",
            "output_size",
        ]
        uniform = [column(kind, name) for name in names for kind in ("expected", "viewers")] + ["step", "head"]
        if self.detail == "sinks":
            wanted += ["position", *(column("rest_share", name) for name in names)]
        if norms:
            wanted += ["output_norm", *(["rest_output_norm"] if self.detail == "sinks" else [])]
        extra = {
            name: self._read(name, sample, layers=[layer]) for name in ("norms", "hidden") if norms and self._has(name)
        }
        attention = self._read("attention", sample, columns=wanted, layers=[layer])
        seen = self._read("uniform", sample, columns=uniform, layers=[layer])
        info = self.info(sample)
        with self._reading("attention", sample):
            found = layer_of(attention, seen, extra, layer=layer, heads=self.heads, width=info.positions)
            if any(not 0 <= step < info.steps for step in found.steps):
                raise ValueError(f"a row of another step than the {info.steps} that there are")
            return found

    def maps(self, sample: int) -> list[tuple[int, int, int, Float[np.ndarray, "query key"]]]:
        """The full maps that were recorded: (step, layer, head, map)."""
        if not self._has("maps"):
            return []
        rows = self._read("maps", sample).to_pylist()
        with self._reading("maps", sample):
            return [
                (
                    row["step"],
                    row["layer"],
                    row["head"],
                    np.array(row["map"], np.float32).reshape(row["queries"], row["keys"]),
                )
                for row in rows
            ]

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        samples: Sequence[int] | None = None,
    ) -> Any:
        """A table over samples and layers as a pyarrow.Table; None: all of them.

        Rows of `uniform` that hold for all layers belong to every layer.
        """
        self._check_table(name)
        chosen = self.samples if samples is None else samples
        parts = [self._read(name, sample, columns=columns, layers=layers) for sample in chosen]
        if not parts:
            return self._schema(name).empty_table()
        return pa.concat_tables(parts, promote_options="default")  # a newer version may have columns of its own

    def dataset(self, name: str) -> Any:
        """A table over all samples as a pyarrow.dataset.Dataset, which reads when it is asked."""
        import pyarrow.dataset as ds

        self._check_table(name)
        files = [str(self._file(name, sample)) for sample in self.samples if self._recorded(name, sample)]
        return ds.dataset(files, schema=self._schema(name), format="parquet")

    def _schema(self, table: str) -> Any:
        return schema(table, causal=self.causal, detail=self.detail)

    def _file(self, table: str, sample: int) -> Path:
        return sample_folder(self.path, sample) / f"{table}.parquet"

    def _has(self, table: str) -> bool:
        if table not in self._there:
            found = table in ALWAYS or any(self._file(table, sample).exists() for sample in self.samples)
            self._there[table] = found
        return self._there[table]

    def _recorded(self, table: str, sample: int) -> bool:
        """False only for maps: a sample that ended before the steps that were asked for has none."""
        return table != "maps" or self._file(table, sample).exists()

    def _check_table(self, name: str) -> None:
        choose("table", name, TABLES)
        if not self._has(name):
            raise UsageError(f"this trace has no table {name!r}: it was not recorded")

    def _read(
        self, table: str, sample: int, *, columns: Sequence[str] | None = None, layers: Iterable[int] | None = None
    ) -> Any:
        """Rows of one file. Row groups of other layers are left alone."""
        if sample not in self.samples:
            raise UsageError(f"sample {sample} is not in this trace; it has {_spell(self.samples)}")
        if not self._recorded(table, sample):
            empty = self._schema(table).empty_table()
            return empty if columns is None else empty.select(list(columns))
        known = self._schema(table).names
        for name in columns or ():
            choose(f"column of {table}", name, tuple(known))
        if layers is not None and "layer" not in known:
            raise UsageError(f"table {table!r} has no layers; leave them out")
        with self._reading(table, sample):
            footer = self._footer(table, sample)
            path = self._file(table, sample)
            with pq.ParquetFile(path, metadata=footer.metadata, page_checksum_verification=True) as file:
                if layers is None:
                    rows = file.read(columns=columns)
                    check_nulls(rows, self._schema(table))
                    return rows
                chosen = {*layers, ALL}
                groups = footer.groups_with(chosen)
                rows = file.read_row_groups(groups, columns=None if columns is None else [*columns, "layer"])
                check_nulls(rows, self._schema(table))
        mask = np.isin(rows["layer"].to_numpy(), list(chosen))
        rows = rows if mask.all() else rows.filter(pa.array(mask))
        return rows if columns is None else rows.select(list(columns))

    def _footer(self, table: str, sample: int) -> Footer:
        with self._lock:  # layers are read from several threads
            footer = self._footers.get((sample, table))
            if footer is None:
                while len(self._footers) >= REMEMBERED:
                    self._footers.pop(next(iter(self._footers)))
                metadata = pq.read_metadata(self._file(table, sample))
                check_columns(metadata, self._schema(table))
                footer = self._footers[sample, table] = Footer(metadata=metadata, layers=layer_ranges(metadata))
        return footer

    @contextmanager
    def _reading(self, table: str, sample: int) -> Iterator[None]:
        """A file that is damaged is an error that names it and says how to go on."""
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, ArithmeticError) as error:
            if isinstance(error, UsageError):
                raise
            file = self._file(table, sample)
            what = f"cannot be read ({error})" if file.exists() else "is missing"
            raise TraceError(
                f"{file} of sample {sample} {what}; delete the folder {file.parent} and resume the trace, which "
                "records that sample again"
            ) from error


def _spell(numbers: Sequence[int]) -> str:
    """0 to 31, or the numbers one by one."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers) or "none"


def open_trace(path: str | Path) -> Trace:
    """Open a trace for reading, finished or not: it holds every sample that was finished by now."""
    folder = Path(path)
    manifest = read_manifest(folder)
    samples = [sample for sample in finished_samples(folder) if sample < manifest["samples"]]
    return Trace(path=folder, manifest=manifest, samples=samples)
