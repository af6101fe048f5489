"""The steps of one table in memory, until row groups are made of them: each layer's numbers, one step behind the other.

A thread that makes row groups of several layers finds them in whole pieces of memory and asks for the interpreter a few
times: so a dozen threads keep a dozen cores busy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from sinklens.traces.estimate import GROUP_BYTES
from sinklens.traces.pack import Lists, Packed

PART_BYTES = 4 * 2**20  # of the row groups that a thread makes at a time


@runtime_checkable
class Part(Protocol):
    """Some row groups."""

    @property
    def rows(self) -> int: ...

    @property
    def group_rows(self) -> int:
        """Of each row group but the last."""
        ...

    def columns(self) -> Mapping[str, Any]:
        """Called once, by whoever makes the row groups."""
        ...


class _Slab:
    """A column of numbers, [layer, number], that grows to the right and keeps its memory."""

    def __init__(self, layers: int, dtype: Any) -> None:
        self._room: np.ndarray = np.empty((layers, 0), dtype)
        self._used = 0

    def add(self, values: Shaped[np.ndarray, "layer _"]) -> None:
        start, self._used = self._used, self._used + values.shape[1]
        dtype = np.promote_types(self._room.dtype, values.dtype)  # a later step may have wider numbers
        if self._used > self._room.shape[1] or dtype != self._room.dtype:
            wider = np.empty((len(self._room), max(self._used, 2 * start)), dtype)
            wider[:, :start] = self._room[:, :start]
            self._room = wider
        self._room[:, start : self._used] = values

    def of(self, layers: range) -> Shaped[np.ndarray, "some _"]:
        return self._room[layers.start : layers.stop, : self._used]

    def clear(self) -> None:
        self._used = 0


class Gathered:
    """A run of steps that have the same layers and rows."""

    def __init__(self, first: Packed) -> None:
        self._layers, self._rows, self._row_name = first.layers, first.rows, first.row_name
        self._scalars, self._lists = tuple(first.scalars), tuple(first.lists)
        self._steps: list[int] = []
        self._keys: dict[str, list[int]] = {}  # of every row of a step, where all rows have as many
        self._slabs: dict[str, _Slab] = {}
        self._pieces: dict[str, list[Lists]] = {}  # of which rows have different numbers
        self._bytes = 0

    def takes(self, packed: Packed) -> bool:
        return (self._layers, self._rows, self._row_name) == (packed.layers, packed.rows, packed.row_name)

    def add(self, step: int, packed: Packed) -> None:
        """One more step. Its arrays are copied where all rows have as many numbers; else they must stay as they are."""
        self._steps.append(step)
        self._bytes += packed.nbytes
        for name in self._scalars:
            self._put(name, packed.scalars[name])
        for name in self._lists:
            lists = packed.lists[name]
            if isinstance(lists.values, np.ndarray):
                self._put(name, lists.values)
                self._keys.setdefault(name, []).append(int(lists.lengths[0, 0]))
            else:
                self._pieces.setdefault(name, []).append(lists)

    def parts(self) -> Iterator["LayersPart"]:
        """All that was added. They hold until `clear`."""
        layers = len(self._layers)
        of_layer = max(1, self._bytes // layers)
        together = min(layers, -(-GROUP_BYTES // of_layer))  # in a row group
        at_a_time = together * max(1, PART_BYTES // (of_layer * together))
        group_rows = together * len(self._steps) * len(self._rows)
        for first in range(0, layers, at_a_time):
            chosen = range(first, min(layers, first + at_a_time))
            yield LayersPart(run=self, layers=chosen, group_rows=group_rows)

    def clear(self) -> None:
        """Begin anew, in the same memory."""
        self._steps, self._bytes = [], 0
        self._keys.clear()
        self._pieces.clear()
        for slab in self._slabs.values():
            slab.clear()

    def rows_of(self, layers: range) -> int:
        return len(layers) * len(self._steps) * len(self._rows)

    def columns_of(self, layers: range) -> dict[str, Any]:
        """Layer by layer, each step by step."""
        steps, rows = self._steps, len(self._rows)
        columns: dict[str, Any] = {
            "step": np.tile(np.repeat(steps, rows), len(layers)),
            "layer": np.repeat([self._layers[layer] for layer in layers], len(steps) * rows),
        }
        if self._row_name is not None:
            columns[self._row_name] = np.tile(np.asarray(self._rows), len(steps) * len(layers))
        for name in self._scalars:
            columns[name] = self._slabs[name].of(layers).ravel()
        for name in self._lists:
            columns[name] = self._lists_of(name, layers)
        return columns

    def _put(self, name: str, values: Shaped[np.ndarray, "layer _"]) -> None:
        if name not in self._slabs:
            self._slabs[name] = _Slab(len(self._layers), values.dtype)
        self._slabs[name].add(values)

    def _lists_of(self, name: str, layers: range) -> Lists:
        if name in self._keys:
            lengths = np.tile(np.repeat(self._keys[name], len(self._rows)), (len(layers), 1))
            return Lists(values=self._slabs[name].of(layers), lengths=lengths)
        pieces = self._pieces[name]
        lengths = np.concatenate([piece.lengths[layer] for layer in layers for piece in pieces])
        return Lists(values=[piece.values[layer] for layer in layers for piece in pieces], lengths=lengths[None])


@dataclass(frozen=True, kw_only=True, eq=False)
class LayersPart:
    """Some layers of a run."""

    run: Gathered
    layers: range
    group_rows: int

    @property
    def rows(self) -> int:
        return self.run.rows_of(self.layers)

    def columns(self) -> Mapping[str, Any]:
        return self.run.columns_of(self.layers)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsPart:
    """Columns that are there."""

    given: Mapping[str, Any]
    rows: int

    @property
    def group_rows(self) -> int:
        return self.rows

    def columns(self) -> Mapping[str, Any]:
        return self.given


class Gathering:
    """All tables of a sample. Two sets of memory take turns: one is filled while row groups are made of the other."""

    def __init__(self) -> None:
        self._open: dict[str, list[Gathered]] = {}
        self._taken: dict[str, list[Gathered]] = {}  # whose row groups are being made
        self._free: dict[str, list[Gathered]] = {}

    def add(self, step: int, tables: Mapping[str, Packed]) -> int:
        """One more step; how many bytes it has."""
        for name, packed in tables.items():
            runs = self._open.setdefault(name, [])
            if not runs or not runs[-1].takes(packed):
                runs.append(self._spare(name, packed))
            runs[-1].add(step, packed)
        return sum(packed.nbytes for packed in tables.values())

    def take(self) -> Sequence[tuple[str, Part]]:
        """The row groups of all that was added, by table. Those taken before must be on the disk."""
        self._open, self._taken, self._free = {}, self._open, self._taken
        return [(name, part) for name, runs in self._taken.items() for run in runs for part in run.parts()]

    def _spare(self, name: str, packed: Packed) -> Gathered:
        """Memory that is free again, or new."""
        free = self._free.get(name, [])
        for run in free:
            if run.takes(packed):
                free.remove(run)
                run.clear()
                return run
        return Gathered(packed)
