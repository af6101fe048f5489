"""How numbers lie on disk: float32 with a mantissa rounded to what is asked, byte-stream split, zstd.

Rounding to nearest at `bits` mantissa bits is an error of at most 2 ** -(bits + 1) of the value; the bits behind
are zero, so they compress to nothing, while every tool still reads plain float32. benchmarks/trace_sizes.py compares
this with the other widths and compressions; docs/traces.md shows its table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from threading import local
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

SCRATCH_VALUES = 2**20  # of a column; larger ones are rare, and are not worth the memory
FLOAT_BITS = 23  # mantissa bits of float32
INFINITE = 0x7F800000  # its bits; above it is NaN
COUNTED = ("sample", "step", "layer", "head", "kv_head")  # columns whose least and greatest value are kept
ROUNDED = ("received", "received_masked", "received_unmasked", "received_last_row", "output_norm", "key_norm",
           "value_norm", "hidden_norm", "map")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Widths and compression of a trace; the manifest holds them."""

    received_bits: int = 12  # of attention received, and of maps
    norm_bits: int = 8
    codec: str = "zstd"
    level: int | None = 3
    split: bool = True  # BYTE_STREAM_SPLIT: the first bytes of all numbers, then the second ones, ...

    @classmethod
    def of(cls, *, exact: bool) -> "Storage":
        """As measured best; exact: every float32 as it came."""
        return cls(received_bits=FLOAT_BITS, norm_bits=FLOAT_BITS) if exact else cls()

    def as_manifest(self) -> Mapping[str, Any]:
        """What stands under `storage` in the manifest."""
        return {
            "float": "float32",
            "received_bits": self.received_bits,
            "norm_bits": self.norm_bits,
            "exact": self.received_bits == self.norm_bits == FLOAT_BITS,
            "compression": self.codec,
            "level": self.level,
            "encoding": "BYTE_STREAM_SPLIT" if self.split else "PLAIN",
        }

    def received(self, values: Shaped[np.ndarray, "*axes"]) -> Float[np.ndarray, "*axes"]:
        """Attention received as it is stored: a rounded float32 copy."""
        return round_mantissa(values, self.received_bits)

    def norms(self, values: Shaped[np.ndarray, "*axes"]) -> Float[np.ndarray, "*axes"]:
        """Norms as they are stored: a rounded float32 copy."""
        return round_mantissa(values, self.norm_bits)

    def column(self, name: str, values: Shaped[np.ndarray, "*axes"]) -> Shaped[np.ndarray, " _"]:
        """The numbers of a column as they are stored, in one row."""
        if name not in ROUNDED:
            return values.ravel()
        bits = self.received_bits if name.startswith(("received", "map")) else self.norm_bits
        return round_mantissa(values, bits, to=_scratch(name, values.shape)).ravel()

    def writer_options(self, schema: Any) -> dict[str, Any]:
        """Keywords of pyarrow.parquet.ParquetWriter. Floats that do not repeat get no dictionary."""
        split = [name for name in schema.names if self.split and name in ROUNDED]
        repeated = [field for field in schema if field.name not in ROUNDED and not str(field.type).startswith("float")]
        return {
            "compression": self.codec,
            "compression_level": self.level,
            "use_dictionary": [_path(field) for field in repeated],
            "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in split} or None,
            "write_statistics": [name for name in schema.names if name in COUNTED],
            "write_page_checksum": True,
        }


_kept = local()


def _scratch(name: str, shape: tuple[int, ...]) -> Float[np.ndarray, "*axes"]:
    """Memory of this thread for a column, until it asks again: fresh memory costs more than what is done in it."""
    size = prod(shape)
    if size > SCRATCH_VALUES:
        return np.empty(shape, np.float32)
    arrays: dict[str, np.ndarray] = _kept.__dict__.setdefault("arrays", {})
    if name not in arrays or arrays[name].size < size:
        arrays[name] = np.empty(size, np.float32)
    return arrays[name][:size].reshape(shape)


def _path(field: Any) -> str:
    """The name of a column in Parquet: lists have a level of their own."""
    return f"{field.name}.list.element" if str(field.type).startswith("list") else str(field.name)


def round_mantissa(
    values: Shaped[np.ndarray, "*axes"], bits: int, *, to: Float[np.ndarray, "*axes"] | None = None
) -> Float[np.ndarray, "*axes"]:
    """A float32 copy (in `to`), rounded to nearest (ties to even) at `bits` mantissa bits. NaN and infinity stay.

    A value that would round up to infinity stays as it is.
    """
    exact = np.asarray(values, np.float32)
    result = np.empty(exact.shape, np.float32) if to is None else to
    drop = FLOAT_BITS - bits
    if drop == 0:
        result[...] = exact
        return result
    raw, rounded = exact.view(np.uint32), result.view(np.uint32)
    np.right_shift(raw, np.uint32(drop), out=rounded)
    rounded &= np.uint32(1)  # to even
    rounded += np.uint32((1 << (drop - 1)) - 1)
    rounded += raw
    rounded &= np.uint32((0xFFFFFFFF << drop) & 0xFFFFFFFF)
    if raw.max(initial=0) >= INFINITE - (1 << drop):  # negative, or one of the following
        strange = ~(np.isfinite(exact) & np.isfinite(result))
        result[strange] = exact[strange]  # the bits of NaN would carry over into those of a number
    return result
