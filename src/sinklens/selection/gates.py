"""Gates: which tokens go on, by a threshold that is read from a budget token.

    score h_i = w . LN(x_i) + c      threshold t = u . b + u0      z_i = h_i - t

Hard: m_i = 1[z_i > 0], with the gradient of sigmoid(z_i). Soft (as first published): m_i = relu(sigmoid(h_i) -
sigmoid(t)), and features are multiplied by it. A token is kept where m_i > 0: in both modes where z_i > 0. LN has no
weights: it lets one scale of w serve every backbone, also those with a few tokens of huge norm.

The budget token of budgets a_1..a_k (compute, channel) is the sum of lerp(low_k, high_k; c(a_k)), learnt vectors drawn
from N(0, 1). c rises from c(0) = 0 to c(1) = 1: a mean, with a learnt weight, of a itself and its log-odds. (Scores are
about bell-shaped, and a threshold that only moved linearly with a could not let 2 % and 50 % of them pass.)

Gates read the token before any attention, where a threshold is linear in c, and take the slope as
-|u . (high_k - low_k)|: it falls with every budget, for all weights (to the rounding of a logarithm). The tokens at the
first gate do not depend on the budget either (the budget token joins the sequence behind that gate), so those kept
there can only grow with it. Scores at later gates see which tokens are left, and may change with the budget.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sinklens.errors import UsageError, choose

MODES = ("hard", "soft")
_EDGE = 0.02  # where log-odds stop to grow


class _Step(torch.autograd.Function):
    """1[z > 0] forward, the derivative of sigmoid(z) backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return (z > 0).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        open_ = torch.sigmoid(z)
        return grads[0] * open_ * (1 - open_)


