"""Rankings with a known answer."""

from typing import Any

import torch
from torch import Tensor

from sinklens.attention.call import Site
from sinklens.interventions.ranking import Ranking


def ranking(*, rows: int = 2, heads: int = 3, keys: int = 8, step: int = 0, layer: int = 0, **more: Any) -> Ranking:
    """Nothing stands out."""
    parts: dict[str, Any] = {
        "site": Site(step=step, layer=layer, module="m"),
        "scores": torch.zeros(rows, heads, keys),
        "expected": torch.ones(rows, 1, keys),
        "viewers": torch.full((rows, 1, keys), float(keys)),
        "candidates": torch.ones(rows, 1, keys, dtype=torch.bool),
        "positions": torch.arange(keys),
        "anchor": torch.zeros(rows, dtype=torch.long),
    }
    return Ranking(**(parts | more))


def scored(scores: Any, **more: Any) -> Ranking:
    """These scores, [batch][head][key]."""
    table: Tensor = torch.tensor(scores, dtype=torch.float64)
    rows, heads, keys = table.shape
    return ranking(rows=rows, heads=heads, keys=keys, scores=table, **more)
