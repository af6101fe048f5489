"""Random numbers that are a hash of their place: nothing is drawn in an order, and no state is kept.

Whole numbers on the device that asks: the same on every device, and with nothing to wait for.
"""

from functools import lru_cache
from hashlib import blake2b

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import UsageError


def row_keys(seed: int | tuple[int, ...], rows: int, device: torch.device) -> Int[Tensor, " batch"]:
    """Where the hash of each row begins. seed: one for all rows, which then differ by their number, or one a row."""
    if isinstance(seed, int):
        names = tuple(f"{seed} {row}" for row in range(rows))
    elif len(seed) == rows:
        names = tuple(f"{one} 0" for one in seed)
    else:
        raise UsageError(
            f"seed has {len(seed)} entries, but the batch has {rows} rows; give one for each, or one for all"
        )
    return _keys(names, str(device))


@lru_cache(maxsize=64)  # the same rows at every step and layer of a run
def _keys(names: tuple[str, ...], device: str) -> Int[Tensor, " batch"]:
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in names]
    numbers = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def mix(state: Int[Tensor, "*place"]) -> Int[Tensor, "*place"]:
    """One step of SplitMix64 (Steele, Lea and Flood 2014), in signed integers that wrap around."""
    state = state + _signed(0x9E3779B97F4A7C15)  # a copy, changed in place from here on
    state.bitwise_xor_(_right_shift(state, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    state.bitwise_xor_(_right_shift(state, 27)).mul_(_signed(0x94D049BB133111EB))
    return state.bitwise_xor_(_right_shift(state, 31))


def unit(state: Int[Tensor, "*place"], *, bits: int) -> Float[Tensor, "*place"]:
    """The highest bits as a number in [0, 1): float32 for up to 24, else float64."""
    dtype = torch.float32 if bits <= 24 else torch.float64
    return _right_shift(state, 64 - bits).to(dtype) * 2.0**-bits


def _right_shift(state: Int[Tensor, "*place"], by: int) -> Int[Tensor, "*place"]:
    """Zeros come in from the left, as for unsigned numbers."""
    return (state >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
