"""Random numbers that depend on their place alone: seed, row, step, layer, position and head.

Positions count from the first key of the row that is ranked: a prompt has the same draws behind any padding.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.interventions.ranking import Ranking
from sinklens.kernels.hashing import mix, row_keys, unit

BITS = 53  # of a float64 in [0, 1)


def noise(ranking: Ranking, seed: int | tuple[int, ...]) -> Float[Tensor, "batch head key"]:
    """Uniform in [0, 1), one for every key of every head.

    seed: one for all rows, which then differ by their number, or one for each row.
    """
    rows, heads, _ = ranking.scores.shape
    first = _first_positions(ranking)
    step = int(ranking.site.step) if ranking.clock is None else ranking.clock
    state = mix(row_keys(seed, rows, ranking.positions.device) + step)
    state = mix(state + ranking.site.layer)[:, None, None]
    state = mix(state + (ranking.positions - first[:, None])[:, None])
    state = mix(state + torch.arange(heads, device=state.device)[:, None])
    return unit(state, bits=BITS)


def _first_positions(ranking: Ranking) -> Int[Tensor, " batch"]:
    """Of the keys that are ranked in any head; padding is not."""
    there = ranking.candidates.any(1)
    return torch.where(there, ranking.positions, ranking.positions.max()).amin(-1)
