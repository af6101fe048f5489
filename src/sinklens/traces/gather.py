"""The steps of one table in memory, until row groups are made of them: each layer's numbers, one step behind the other.

Numbers are put there as they will be stored, when their step comes. So a row group is made from whole pieces of memory:
a thread that makes one asks for the interpreter a few times, and a dozen threads keep a dozen cores busy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from sinklens.traces.pack import Lists, Packed
from sinklens.traces.storage import Storage

GROUP_BYTES = 256 * 2**10  # of a row group; a layer that has less shares one with the next
PART_BYTES = 4 * 2**20  # of the row groups that a thread makes at a time

RowGroup = tuple[dict[str, Any], int]  # columns, and how many rows they have


class _Slab:
    """A column of numbers, [layer, number], that grows to the right and keeps its memory."""

    def __init__(self, layers: int, dtype: Any) -> None:
        self._room: np.ndarray = np.empty((layers, 0), dtype)
        self._used = 0

    def add(self, count: int) -> np.ndarray:
        """Room for so many numbers a layer."""
        start, self._used = self._used, self._used + count
        if self._used > self._room.shape[1]:
            wider = np.empty((len(self._room), max(self._used, 2 * start)), self._room.dtype)
            wider[:, :start] = self._room[:, :start]
            self._room = wider
        return self._room[:, start : self._used]

    def of(self, layers: range) -> list[np.ndarray]:
        """What some layers have, a piece for each."""
        return [self._room[layer, : self._used] for layer in layers]

    def clear(self) -> None:
        self._used = 0


class Gathered:
    """A run of steps that have the same layers and rows."""

    def __init__(self, first: Packed, storage: Storage) -> None:
        self._layers, self._rows, self._row_name = first.layers, first.rows, first.row_name
        self._scalars, self._lists = tuple(first.scalars), tuple(first.lists)
        self._storage = storage
        self._steps: list[int] = []
        self._slabs: dict[str, _Slab] = {}  # of lists and scalars
        self._lengths: dict[str, _Slab] = {}  # of lists
        self._pieces: dict[str, list[Sequence[np.ndarray]]] = {}  # lists of which layers have different numbers
        self._bytes = 0

    def takes(self, packed: Packed) -> bool:
        return (self._layers, self._rows, self._row_name) == (packed.layers, packed.rows, packed.row_name)

    def add(self, step: int, packed: Packed) -> None:
        """One more step. Its arrays are copied where all layers have as many numbers; else they must stay as they are.

        So it is with detail "sinks", whose numbers have been rounded before.
        """
        self._steps.append(step)
        self._bytes += packed.nbytes
        for name in self._scalars:
            self._slab(self._slabs, name, packed.scalars[name])[...] = packed.scalars[name]
        for name in self._lists:
            lists = packed.lists[name]
            self._slab(self._lengths, name, lists.lengths)[...] = lists.lengths
            if isinstance(lists.values, np.ndarray):
                self._storage.put(name, lists.values, self._slab(self._slabs, name, lists.values))
            else:
                self._pieces.setdefault(name, []).append(lists.values)

    def parts(self) -> Iterator[list[RowGroup]]:
        """Row groups, some at a time. They hold until `clear`."""
        layers = len(self._layers)
        of_layer = max(1, self._bytes // layers)
        together = -(-GROUP_BYTES // of_layer)
        groups = [range(first, min(layers, first + together)) for first in range(0, layers, together)]
        at_a_time = max(1, PART_BYTES // (of_layer * together))
        for first in range(0, len(groups), at_a_time):
            yield [
                (self._columns(chosen), len(chosen) * len(self._steps) * len(self._rows))
                for chosen in groups[first : first + at_a_time]
            ]

    def clear(self) -> None:
        """Begin anew, in the same memory."""
        self._steps, self._bytes = [], 0
        self._pieces.clear()
        for slab in (*self._slabs.values(), *self._lengths.values()):
            slab.clear()

    def _slab(self, slabs: dict[str, _Slab], name: str, values: Shaped[np.ndarray, "layer _"]) -> np.ndarray:
        if name not in slabs:
            slabs[name] = _Slab(len(self._layers), values.dtype)
        return slabs[name].add(values.shape[1])

    def _columns(self, layers: range) -> dict[str, Any]:
        steps, rows = self._steps, len(self._rows)
        columns: dict[str, Any] = {
            "step": np.tile(np.repeat(steps, rows), len(layers)),
            "layer": np.repeat([self._layers[layer] for layer in layers], len(steps) * rows),
        }
        if self._row_name is not None:
            columns[self._row_name] = np.tile(np.asarray(self._rows), len(steps) * len(layers))
        for name in self._scalars:
            columns[name] = np.concatenate(self._slabs[name].of(layers))
        for name in self._lists:
            lengths = np.concatenate(self._lengths[name].of(layers))
            columns[name] = Lists(values=self._values(name, layers), lengths=lengths[None], stored=True)
        return columns

    def _values(self, name: str, layers: range) -> list[np.ndarray]:
        if name in self._slabs:
            return self._slabs[name].of(layers)
        return [piece[layer] for layer in layers for piece in self._pieces[name]]


class Gathering:
    """All tables of a sample. Two sets of memory take turns: one is filled while row groups are made of the other."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
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

    def take(self) -> Iterator[tuple[str, list[RowGroup]]]:
        """The row groups of all that was added, by table. Those taken before must be on the disk."""
        self._open, self._taken, self._free = {}, self._open, self._taken
        for name, runs in self._taken.items():
            for run in runs:
                for part in run.parts():
                    yield name, part

    def _spare(self, name: str, packed: Packed) -> Gathered:
        """Memory that is free again, or new."""
        free = self._free.get(name, [])
        for run in free:
            if run.takes(packed):
                free.remove(run)
                run.clear()
                return run
        return Gathered(packed, self._storage)
