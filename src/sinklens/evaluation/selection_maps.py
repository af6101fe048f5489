"""Which patches of some images are kept at many budgets: what token maps and the page are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8

from sinklens.errors import UsageError
from sinklens.evaluation.selection_cells import check_alpha
from sinklens.selection.cost import backbone_macs
from sinklens.selection.selector import Selector


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenMaps:
    """Arrays and names; numpy alone, so that drawing needs no torch."""

    model: str
    names: tuple[str, ...]  # of the images
    classes: tuple[str, ...]  # empty: they have numbers alone
    labels: tuple[int | None, ...]
    alphas: tuple[float, ...]
    gated: tuple[int, ...]  # blocks with a gate before them
    split: int
    channel_gate: int  # the last gate before the channel
    grid: tuple[int, int]
    pixels: UInt8[np.ndarray, "image channel height width"]
    kept: Bool[np.ndarray, "alpha image gate patch"]
    chances: Float[np.ndarray, "alpha image classes"]
    macs: Float[np.ndarray, "alpha image"]  # share of the whole model's
    sent: Int[np.ndarray, "alpha image"]  # tokens over the channel

    def class_name(self, number: int) -> str:
        return self.classes[number] if number < len(self.classes) else str(number)


@torch.no_grad()
def token_maps(
    selector: Selector,
    images: Any,
    *,
    model: str,
    alphas: Sequence[float],
    names: Sequence[str],
    classes: Sequence[str] = (),
    labels: Sequence[int | None] | None = None,
) -> TokenMaps:
    """Run images [image, channel, height, width] in [0, 1] at every budget."""
    if len(images) == 0 or not alphas:
        raise UsageError(f"{len(images)} images at {len(alphas)} budgets; expected at least one of each")
    for alpha in alphas:
        check_alpha(alpha)
    budgets = tuple(sorted({float(alpha) for alpha in alphas}))
    device = selector.calibration.device
    found = [selector(images.to(device), alpha) for alpha in budgets]
    whole = backbone_macs(selector.costs)
    return TokenMaps(
        model=model,
        names=tuple(names),
        classes=tuple(classes),
        labels=tuple(labels) if labels is not None else (None,) * len(images),
        alphas=budgets,
        gated=selector.gated,
        split=selector.split,
        channel_gate=selector.channel_gate,
        grid=selector.backbone.grid,
        pixels=(images.cpu().clamp(0, 1) * 255).round().to(torch.uint8).numpy(),
        kept=torch.stack([one.kept.transpose(0, 1) for one in found]).cpu().numpy(),
        chances=torch.stack([one.logits.softmax(dim=1) for one in found]).double().cpu().numpy(),
        macs=torch.stack([one.macs for one in found]).double().cpu().numpy() / whole,
        sent=torch.stack([one.sent for one in found]).cpu().numpy(),
    )
