"""What selection saves: multiply-accumulates of a forward, and the rate of what is sent.

One block with n tokens of width d and an MLP of width h: 4 n d^2 + 2 n d h + 2 n^2 d; with h = 4 d, 12 n d^2 + 2 n^2 d.
A gate costs n d on the n patches that reach it; its threshold (d) and the norms are left out, as flop counters do.

The rate is in channel uses per value of the image. It counts the symbols of all tokens sent, class and budget token
included, and the side information of which patches they are: log2 binomial(N, n) bits for the set and log2(N + 1) for
its size, sent at the capacity of the channel, log2(1 + SNR) bits a use.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class CostShape:
    """The sizes that costs are made of."""

    width: int
    hidden: int
    classes: int
    values: int  # of a patch: channels x height x width
    patches: int
    prefix: int = 1  # tokens before the patches
    blocks: int

    @classmethod
    def of(cls, backbone: Any) -> "CostShape":
        rows, columns = backbone.grid
        return cls(
            width=backbone.width,
            hidden=backbone.hidden,
            classes=backbone.classes,
            values=backbone.channels * backbone.patch[0] * backbone.patch[1],
            patches=rows * columns,
            prefix=backbone.prefix,
            blocks=len(backbone.blocks),
        )

    @property
    def image_values(self) -> int:
        """Numbers in an image."""
        return self.patches * self.values


def block_macs(tokens: Any, *, width: int, hidden: int | None = None) -> Any:
    """Of one block; `tokens` is a number or a tensor of them.

    >>> 12 * block_macs(197, width=192)  # DeiT-Tiny
    1224589824
    """
    hidden = 4 * width if hidden is None else hidden
    return tokens * (4 * width**2 + 2 * width * hidden) + 2 * tokens**2 * width


def backbone_macs(shape: CostShape) -> int:
    """Of the whole model on one image: patch embedding, blocks, and the head on the class token."""
    blocks: int = shape.blocks * block_macs(shape.prefix + shape.patches, width=shape.width, hidden=shape.hidden)
    return shape.image_values * shape.width + blocks + shape.width * shape.classes


def selected_macs(
    shape: CostShape, kept: Int[Tensor, "gate batch"], *, gated: tuple[int, ...]
) -> Int[Tensor, " batch"]:
    """Of one image each, when what is dropped is removed; `kept` are the patches left behind every gate.

    Blocks before the first gate run without a budget token.
    """
    total = torch.full_like(kept[0], shape.image_values * shape.width + shape.width * shape.classes)
    left, tokens = torch.full_like(kept[0], shape.patches), torch.full_like(kept[0], shape.prefix + shape.patches)
    for block in range(shape.blocks):
        if block in gated:
            total = total + left * shape.width
            left = kept[gated.index(block)]
            tokens = shape.prefix + left + 1
        total = total + block_macs(tokens, width=shape.width, hidden=shape.hidden)
    return total


def side_bits(sent: Any, patches: int) -> Float[Tensor, "*any"]:
    """Bits that say how many of `patches` were sent and which, when `sent` of them were.

    >>> round(float(side_bits(1, 64)), 3)  # log2(65) for how many, 6 for which one
    12.022
    """
    sent = torch.as_tensor(sent, dtype=torch.float64)
    if bool(((sent < 0) | (sent > patches)).any()):
        raise UsageError(f"between {float(sent.min()):g} and {float(sent.max()):g} patches of {patches} were sent")
    gamma = torch.lgamma
    whole = torch.tensor(float(patches), dtype=torch.float64)
    ways = gamma(whole + 1) - gamma(sent + 1) - gamma(whole - sent + 1)
    return ways.clamp(min=0) / math.log(2) + math.log2(patches + 1)


def rate(
    shape: CostShape,
    sent: Int[Tensor, "*any"],
    *,
    symbols: int,
    patches: Int[Tensor, "*any"] | None = None,
    snr_db: float | None = None,
) -> Float[Tensor, "*any"]:
    """Channel uses per value of the image (rho).

    sent: tokens, class and budget token included. symbols: complex channel uses a token.
    patches: how many of the tokens are patches, and snr_db, at which the side information of which ones is sent; both
        None: it is left out, as in what is published.
    """
    if symbols < 1:
        raise UsageError(f"symbols is {symbols}; expected at least 1 channel use a token")
    if (patches is None) != (snr_db is None):
        raise UsageError("side information needs both patches and snr_db; give both, or neither to leave it out")
    uses = sent.to(torch.float64) * symbols
    if patches is not None and snr_db is not None:
        if not math.isfinite(snr_db):
            raise UsageError(f"snr_db is {snr_db}; expected a finite number of decibels, such as 10")
        uses = uses + side_bits(patches, shape.patches).to(uses.device) / math.log2(1 + 10 ** (snr_db / 10))
    return uses / shape.image_values
