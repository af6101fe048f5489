"""From the budget that is meant to the budget that is put in, so that the share of tokens kept is the one meant.

A trained selector spends about alpha. How much exactly is measured on held-out images over a grid of budgets, averaged
over gates; the line through these points, turned round, is part of the model. It rises, so whatever is monotone in the
budget stays so.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.selection.selector import Selector

POINTS, IMAGES = 33, 2048


@torch.no_grad()
def calibrate(selector: Selector, data: Any, *, batch: int = 256, images: int = IMAGES) -> None:
    """Measure what budgets yield on the first `images` images, and set the selector's calibration."""
    was_training = selector.training
    selector.eval()
    device = selector.calibration.device
    selector.calibration = torch.tensor([[0.0, 1.0], [0.0, 1.0]], device=device)
    given = torch.linspace(0, 1, POINTS)[:-1]  # 1 bypasses the gates
    sums, count = torch.zeros(len(given)), min(images, len(data.labels))
    for start in range(0, count, batch):
        pixels, _ = batch_of(data, torch.arange(start, min(count, start + batch)), device)
        for i, alpha in enumerate(given.tolist()):
            sums[i] += float(selector(pixels, alpha).shares.mean(dim=0).sum())
    selector.calibration = turned(given, sums / count).to(device)
    selector.train(was_training)


def turned(given: Float[Tensor, " point"], found: Float[Tensor, " point"]) -> Float[Tensor, "2 knot"]:
    """Asked for in the first row, to put in in the second; both from 0 to 1, the first strictly rising.

    Where more is put in and no more comes out, the least that yields it is taken.
    """
    rising = torch.cummax(found, dim=0).values
    asked, put = [0.0], [0.0]
    for share, alpha in zip(rising.tolist(), given.tolist(), strict=True):
        if asked[-1] + 1e-4 < share < 1 - 1e-4:
            asked.append(share)
            put.append(alpha)
    return torch.tensor([[*asked, 1.0], [*put, 1.0]])


def batch_of(data: Any, index: Int[Tensor, " batch"], device: torch.device) -> tuple[Tensor, Tensor]:
    """Images as floats in [0, 1], and labels, where the model is."""
    images, labels = (values[index.to(values.device)].to(device) for values in (data.images, data.labels))
    return (images.float() / 255 if images.dtype == torch.uint8 else images), labels.long()
