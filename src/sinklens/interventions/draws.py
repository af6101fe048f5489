"""Random numbers that depend on their place alone: seed, row, step, layer, position and head.

A hash of the place, so that nothing is drawn in an order and no state is kept. It is made of whole numbers on the
device of the ranking: the same on every device, and with nothing to wait for. Positions count from the first key of the
row that is ranked: a prompt has the same draws behind any padding.
"""

from functools import lru_cache
from hashlib import blake2b

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.interventions.ranking import Ranking

BITS = 53  # of a float64 in [0, 1)


def noise(ranking: Ranking, seed: int | tuple[int, ...]) -> Float[Tensor, "batch head key"]:
    """Uniform in [0, 1), one for every key of every head.

    seed: one for all rows, which then differ by their number, or one for each row.
    """
    rows, heads, _ = ranking.scores.shape
    names = tuple(f"{seed} {row}" for row in range(rows)) if isinstance(seed, int) else _by_row(seed, rows)
    first = _first_positions(ranking)
    state = _mix(_keys(names, str(ranking.positions.device)) + int(ranking.site.step))
    state = _mix(state + ranking.site.layer)[:, None, None]
    state = _mix(state + (ranking.positions - first[:, None])[:, None])
    state = _mix(state + torch.arange(heads, device=state.device)[:, None])
    return _right_shift(state, 64 - BITS).to(torch.float64) * 2.0**-BITS


def _by_row(seeds: tuple[int, ...], rows: int) -> tuple[str, ...]:
    if len(seeds) != rows:
        raise UsageError(
            f"seed has {len(seeds)} entries, but the batch has {rows} rows; give one for each, or one for all"
        )
    return tuple(f"{seed} 0" for seed in seeds)


def _first_positions(ranking: Ranking) -> Int[Tensor, " batch"]:
    """Of the keys that are ranked in any head; padding is not."""
    there = ranking.candidates.any(1)
    return torch.where(there, ranking.positions, ranking.positions.max()).amin(-1)


@lru_cache(maxsize=64)  # the same rows at every step and layer of a run
def _keys(names: tuple[str, ...], device: str) -> Int[Tensor, " batch"]:
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in names]
    numbers = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _mix(state: Int[Tensor, "*place"]) -> Int[Tensor, "*place"]:
    """One step of SplitMix64 (Steele, Lea and Flood 2014), in signed integers that wrap around."""
    state = state + _signed(0x9E3779B97F4A7C15)  # a copy, changed in place from here on
    state.bitwise_xor_(_right_shift(state, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    state.bitwise_xor_(_right_shift(state, 27)).mul_(_signed(0x94D049BB133111EB))
    return state.bitwise_xor_(_right_shift(state, 31))


def _right_shift(state: Int[Tensor, "*place"], by: int) -> Int[Tensor, "*place"]:
    """Zeros come in from the left, as for unsigned numbers."""
    return (state >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
