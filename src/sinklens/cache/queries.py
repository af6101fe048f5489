"""What the queries of a layer say about those to come, for the order "expected".

Queries are turned back to before RoPE, summed, and the mean and covariance turned to the average of the next FUTURE
positions. Both turns are the model's own `apply_rotary_pos_emb`; a model without RoPE needs none.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinklens.cache.entries import QueryStatistics
from sinklens.cache.settings import SINKS
from sinklens.errors import UsageError

FUTURE = 512  # positions ahead that are averaged over
Angles = tuple[Tensor, Tensor]  # cos and sin, [batch, position, rotary dim]


@dataclass(frozen=True, kw_only=True, eq=False)
class QuerySums:
    """Sums over the queries of a layer so far, before RoPE; padding and the first few tokens are not counted."""

    met: Int[Tensor, " batch"]  # real tokens so far
    total: Float[Tensor, "batch head dim"]
    products: Float[Tensor, "batch head dim dim"]
    scale: float

    def select(self, rows: Int[Tensor, " chosen"]) -> "QuerySums":
        return QuerySums(met=self.met[rows], total=self.total[rows], products=self.products[rows], scale=self.scale)

    @classmethod
    def add(
        cls,
        before: "QuerySums | None",
        query: Float[Tensor, "batch head query dim"],
        *,
        real: Bool[Tensor, "batch query"],
        scale: float,
    ) -> "QuerySums":
        rows, heads, _, dim = query.shape
        if before is None:
            before = cls(
                met=torch.zeros(rows, dtype=torch.int64, device=query.device),
                total=torch.zeros((rows, heads, dim), device=query.device),
                products=torch.zeros((rows, heads, dim, dim), device=query.device),
                scale=scale,
            )
        ordinal = before.met[:, None] + real.long().cumsum(1)  # 1 for the first real token of a row
        counted = query.float() * (real & (ordinal > SINKS))[:, None, :, None]
        return cls(
            met=before.met + real.sum(1),
            total=before.total + counted.sum(2),
            products=before.products + counted.transpose(2, 3) @ counted,
            scale=scale,
        )

    def statistics(self, turn: Float[Tensor, "batch dim dim"] | None) -> QueryStatistics:
        """Mean and covariance, turned by `turn` (one matrix a row)."""
        count = (self.met - SINKS).clamp(min=1)[:, None, None]
        mean = self.total / count
        covariance = self.products / count[..., None] - mean[..., :, None] * mean[..., None, :]
        if turn is not None:
            mean = torch.einsum("bij,bhj->bhi", turn, mean)
            covariance = torch.einsum("bij,bhjk,blk->bhil", turn, covariance, turn)
        return QueryStatistics(mean=mean, covariance=covariance, scale=self.scale)


class Rotation:
    """The RoPE of one attention module, by the functions of its own file; none where the model has none."""

    def __init__(self, module: nn.Module, model: nn.Module) -> None:
        self._module = module
        self._rotary = next((part for name, part in model.named_modules() if name.endswith("rotary_emb")), None)

    def back(
        self, query: Float[Tensor, "batch head query dim"], angles: Angles | None
    ) -> Float[Tensor, "batch head query dim"]:
        """Queries before RoPE. The opposite turn undoes it; where RoPE also scales, so does the square of the scale."""
        if angles is None:
            if self._rotary is not None:
                self._refuse("does not hand its angles to attention (position_embeddings)")
            return query
        cos, sin = (angle.float() for angle in angles)
        size = cos[..., :1] ** 2 + sin[..., :1] ** 2
        return self._apply(query.float(), (cos / size, -sin / size))

    def ahead(self, met: Int[Tensor, " batch"], dim: int) -> Float[Tensor, "batch dim dim"] | None:
        """The turn to the next FUTURE positions of every row, averaged; None without RoPE."""
        if self._rotary is None:
            return None
        where = met[:, None] + torch.arange(FUTURE, device=met.device)
        like = torch.zeros(1, device=met.device)
        extra = {}
        if "layer_type" in inspect.signature(self._rotary.forward).parameters:
            extra["layer_type"] = self._module.config.layer_types[self._module.layer_idx]  # type: ignore[union-attr,index]
        cos, sin = self._rotary(like, where, **extra)
        mean = (cos.float().mean(1, keepdim=True), sin.float().mean(1, keepdim=True))  # turning is linear in both
        units = torch.eye(dim, device=met.device).expand(met.shape[0], 1, dim, dim)
        turned = self._apply(units, (mean[0].expand(-1, dim, -1), mean[1].expand(-1, dim, -1)))
        return turned[:, 0].transpose(1, 2)

    def _apply(self, query: Tensor, angles: Angles) -> Tensor:
        turn: Callable[..., Any] | None = None
        for cls in type(self._module).__mro__:
            turn = turn or getattr(sys.modules.get(cls.__module__), "apply_rotary_pos_emb", None)
        if turn is None:
            self._refuse("has no apply_rotary_pos_emb beside it")
        assert turn is not None
        both = turn(query, query, *angles)
        turned: Tensor = both[0]
        return turned

    def _refuse(self, why: str) -> None:
        raise UsageError(
            f"order='expected' turns queries back by RoPE, but {type(self._module).__name__} {why}; take another "
            "order, 'received' for instance"
        )
