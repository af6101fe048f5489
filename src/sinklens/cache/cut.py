"""What a compressed cache holds, as `compress` reports it."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.cache.layer import CutLayer
from sinklens.cache.settings import Compression


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """What a layer held when its attention last ran."""

    length: int
    bytes: int
    positions: Int[Tensor, "batch kv_head entry"] | tuple[int, int, int]  # or their shape, where nothing was evicted
    real: Bool[Tensor, "batch kv_head entry"] | Bool[Tensor, "rows position"] | None


class Cut:
    """The value of a `compress` context: what the cache that ran last holds now."""

    def __init__(self, compression: Compression) -> None:
        self.compression = compression
        self._held: dict[int, _Held] = {}

    @property
    def lengths(self) -> list[int]:
        """Entries a kv head holds, by layer; shorter rows of a batch are filled up to that."""
        return [self._held[layer].length for layer in sorted(self._held)]

    @property
    def bytes(self) -> int:
        """Of all keys and values."""
        return sum(held.bytes for held in self._held.values())

    @property
    def kept(self) -> "list[Int[Tensor, 'batch kv_head entry']]":
        """True positions of the entries, by layer, on the CPU; -1 where a row is filled up or padding."""
        return [_positions(self._held[layer]) for layer in sorted(self._held)]

    def note(self, number: int, layer: Any, real: Tensor | None) -> None:
        if isinstance(layer, CutLayer):
            columns = layer.columns
            held = _Held(length=layer.held, bytes=layer.bytes, positions=columns["position"], real=columns["real"])
        else:
            rows, heads, length = layer.keys.shape[:3]
            size = layer.keys.nbytes + layer.values.nbytes
            held = _Held(length=length, bytes=size, positions=(rows, heads, length), real=real)
        self._held[number] = held


def _positions(held: _Held) -> Int[Tensor, "batch kv_head entry"]:
    positions, real = held.positions, held.real
    if isinstance(positions, tuple):
        positions = torch.arange(positions[2]).expand(positions)
        real = None if real is None else real[:, None, -positions.shape[2] :]
    positions = positions.cpu().long()
    return positions if real is None else positions.masked_fill(~real.cpu(), -1)
