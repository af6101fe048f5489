"""`Selector`: a vision transformer that drops tokens on the way, at a rate that is an input.

    blocks before the first gate        [cls | patches]                 as in the backbone
    gate, block, gate, block, ...       [cls | patches kept | budget]   a dropped patch never comes back
    channel before block `split`        everything that is left is sent, class and budget token included
    head                                [cls]

In a batch, dropped tokens stay in place as padding: no query sees them. With `remove=True` they are taken out, and what
is left of each image moves together, padded to the longest of the batch; both compute the same to rounding. Nothing but
the class and the budget token may be left. An image at alpha = 1 meets neither gates nor budget token.

With a `ranking` (baselines.py) there are no gates and no budget token: round(alpha * patches) are kept, which the
ranking puts first. Such a model is trained to compare with.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinklens.attention.seam import scopes_of
from sinklens.errors import UsageError, choose
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.baselines import BASELINES, run_ranked
from sinklens.selection.channel import Channel
from sinklens.selection.codec import Codec
from sinklens.selection.cost import CostShape, backbone_macs, selected_macs
from sinklens.selection.flow import Flow, Passed
from sinklens.selection.gates import MODES, BudgetToken, Gate, GateStart, read_budgets


@dataclass(frozen=True, kw_only=True)
class Gating:
    """Where the gates and the channel are, and how gates work."""

    gated: tuple[int, ...] | None = None  # blocks with a gate before them; None: all but block 0
    split: int | None = None  # first block behind the channel; None: half of the blocks, behind the first gate
    mode: str = "hard"  # or "soft"
    budgets: int = 1  # 2: the channel's budget is an input of its own

    def placed(self, blocks: int) -> "Gating":
        """The same with its defaults filled in, checked against a backbone."""
        choose("mode of gates", self.mode, MODES)
        gated = tuple(range(1, blocks)) if self.gated is None else tuple(self.gated)
        if not gated or list(gated) != sorted(set(gated)) or not 0 <= gated[0] <= gated[-1] < blocks:
            raise UsageError(f"gated is {gated}; expected rising numbers of blocks from 0 to {blocks - 1}")
        split = max(gated[0] + 1, blocks // 2) if self.split is None else self.split
        if not isinstance(split, int) or not gated[0] < split <= blocks:
            raise UsageError(f"split is {split!r}; expected a block behind the first gate, {gated[0] + 1} to {blocks}")
        if self.budgets not in (1, 2):
            raise UsageError(f"budgets is {self.budgets!r}; expected 1, or 2 (compute and channel)")
        return replace(self, gated=gated, split=split)


@dataclass(frozen=True, kw_only=True, eq=False)
class Selected:
    """What a selector computed, and with which tokens."""

    logits: Float[Tensor, "batch classes"]
    kept: Bool[Tensor, "gate batch patch"]  # behind each gate; cumulative
    scores: Float[Tensor, "gate batch patch"]  # score - threshold; -inf: dropped before, +inf: the gate was not run
    shares: Float[Tensor, "gate batch"]  # mean mask over the patches: kept / all in hard mode; carries the gradient
    sent: Int[Tensor, " batch"]  # tokens over the channel, class and budget token included
    macs: Int[Tensor, " batch"]  # of each image alone, with what is dropped removed


class Selector(nn.Module):
    """A backbone with gates, a budget token, and a channel in the middle.

    selector(images, 0.3).logits    at about 30 % of the tokens on average, for each image as many as it needs
    selector(images, 0.3).kept      which ones, behind every gate
    """

    def __init__(
        self,
        backbone: Any,
        gating: Gating | None = None,
        *,
        start: GateStart | None = None,
        ranking: str | None = None,
        codec_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone = wrap_backbone(backbone)
        self.gating = (gating or Gating()).placed(len(self.backbone.blocks))
        width, generator = self.backbone.width, torch.Generator().manual_seed(seed)
        self.budget = BudgetToken(width, budgets=self.gating.budgets, generator=generator)
        self.gates = nn.ModuleList(
            [Gate(width, mode=self.gating.mode, start=start, generator=generator) for _ in self.gated]
        )
        for gate in self.gates:
            assert isinstance(gate, Gate)
            gate.face(self.budget)
        self.codec = None if codec_rate is None else _seeded_codec(width, codec_rate, seed)
        self.ranking = None if ranking is None else choose("ranking", ranking, BASELINES)
        if ranking is not None and self.gating.budgets > 1:
            raise UsageError(f"ranking {ranking!r} with budgets = 2; rankings take one budget, for all gates")
        self.calibration: Tensor
        self.register_buffer("calibration", torch.tensor([[0.0, 1.0], [0.0, 1.0]]))

    @property
    def gated(self) -> tuple[int, ...]:
        """Blocks with a gate before them."""
        assert self.gating.gated is not None
        return self.gating.gated

    @property
    def split(self) -> int:
        """The first block behind the channel; the number of blocks if all are before it."""
        assert self.gating.split is not None
        return self.gating.split

    @property
    def channel_gate(self) -> int:
        """The number of the last gate before the channel."""
        return sum(block < self.split for block in self.gated) - 1

    @property
    def costs(self) -> CostShape:
        return CostShape.of(self.backbone)

    @property
    def symbols(self) -> int:
        """Complex channel uses a token: the codec's, or half of the width where features are sent as they are."""
        return math.ceil(self.backbone.width / 2) if self.codec is None else self.codec.uses

    def forward(
        self,
        images: Any,
        alpha: Any,
        *,
        channel_alpha: Any = None,
        channel: Channel | None = None,
        remove: bool = False,
        generator: torch.Generator | None = None,
    ) -> Selected:
        """Classify images at a budget.

        alpha: of the patches that may stay, from 0 to 1: a number, or one for every image. 1 bypasses gates and budget
            token: the output is that of the backbone, bit for bit.
        channel_alpha: a budget of its own for the channel, where the model has two; None: alpha.
        channel: what stands between device and server, such as AWGN(snr_db=10). None: a wire.
        remove: really take dropped tokens out, to save time; not under `observe`, whose canvas is the whole image.
        """
        budgets = read_budgets(alpha, channel_alpha, batch=len(images), budgets=self.gating.budgets)
        if remove:
            self._refuse_observed()
        whole = (budgets == 1).all(dim=1)
        link = _Link(channel=channel, generator=generator, remove=remove)
        if bool(whole.all()):
            return self._whole(images, link)
        if not bool(whole.any()):
            return self._chosen(images, budgets, link)
        parts = self._whole(images[whole], link), self._chosen(images[~whole], budgets[~whole], link)
        return _interleaved(whole, *parts)

    def unchecked(
        self,
        images: Any,
        budgets: Float[Tensor, "batch budgets"],
        *,
        full: bool,
        channel: Channel | None = None,
        generator: torch.Generator | None = None,
    ) -> Selected:
        """The same for a batch that is at alpha = 1 as a whole (`full`) or nowhere.

        No value of a tensor is looked at, so that nothing waits for the card: this can be captured in a CUDA graph.
        """
        link = _Link(channel=channel, generator=generator, remove=False)
        return self._whole(images, link) if full else self._chosen(images, budgets, link)

    def _chosen(self, images: Any, budgets: Float[Tensor, "batch budgets"], link: "_Link") -> Selected:
        return self._gated(images, budgets, link) if self.ranking is None else self._ranked(images, budgets, link)

    def _whole(self, images: Any, link: "_Link") -> Selected:
        """The backbone; with a channel, in its two halves."""
        if link.channel is None and self.codec is None:
            logits = self.backbone(images)
        else:
            flow = Flow(self.backbone.embed(images), prefix=self.backbone.prefix)
            for number, block in enumerate(self.backbone.blocks):
                if number == self.split:
                    flow.send(link.channel, self.codec, generator=link.generator)
                flow.x = block(flow.x, flow.visible())
            if self.split == len(self.backbone.blocks):
                flow.send(link.channel, self.codec, generator=link.generator)
            logits = self.backbone.head(flow.x)
        shape = self.costs
        passed = (len(self.gates), len(images), shape.patches)
        counts = torch.full((len(images),), 0, device=logits.device)
        return Selected(
            logits=logits,
            kept=torch.ones(passed, dtype=torch.bool, device=logits.device),
            scores=torch.full(passed, torch.inf, device=logits.device),
            shares=torch.ones(passed[:2], device=logits.device),
            sent=counts + shape.prefix + shape.patches,
            macs=counts + backbone_macs(shape),
        )

    def _gated(self, images: Any, budgets: Float[Tensor, "batch budgets"], link: "_Link") -> Selected:
        flow = Flow(self.backbone.embed(images), prefix=self.backbone.prefix)
        alphas = self.calibrated(budgets.to(flow.x.device))
        gates, passed, sent = dict(zip(self.gated, self.gates, strict=True)), [], flow.left()
        for number, block in enumerate(self.backbone.blocks):
            if number == self.split:
                sent = self._send(flow, link)
            if number in gates:
                passed.append(self._pass(flow, gates[number], alphas))
                if link.remove:
                    flow.take_out()
            flow.x = block(flow.x, flow.visible())
        if self.split == len(self.backbone.blocks):
            sent = self._send(flow, link)
        kept = torch.stack([gate.kept for gate in passed])
        return Selected(
            logits=self.backbone.head(flow.x),
            kept=kept,
            scores=torch.stack([gate.scores for gate in passed]),
            shares=torch.stack([gate.shares for gate in passed]),
            sent=sent,
            macs=selected_macs(self.costs, kept.sum(dim=2), gated=self.gated),
        )

    def _ranked(self, images: Any, budgets: Float[Tensor, "batch budgets"], link: "_Link") -> Selected:
        """With patches that the ranking chooses; tokens are always taken out. A generator draws random ones."""
        assert self.ranking is not None
        drawn = link.generator
        counts = (budgets[:, 0] * self.costs.patches).round().long().expand(len(self.gates), -1)
        ranked = run_ranked(
            self.backbone,
            images,
            counts,
            self.ranking,
            gated=self.gated,
            seed=0 if drawn is None else torch.randint(2**62, (), generator=drawn, device=drawn.device),
            split=self.split,
            channel=link.channel,
            codec=self.codec,
            generator=link.generator,
        )
        return Selected(
            logits=ranked.logits,
            kept=ranked.kept,
            scores=torch.where(ranked.kept, torch.inf, -torch.inf),
            shares=ranked.kept.float().mean(dim=2),
            sent=ranked.sent,
            macs=ranked.macs,
        )

    def _pass(self, flow: Flow, gate: Any, alphas: Float[Tensor, "batch budgets"]) -> Passed:
        """Through one gate; the budget token joins behind the first, which it must not have touched."""
        passed = flow.pass_gate(gate, gate.scores(flow.scored), threshold=gate.threshold_at(self.budget, alphas))
        if not flow.budget:
            flow.join(self.budget(alphas))
        return passed

    def _send(self, flow: Flow, link: "_Link") -> Int[Tensor, " batch"]:
        sent: Tensor = flow.left() + self.backbone.prefix + 1
        flow.send(link.channel, self.codec, generator=link.generator)
        return sent

    def calibrated(self, alphas: Float[Tensor, "batch budgets"]) -> Float[Tensor, "batch budgets"]:
        """The budgets to put in for the budgets that are meant; a rising broken line, the identity at first."""
        asked, given = self.calibration[0].contiguous(), self.calibration[1]
        right = torch.searchsorted(asked, alphas.contiguous()).clamp(1, len(asked) - 1)
        share = (alphas - asked[right - 1]) / (asked[right] - asked[right - 1])
        return torch.lerp(given[right - 1], given[right], share.to(given.dtype))

    def _refuse_observed(self) -> None:
        if any(scopes_of(module) for module in self.backbone.modules()):
            raise UsageError(
                "remove=True under observe or intervene: removed tokens have no place on the canvas; run with "
                "remove=False, which computes the same and shows dropped tokens as padding"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Link:
    """How the halves are joined in one forward."""

    channel: Channel | None
    generator: torch.Generator | None
    remove: bool


def _interleaved(first: Bool[Tensor, " batch"], one: Selected, other: Selected) -> Selected:
    """Two parts of a batch as one; `first` says which rows are of `one`."""
    order = torch.argsort(torch.cat((first.nonzero(), (~first).nonzero())).squeeze(1))
    joined = {}
    for field in fields(Selected):
        a, b = getattr(one, field.name), getattr(other, field.name)
        axis = 1 if field.name in ("kept", "scores", "shares") else 0
        joined[field.name] = torch.cat((a, b), dim=axis).index_select(axis, order.to(a.device))
    return Selected(**joined)


def _seeded_codec(width: int, rate: float, seed: int) -> Codec:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Codec(width, rate)
