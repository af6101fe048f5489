"""The selector itself with other tokens chosen: as many of each image, and everything else as its gates have it.

A ranking on the backbone alone (selection/baselines.py) lacks the budget token that the backbone was trained with, so
it differs from the selector in two things. Here the budget token is there, and only the choice differs.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinklens.kernels.hashing import mix, unit
from sinklens.selection.baselines import Ranked
from sinklens.selection.cost import selected_macs
from sinklens.selection.flow import Flow
from sinklens.selection.gates import Gate
from sinklens.selection.selector import Selector

Rank = Callable[[int, Flow], Tensor]  # number of the gate, tokens -> scores [batch, patch]; the highest are kept
CONTROLS = ("random+budget", "norm+budget")


def ranked_by(name: str, *, images: int, patches: int, seed: int, first: int, device: torch.device) -> Rank:
    """One of CONTROLS. Random: by seed, image and patch, so nested from gate to gate."""
    if name == "norm+budget":
        return lambda gate, flow: flow.scored.float().norm(dim=-1)
    numbers = torch.arange(first, first + images, device=device)
    state = mix(mix(torch.full_like(numbers, seed)) + numbers)
    draws = unit(mix(state[:, None] + torch.arange(patches, device=device)), bits=24)
    return lambda gate, flow: draws


class _Fewest(Gate):
    """Keeps the patches with the highest scores, so many of each image; nothing is learnt in it."""

    def __init__(self, counts: Int[Tensor, " batch"]) -> None:
        nn.Module.__init__(self)
        self.mode, self.counts = "hard", counts

    def masks(
        self, scores: Float[Tensor, "batch patch"], threshold: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch patch"], Float[Tensor, "batch patch"]]:
        places = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return (places < self.counts[:, None]).to(scores.dtype), scores


def run_controlled(
    selector: Selector,
    images: Any,
    alpha: float,
    *,
    counts: Int[Tensor, "gate batch"],
    rank: Rank,
    channel: Any = None,
    generator: torch.Generator | None = None,
) -> Ranked:
    """Classify images as the selector does at a budget below 1, but with patches that `rank` puts first."""
    backbone = selector.backbone
    flow = Flow(backbone.embed(images), prefix=backbone.prefix)
    budgets = torch.full((len(flow.x), selector.gating.budgets), alpha, device=flow.x.device)
    alphas, none = selector.calibrated(budgets), torch.zeros(len(flow.x), device=flow.x.device)
    kept: list[Tensor] = []
    sent = flow.left()
    for number in range(len(backbone.blocks) + 1):
        if number == selector.split:
            sent = flow.left() + backbone.prefix + 1
            flow.send(channel, selector.codec, generator=generator)
        if number == len(backbone.blocks):
            break
        if number in selector.gated:
            gate, alive = len(kept), flow.mask[:, backbone.prefix : backbone.prefix + flow.patches] > 0
            scores = rank(gate, flow).masked_fill(~alive, -torch.inf)
            kept.append(flow.pass_gate(_Fewest(counts[gate]), scores, threshold=none).kept)
            if not flow.budget:
                flow.join(selector.budget(alphas))
        flow.x = backbone.blocks[number](flow.x, flow.visible())
    passed = torch.stack(kept)
    macs = selected_macs(selector.costs, passed.sum(dim=2), gated=selector.gated)
    return Ranked(logits=backbone.head(flow.x), kept=passed, sent=sent, macs=macs)
