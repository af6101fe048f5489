"""A learnt codec for one token at a time (joint source-channel coding): features to channel symbols and back.

A token of width d is sent in k = int(rate * d) uses of the channel, one complex symbol each, scaled to unit average
power (channel.py). The encoder is a linear map plus a small MLP, d -> 2k real numbers, read as k complex ones; the
decoder is the same from 2k to d. The linear maps start as a matrix with orthonormal rows and its transpose, the
MLPs at zero. So an untrained codec already passes on a token's direction (all of it from rate 1/2 on), and training
starts from there. Its length is lost to the power constraint: `gain`, learnt, is the one the decoder puts in.
"""

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from sinklens.errors import UsageError
from sinklens.selection.channel import Channel, unit_power

Tokens = Float[Tensor, "batch token width"]


def channel_uses(width: int, rate: Any) -> int:
    """k = int(rate * width), as in decimal arithmetic: 0.29 of 100 is 29, though 0.29 * 100 < 29 in floating point."""
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not number or not 0.0 < rate <= 1.0:
        raise UsageError(
            f"codec rate is {rate!r}; expected channel uses per feature, above 0 and at most 1, such as 0.25"
        )
    uses: int = math.floor(rate * width + 1e-9)
    if uses < 1:
        raise UsageError(
            f"codec rate {rate} leaves no channel use for a token of width {width}; expected at least {1 / width:.4g}"
        )
    return uses


class Codec(nn.Module):
    """Encoder and decoder of one token; `codec(tokens, channel, generator=...)` is both, with the channel between."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.width, self.rate = width, rate
        self.uses = channel_uses(width, rate)
        self.encoder = _Map(width, 2 * self.uses)
        self.decoder = _Map(2 * self.uses, width)
        self.gain = nn.Parameter(torch.ones(()))
        with torch.no_grad():
            self.decoder.linear.weight.copy_(self.encoder.linear.weight.T)

    def encode(self, tokens: Tokens) -> Complex[Tensor, "batch token use"]:
        """Symbols of unit average power per token, in float32 at least (there are no complex half precisions)."""
        parts = self.encoder(tokens).to(torch.promote_types(tokens.dtype, torch.float32))
        return unit_power(torch.complex(*parts.chunk(2, dim=-1)))

    def decode(self, received: Complex[Tensor, "batch token use"]) -> Tokens:
        """Features out of what arrived, in the precision of the weights."""
        parts = torch.cat([received.real, received.imag], dim=-1).to(self.gain.dtype)
        features: Tensor = self.decoder(parts) * self.gain
        return features

    def forward(
        self, tokens: Tokens, channel: Channel | None = None, *, generator: torch.Generator | None = None
    ) -> Tokens:
        """Tokens as the server gets them; without a channel the symbols arrive as they were sent."""
        symbols = self.encode(tokens)
        received = symbols if channel is None else channel(symbols, generator=generator)
        return self.decode(received).to(tokens.dtype)

    @property
    def encoder_macs(self) -> int:
        """Multiply-accumulates a token on the device."""
        return self.encoder.macs

    @property
    def decoder_macs(self) -> int:
        """Multiply-accumulates a token on the server."""
        return self.decoder.macs


class _Map(nn.Module):
    """x -> W x + MLP(x), where the MLP (one hidden layer as wide as the wider side) starts at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        hidden = max(inputs, outputs)
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        self.macs = inputs * outputs + inputs * hidden + hidden * outputs
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x) + self.down(nn.functional.gelu(self.up(x)))
        return found


def send_uncoded(tokens: Tokens, channel: Channel, *, generator: torch.Generator | None = None) -> Tokens:
    """Features sent as they are, one real symbol each: scaled to unit power per token, and back by the receiver.

    The channel of a model that has no codec. The receiver is told the length of every token, which is not counted.
    """
    power = tokens.square().mean(dim=-1, keepdim=True).clamp(min=torch.finfo(tokens.dtype).tiny)
    return channel(unit_power(tokens), generator=generator) * power.sqrt()
