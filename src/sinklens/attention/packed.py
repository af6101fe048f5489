"""The numbers of one forward in few arrays: what is alike in all layers is one array, and leaves the card as one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sinklens.attention.record import Record

_STACKED = (
    "by_group",
    "expected_by_group",
    "viewers_by_group",
    "null_mass",
    "entropy",
    "key_norm",
    "value_norm",
    "output_norm",
    "output_rank",
    "output_size",
)
HIDDEN = "hidden"


@dataclass(kw_only=True, eq=False)
class Measured:
    """The numbers of one forward."""

    calls: list[Record] = field(default_factory=list)
    hidden: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """The numbers of one forward in few arrays: everything that is not in host memory, stacked where it is alike."""

    measured: Measured
    stacks: Sequence[Tensor]
    places: list[list[tuple[str, object]]]  # of the rows of each stack: a field and a call, a map, or a block

    @classmethod
    def of(cls, measured: Measured) -> "Packed":
        alike: dict[tuple[object, ...], list[tuple[tuple[str, object], Tensor]]] = {}
        for place, value in _arrays(measured):
            if away(value):
                alike.setdefault((place[0], value.shape, value.dtype), []).append((place, value))
        stacks = [torch.stack([value for _, value in members]) for members in alike.values()]
        return cls(measured=measured, stacks=stacks, places=[[at for at, _ in members] for members in alike.values()])

    def outline(self) -> "Packed":
        """The same without the numbers and their memory: what it takes to unpack others."""
        empty = [stack.to("meta") for stack in self.stacks]
        step = int(self.measured.calls[0].site.step) if self.measured.calls else 0
        return replace(self, measured=self.unpack(empty, step=step), stacks=[])

    def on_host(self, *, step: int) -> "Arrived":
        """A copy in host memory, of the forward of `step`."""
        stacks = [stack.cpu() for stack in self.stacks]
        moved = replace(self, measured=self.unpack(stacks, step=step), stacks=stacks)
        return Arrived(packed=moved, stacks=stacks, step=step)

    def unpack(self, stacks: Sequence[Tensor], *, step: int) -> Measured:
        """The same with the arrays taken from `stacks`, for the forward of another step."""
        calls: list[dict[str, Any]] = [{} for _ in self.measured.calls]
        maps = [dict(record.maps) for record in self.measured.calls]
        hidden = dict(self.measured.hidden)
        for stack, places in zip(stacks, self.places, strict=True):
            for row, (name, where) in zip(stack, places, strict=True):
                match where:
                    case str():
                        hidden[where] = row
                    case (int(call), int(head)):
                        maps[call][head] = row
                    case int():
                        calls[where][name] = row
        found = [
            replace(record, site=replace(record.site, step=step), maps=maps[i], **calls[i])
            for i, record in enumerate(self.measured.calls)
        ]
        return Measured(calls=found, hidden=hidden)

    @property
    def map_bytes(self) -> int:
        return sum(values.nbytes for record in self.measured.calls for values in record.maps.values())

    @cached_property
    def wholes(self) -> dict[str, int]:
        """Which stack holds a field of all layers, in their order, or the norms of all blocks."""
        sites = [record.site for record in self.measured.calls]
        in_order = all(site.kind == "self" for site in sites) and all(a.layer < b.layer for a, b in pairwise(sites))
        calls: list[object] = list(range(len(sites))) if in_order else []
        blocks: list[object] = list(self.measured.hidden)
        found = {}
        for number, places in enumerate(self.places):
            name, where = places[0][0], [at for _, at in places]
            if where and where == (blocks if name == HIDDEN else calls):
                found[name] = number
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrived:
    """The arrays of a forward that was packed as another one was."""

    packed: Packed
    stacks: Sequence[Tensor]
    step: int

    @cached_property
    def measured(self) -> Measured:
        """Call by call."""
        packed = self.packed
        return packed.measured if self.stacks is packed.stacks else packed.unpack(self.stacks, step=self.step)

    def whole(self, name: str) -> Tensor | None:
        """A field of all layers as one array; None: they came apart."""
        number = self.packed.wholes.get(name)
        return None if number is None else self.stacks[number]


def away(value: Tensor) -> bool:
    """Not in host memory."""
    return value.device.type != "cpu"


def _arrays(measured: Measured) -> Iterator[tuple[tuple[str, object], Tensor]]:
    for i, record in enumerate(measured.calls):
        for name in _STACKED:
            value = getattr(record, name)
            if value is not None:
                yield (name, i), value
        for head, values in record.maps.items():
            yield ("maps", (i, head)), values
    for block, values in measured.hidden.items():
        yield (HIDDEN, block), values