class _LogMask(torch.autograd.Function):
    """log m of a mask of 0 and 1: 0 or -inf. Backward: 1 / m where m = 1, nothing where the token is gone."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor) -> Tensor:
        kept = mask > 0
        ctx.save_for_backward(kept)
        return torch.zeros_like(mask).masked_fill(~kept, -torch.inf)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, grads[0], 0.0)


def hard_step(z: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """1[z > 0], with the gradient of sigmoid(z)."""
    result: Tensor = _Step.apply(z)  # type: ignore[no-untyped-call]
    return result


def log_mask(mask: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """What is added to a key's logits: 0 if its token is kept, -inf if not; the gate's gradient enters here."""
    result: Tensor = _LogMask.apply(mask)  # type: ignore[no-untyped-call]
    return result


class BudgetToken(nn.Module):
    """The token that says how much may be spent."""

    def __init__(self, width: int, *, budgets: int = 1, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.randn(budgets, width, generator=generator))
        self.high = nn.Parameter(torch.randn(budgets, width, generator=generator))
        self.bend = nn.Parameter(torch.zeros(budgets))

    def places(self, alphas: Float[Tensor, "batch budgets"]) -> Float[Tensor, "batch budgets"]:
        """c: how far from low to high each budget stands."""
        odds = torch.log((alphas + _EDGE) / (1 - alphas + _EDGE)) / (2 * math.log((1 + _EDGE) / _EDGE)) + 0.5
        weight = torch.sigmoid(self.bend)
        return (1 - weight) * alphas + weight * odds

    def forward(self, alphas: Float[Tensor, "batch budgets"]) -> Float[Tensor, "batch width"]:
        """The sum over budgets of (1 - c) low + c high."""
        places = self.places(alphas)[..., None]
        return ((1 - places) * self.low + places * self.high).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class GateStart:
    """Where the training of gates begins."""

    reach: float = 4.0  # how far the threshold moves between the ends of the budget
    opening: float = 2.0  # how far below the scores' middle it is at alpha = 1/2; 0: half of the tokens pass there
    spread: float = 0.05  # deviation of scores

    def __post_init__(self) -> None:
        if not (self.reach > 0 and self.spread > 0 and math.isfinite(self.reach + self.spread + self.opening)):
            raise UsageError(
                f"gates start with reach {self.reach}, opening {self.opening}, spread {self.spread}; expected finite "
                "numbers, reach and spread above 0"
            )


class Gate(nn.Module):
    """One gate before one block."""

    def __init__(
        self,
        width: int,
        *,
        mode: str = "hard",
        start: GateStart | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mode = choose("mode of gates", mode, MODES)
        self.start = start or GateStart()
        self.score = nn.Linear(width, 1)
        self.threshold = nn.Parameter(torch.randn(width, generator=generator) * width**-0.5)
        self.level = nn.Parameter(torch.zeros(()))
        with torch.no_grad():
            self.score.weight.normal_(std=self.start.spread * width**-0.5, generator=generator)  # of normed tokens
            self.score.bias.zero_()

    @torch.no_grad()
    def face(self, token: BudgetToken) -> None:
        """Where training begins: a threshold that falls with the budgets."""
        ways = (token.high - token.low).double()  # sums of products: the same bits in every run
        slopes = (ways * self.threshold).sum(dim=-1)
        wanted = torch.full_like(slopes, -self.start.reach / len(ways)) - slopes
        products = (ways[:, None] * ways[None]).sum(dim=-1)
        nearest = (torch.linalg.solve(products, wanted)[:, None] * ways).sum(dim=0)
        self.threshold.add_(nearest.to(self.threshold.dtype))
        self.level.copy_(-((token.high + token.low).sum(dim=0) * self.threshold).sum() / 2 - self.start.opening)

    def scores(self, x: Float[Tensor, "batch patch width"]) -> Float[Tensor, "batch patch"]:
        """h, in float32 whatever autocast says: a threshold is no place for rounding."""
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = self.score(F.layer_norm(x.float(), x.shape[-1:])).squeeze(-1)
        return scores

    def threshold_at(self, token: BudgetToken, alphas: Float[Tensor, "batch budgets"]) -> Float[Tensor, " batch"]:
        """t; falls with each budget, whatever the weights are."""
        low = (token.low * self.threshold).sum(dim=-1)
        slope = ((token.high - token.low) * self.threshold).sum(dim=-1).abs()
        return low.sum() - (token.places(alphas) * slope).sum(dim=-1) + self.level

    def masks(
        self, scores: Float[Tensor, "batch patch"], threshold: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch patch"], Float[Tensor, "batch patch"]]:
        """The mask m and the differences z."""
        z = scores - threshold[:, None]
        if self.mode == "hard":
            return hard_step(z), z
        soft = F.relu(torch.sigmoid(scores) - torch.sigmoid(threshold)[:, None])
        return soft, z


def read_budgets(alpha: Any, channel_alpha: Any, *, batch: int, budgets: int) -> Float[Tensor, "batch budgets"]:
    """The budgets of every image, checked; compute first, then the channel's where the model has one of its own."""
    first = _read_alpha("alpha", alpha, batch)
    if budgets == 1:
        if channel_alpha is not None:
            raise UsageError("channel_alpha with a model of one budget; leave it out, or train with budgets = 2")
        return first[:, None]
    second = first if channel_alpha is None else _read_alpha("channel_alpha", channel_alpha, batch)
    return torch.stack((first, second.to(first.device)), dim=1)


def _read_alpha(name: str, alpha: Any, batch: int) -> Float[Tensor, " batch"]:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | Tensor):
        raise UsageError(f"{name} is {alpha!r}; expected a number from 0 to 1, or a tensor with one for every image")
    values = torch.as_tensor(alpha, dtype=torch.float32)
    if values.dim() > 1 or (values.dim() == 1 and len(values) != batch):
        raise UsageError(f"{name} has shape {list(values.shape)}; expected a number, or one for each of {batch} images")
    if not bool(((values >= 0) & (values <= 1)).all()):  # NaN is neither
        worst = values.flatten()[int(((values.flatten() - 0.5).abs().nan_to_num(torch.inf)).argmax())]
        raise UsageError(f"{name} is {float(worst):g}; expected a share of tokens from 0 to 1")
    return values.expand(batch) if values.dim() == 0 else values
