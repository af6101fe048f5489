"""Channels between device and server: `received = channel(symbols, generator=...)`.

Symbols are [batch, token, use], complex (or real, for AWGN and erasure), of unit average power: the mean of |s|^2 over
the uses of a token is 1 (`unit_power`). Power is meant per token, not per batch: what one token sends neither takes
power from another nor depends on who else is in the batch.

    AWGN(snr_db)      s + n                      E|n|^2 = 10^(-snr_db / 10)
    Rayleigh(snr_db)  h s + n, E|h|^2 = 1        one gain a token; the receiver knows it and weighs by it
    Erasure(p)        s, or 0 for a lost token   independent for every image and token; the class token is protected

SNR is the power of a symbol over that of its noise, in dB; 0 dB is as much noise as signal. It is one number, or one
for every image of the batch. Noise is drawn on the device of the symbols; the generator must live there too.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Inexact
from torch import Tensor

from sinklens.attention.capture import capturing
from sinklens.errors import UsageError

Symbols = Inexact[Tensor, "batch token use"]


@runtime_checkable
class Channel(Protocol):
    """What a codec sends its symbols over."""

    def __call__(self, symbols: Symbols, *, generator: torch.Generator | None = None) -> Symbols: ...


@dataclass(frozen=True, eq=False)
class AWGN:
    """Additive white Gaussian noise; complex symbols get half of it in each part."""

    snr_db: Any  # one number, or a tensor with one for every image

    def __post_init__(self) -> None:
        check_snr(self.snr_db)

    def __call__(self, symbols: Symbols, *, generator: torch.Generator | None = None) -> Symbols:
        noise = torch.randn(symbols.shape, dtype=symbols.dtype, device=symbols.device, generator=generator)
        return symbols + noise * _noise_scale(self.snr_db, symbols)


@dataclass(frozen=True, eq=False)
class Rayleigh:
    """Block fading: one complex Gaussian gain for all uses of a token, and noise behind it.

    The receiver knows the gain (a pilot would tell it) and applies conj(h) / (|h|^2 + noise): the estimate of least
    mean squared error. Division by the gain alone would have noise of unbounded power in deep fades.
    """

    snr_db: Any  # mean over the gains

    def __post_init__(self) -> None:
        check_snr(self.snr_db)

    def __call__(self, symbols: Symbols, *, generator: torch.Generator | None = None) -> Symbols:
        received, gains = self.faded(symbols, generator=generator)
        noise = _noise_scale(self.snr_db, symbols) ** 2
        return received * gains.conj() / (gains.abs() ** 2 + noise)

    def faded(self, symbols: Symbols, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """What arrives before the receiver weighs it, and the gains [batch, token, 1]."""
        if not symbols.is_complex():
            raise UsageError(
                f"a fading channel got symbols of {symbols.dtype}; expected complex ones, as Codec.encode gives them"
            )
        batch, tokens, _ = symbols.shape
        gains = torch.randn(batch, tokens, 1, dtype=symbols.dtype, device=symbols.device, generator=generator)
        return AWGN(self.snr_db)(symbols * gains, generator=generator), gains


@dataclass(frozen=True)
class Erasure:
    """Every token is lost with probability `p`, by itself; all its symbols are then 0, which `lost` finds again."""

    p: Any  # 0 to 1
    protected: tuple[int, ...] = (0,)  # tokens that always arrive: the class token; () for none

    def __post_init__(self) -> None:
        if not _is_number(self.p) or not 0.0 <= self.p <= 1.0:
            raise UsageError(f"erasure probability is {self.p!r}; expected a number from 0 to 1, such as 0.1")

    def __call__(self, symbols: Symbols, *, generator: torch.Generator | None = None) -> Symbols:
        draws = torch.rand(symbols.shape[:2], device=symbols.device, generator=generator)
        erased = draws < self.p
        for place in self.protected:  # not as a list of places, which would have to be sent to the card
            erased[:, place].fill_(False)
        return symbols.masked_fill(erased[..., None], 0.0)


def lost(received: Symbols) -> Bool[Tensor, "batch token"]:
    """Tokens of which nothing arrived. The server can leave them out of attention, as it does with dropped ones."""
    return (received == 0).all(dim=-1)


def unit_power(symbols: Symbols) -> Symbols:
    """Each token scaled so that the mean of |s|^2 over its uses is 1; a token of zeros stays one."""
    power = symbols.abs().square().mean(dim=-1, keepdim=True)
    return symbols * power.clamp(min=torch.finfo(power.dtype).tiny).rsqrt()


def check_snr(snr_db: Any) -> None:
    """A finite number of dB (0 is one), or a tensor of them, one for every image."""
    if isinstance(snr_db, Tensor):
        if snr_db.dim() == 1 and snr_db.is_floating_point() and (capturing() or bool(snr_db.isfinite().all())):
            return
        came = f"a tensor {list(snr_db.shape)} of {snr_db.dtype}"
        raise UsageError(f"SNR is {came}; expected finite numbers of dB, one for every image of the batch")
    if not _is_number(snr_db) or not math.isfinite(snr_db):
        raise UsageError(
            f"SNR is {snr_db!r}; expected a finite number of dB, such as 10, 0 or -5 (no channel: no noise)"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _noise_scale(snr_db: Any, symbols: Symbols) -> Float[Tensor, "..."]:
    """Root of the noise power for symbols of unit power, to be broadcast over [batch, token, use]."""
    decibels = torch.as_tensor(snr_db, dtype=symbols.abs().dtype, device=symbols.device)
    if decibels.dim() == 1:
        if decibels.numel() != symbols.shape[0]:
            raise UsageError(f"SNR has {decibels.numel()} entries for {symbols.shape[0]} images; expected one for each")
        decibels = decibels[:, None, None]
    scale: Tensor = 10.0 ** (-decibels / 20.0)
    return scale
