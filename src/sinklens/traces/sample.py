"""One sample on its way to the disk: steps come in, row groups of a run of steps go out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.errors import UsageError, choose
from sinklens.traces.estimate import BUFFER_BYTES
from sinklens.traces.files import Guard, SampleFiles, lists_of
from sinklens.traces.gather import Gathering, RowsPart
from sinklens.traces.makers import Makers
from sinklens.traces.pack import Packed, as_stored, pack
from sinklens.traces.rows import AttentionRows, SampleEnd, StepRows
from sinklens.traces.schema import groups_of
from sinklens.traces.sifting import Sifter
from sinklens.traces.storage import Storage

TAPER = (6, 3, 1)  # steps that are left when a large sample is flushed once more: little is to be done at its end
SIFTED_BYTES = 32 * 2**20  # of sums on their way through the sifter
EXACT = Storage.of(exact=True)  # it is rounded when its row group is made


class SampleWriter:
    """Takes the steps of one sample in order; `TraceWriter.sample` makes it."""

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        manifest: Mapping[str, Any],
        storage: Storage,
        guard: Guard,
        makers: Makers | None = None,
        steps: int | None = None,
    ) -> None:
        """makers: that serve other samples too; steps: how many will come, if that is known."""
        self._makers, self._own = Makers() if makers is None else makers, makers is None
        self._taper = () if steps is None else tuple(steps - left for left in TAPER)
        kind = {"causal": manifest["model"]["causal"], "detail": manifest["detail"]}
        self._files = SampleFiles(folder, sample=number, **kind, storage=storage, guard=guard, makers=self._makers)
        self._groups = groups_of(manifest["model"]["causal"])
        self._model_heads = int(manifest["model"]["heads"])
        self._sifter: Sifter | None = None
        if manifest["detail"] == "sinks":
            self._sifter = Sifter(self._makers.submit, storage=storage, model_heads=self._model_heads)
        self._lines: list[dict[str, Any]] = []  # of the table `steps`, and the seconds
        self._maps: list[dict[str, Any]] = []
        self._gathering = Gathering()
        self._shape: tuple[Any, ...] | None = None
        self._bytes = self._count = self._positions = self._flushes = 0
        self._torn = self.ended = False

    def add(self, rows: StepRows) -> None:
        """The next step. Whatever of it waits is a copy."""
        self._refuse_torn()
        if self.ended or rows.step != self._count:
            wanted = "no step, it has ended" if self.ended else f"step {self._count}"
            raise UsageError(f"step {rows.step} came where the sample takes {wanted}; add every step, in order, from 0")
        self._count += 1
        self._positions = max(self._positions, rows.positions)
        if rows.attention is not None:
            self._add_attention(rows.step, rows.attention)
        self._lines.append(_line(rows))
        self._bytes += rows.ids.nbytes + rows.confidence.nbytes
        if self._bytes >= BUFFER_BYTES:
            self._flush()
            self._flushes += 1
        elif self._flushes and self._count in self._taper:
            self._flush()

    def end(self, end: SampleEnd) -> None:
        """What is known now; nothing can be added behind it."""
        self._refuse_torn()
        if self._sifter is not None:
            self._sifter.end()
            for ready in self._sifter.take():
                self._keep(*ready)
        self._flush()
        for table in ("attention", "uniform", "steps", "timing"):
            if self._count == 0 or (table in ("attention", "uniform") and self._shape is None):
                self._files.write(table, RowsPart(given={}, rows=0))  # every sample has these files
        ids = sorted(end.tokens)
        texts, classes = ([end.tokens[one][index] for one in ids] for index in (0, 1))
        tokens = {"id": np.array(ids, np.int32), "text": texts, "class": classes}
        self._files.write("tokens", RowsPart(given=tokens, rows=len(ids)))
        row = {
            "prompt": [end.prompt],
            "prompt_length": [end.prompt_length],
            "ids": lists_of([end.ids]),
            "text": [end.text],
            "steps": [self._count],
            "positions": [self._positions if self._count else len(end.ids)],
        }
        self._files.write("sample", RowsPart(given=row, rows=1))
        self.ended = True

    def close(self) -> None:
        """After the end: all of it is on the disk then."""
        self._makers.settle()
        self._files.close()
        if self._own:
            self._makers.close()

    def abandon(self) -> None:
        """Let go of the files; what they hold is thrown away with the folder."""
        try:
            self._makers.drop()
            if self._own:
                self._makers.close()
        finally:
            self._files.abandon()

    def _add_attention(self, step: int, rows: AttentionRows) -> None:
        self._check_same(step, rows)
        for (layer, head), values in rows.maps.items():
            site = {"step": step, "layer": layer, "head": head}
            numbers = np.array(values, np.float32).ravel()
            self._maps.append(site | {"queries": values.shape[0], "keys": values.shape[1], "map": numbers})
            self._bytes += numbers.nbytes
        if self._sifter is None:
            self._keep(step, pack(rows, kept=None, model_heads=self._model_heads))
            return
        self._sifter.add(step, as_stored(replace(rows, maps={}), EXACT))
        for ready in self._sifter.take(room=SIFTED_BYTES):
            self._keep(*ready)

    def _check_same(self, step: int, rows: AttentionRows) -> None:
        """All stored steps of a sample have the same layers, heads and columns."""
        for name in rows.groups:
            choose("group", name, self._groups)
        optional = [name for name, value in vars(rows).items() if value is None and name not in ("impl", "kernel")]
        shape = ([int(i) for i in rows.layers], [int(i) for i in rows.heads], sorted(rows.groups), sorted(optional))
        if self._shape is not None and shape != self._shape:
            raise UsageError(
                f"step {step} has other layers, heads, groups or missing arrays than the steps before it "
                f"({shape} against {self._shape}); record the same in every stored step"
            )
        self._shape = shape

    def _keep(self, step: int, tables: dict[str, Packed]) -> None:
        self._bytes += self._gathering.add(step, tables)

    def _flush(self) -> None:
        self._makers.settle()  # what was flushed before has had the time of a buffer: no more than two are full
        self._torn = True
        for table, part in self._gathering.take():
            self._files.write(table, part)
        for table, lines in (("steps", self._lines), ("timing", self._lines), ("maps", self._maps)):
            if lines:
                self._files.write(table, RowsPart(given=_columns(lines), rows=len(lines)))
        self._lines, self._maps, self._bytes = [], [], 0
        self._torn = False

    def _refuse_torn(self) -> None:
        """After an interrupt on the way to the disk nobody knows what has left."""
        if self._torn:
            raise UsageError("an interrupt came while steps left for the disk; the sample cannot go on, write it anew")


def _columns(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as columns; those of arrays are lists."""
    columns = {name: [line[name] for line in lines] for name in lines[0]}
    return {name: lists_of(values) if isinstance(values[0], np.ndarray) else values for name, values in columns.items()}


def _line(rows: StepRows) -> dict[str, Any]:
    """A row of `steps`, and of `timing`. Copies: the caller may go on with its arrays."""
    block_start, block_stop = (None, None) if rows.block is None else rows.block
    return {
        "step": rows.step,
        "canvas": np.array(rows.ids, np.int32),
        "masked": np.array(rows.masked, bool),
        "committed": np.array(rows.committed, np.int32),
        "committed_ids": np.array(rows.committed_ids, np.int32),
        "confidence": np.array(rows.confidence, np.float32),
        "block_start": block_start,
        "block_stop": block_stop,
        "stored": rows.attention is not None,
        "impl": None if rows.attention is None else rows.attention.impl,
        "kernel": None if rows.attention is None else rows.attention.kernel,
        "seconds": rows.seconds,
    }
