"""What a selector is trained to: the task, and to spend what the budget says.

    squared     (s - alpha)^2                  two-sided: spending less is wrong too
    one_sided   relu(s - alpha)^2              only overspending is
    margin      relu(|s - alpha| - margin)

s is the share of patches left behind a gate. Compute looks at all gates, each by itself or their mean; the channel at
the last gate before it. Taken per image, the loss forbids what selection is for: to spend more on one image than on
another. Taken per bin, images with about the same alpha share one budget: their mean share is held against their mean
alpha.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import UsageError, choose

KINDS = ("squared", "one_sided", "margin")
PER = ("image", "bin")
GATES = ("each", "mean")


@dataclass(frozen=True, kw_only=True)
class BudgetLoss:
    """How spending is held against the budget. Weights are against a cross-entropy of weight 1."""

    kind: str = "squared"
    per: str = "bin"
    bins: int = 16  # of alpha, over [0, 1]
    gates: str = "each"  # compute: every gate meets alpha, or the gates on average
    margin: float = 0.02
    compute: float = 5.0  # weight
    channel: float = 5.0  # weight

    def __post_init__(self) -> None:
        choose("kind of budget loss", self.kind, KINDS)
        choose("per", self.per, PER)
        choose("gates of the compute budget", self.gates, GATES)
        if self.bins < 1:
            raise UsageError(f"bins is {self.bins!r}; expected at least 1")
        for name in ("margin", "compute", "channel"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is {getattr(self, name)!r}; expected a number from 0")

    def penalty(self, gap: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """Of a difference share - alpha."""
        if self.kind == "margin":
            return F.relu(gap.abs() - self.margin)
        return (gap if self.kind == "squared" else F.relu(gap)).square()

    def of(
        self, shares: Float[Tensor, "gate batch"], alphas: Float[Tensor, "batch budgets"], *, channel_gate: int
    ) -> Float[Tensor, ""]:
        """The weighted sum of both budgets' losses; `alphas` are the budgets asked for: compute, then channel."""
        compute = shares if self.gates == "each" else shares.mean(dim=0, keepdim=True)
        total = self.compute * self._mean(compute, alphas[:, 0])
        return total + self.channel * self._mean(shares[channel_gate][None], alphas[:, -1])

    def _mean(self, shares: Float[Tensor, "gate batch"], alphas: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
        gaps = shares - alphas
        if self.per == "image":
            return self.penalty(gaps).mean()
        number = (alphas * self.bins).long().clamp(0, self.bins - 1)
        members = (number[:, None] == torch.arange(self.bins, device=gaps.device)).to(gaps.dtype)  # [batch, bins]
        counts = members.sum(dim=0)
        means = gaps @ members / counts.clamp(min=1)
        return (self.penalty(means) * counts).sum(dim=1).mean() / counts.sum()


def task_loss(logits: Float[Tensor, "batch classes"], labels: Any, *, smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Cross-entropy, in float32."""
    if not isinstance(labels, Tensor) or labels.shape != logits.shape[:1] or labels.is_floating_point():
        came = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise UsageError(f"labels are {came}; expected whole numbers, one for each of {len(logits)} images")
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)


def draw_alphas(batch: int, budgets: int, *, generator: torch.Generator) -> Float[Tensor, "batch budgets"]:
    """Budgets over [0, 1), one in each of `batch` equal strata, in random order; each budget by itself."""
    strata = torch.stack([torch.randperm(batch, generator=generator) for _ in range(budgets)], dim=1)
    return (strata + torch.rand(batch, budgets, generator=generator)) / batch
