"""Random numbers that depend on their place alone: seed, step, layer, row, position and head."""

from hashlib import blake2b

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.interventions.ranking import Ranking


def noise(ranking: Ranking, seed: int) -> Float[Tensor, "batch head key"]:
    """Uniform in [0, 1), one for every key of every head."""
    rows, heads, _ = ranking.scores.shape
    canvas = int(ranking.positions.max()) + 1
    drawn = []
    for row in range(rows):
        name = f"{seed} {int(ranking.site.step)} {ranking.site.layer} {row}"
        number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        draws = torch.Generator().manual_seed(number)  # on the CPU: the same draws on every device
        drawn.append(torch.rand((canvas, heads), generator=draws, dtype=torch.float64).T)
    return torch.stack(drawn).to(ranking.positions.device)[..., ranking.positions]
