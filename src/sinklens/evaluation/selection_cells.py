"""Cells of a selection experiment: who chooses the tokens, at which budget, and what they are sent over.

gate                the selector itself
random, norm, ...   a ranking of selection/baselines.py on the same backbone, at the counts that the gate kept
fixed               a selector trained for one budget alone: what one model for all budgets is held against
trained:random, ... a model that was trained with that ranking, at the counts that the gate kept
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError, choose

GATE, FIXED, TRAINED, WIRE = "gate", "fixed", "trained:", "wire"
CHANNELS = (WIRE, "awgn", "rayleigh", "erasure")
ALPHAS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True, order=True)
class Link:
    """What is between device and server."""

    channel: str = WIRE
    level: float | None = None  # SNR in dB, or the probability that a token is lost

    def __post_init__(self) -> None:
        choose("channel", self.channel, CHANNELS)
        if (self.channel == WIRE) != (self.level is None):
            raise UsageError(f"{self.channel} at {self.level}; expected a level for a channel, and none for a wire")
        self.made()

    def made(self) -> Any:
        """The channel itself; None is a wire. Levels that cannot be meant are refused here."""
        from sinklens.selection.channel import AWGN, Erasure, Rayleigh

        if self.level is None:
            return None
        return {"awgn": AWGN, "rayleigh": Rayleigh, "erasure": Erasure}[self.channel](self.level)

    @property
    def snr_db(self) -> float | None:
        return self.level if self.channel in ("awgn", "rayleigh") else None

    def __str__(self) -> str:
        unit = "" if self.level is None else f" {self.level:g}" + (" dB" if self.snr_db is not None else "")
        return f"{self.channel}{unit}"


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A budget and a link: what all methods are compared at."""

    alpha: float
    link: Link

    def __str__(self) -> str:
        return f"alpha {self.alpha:g}, {self.link}"


def cross(
    *,
    alphas: Sequence[float],
    snrs: Sequence[float] = (),
    fadings: Sequence[float] = (),
    erasures: Sequence[float] = (),
) -> list[Spot]:
    """Every budget over every link. The whole model (alpha 1) over a wire is always there: difficulty is its loss."""
    for alpha in alphas:
        check_alpha(alpha)
    # Nothing lost is a wire, which is there anyway; `Link` refuses what is no probability.
    links = [Link(), *(Link(channel="awgn", level=level) for level in snrs)]
    links += [Link(channel="rayleigh", level=level) for level in fadings]
    links += [Link(channel="erasure", level=level) for level in erasures if level != 0]
    budgets = sorted({float(alpha) for alpha in alphas} | {1.0})
    return [Spot(alpha=alpha, link=link) for link in dict.fromkeys(links) for alpha in budgets]


def check_alpha(alpha: float, name: str = "alpha") -> None:
    if not 0 <= alpha <= 1:  # NaN is neither
        raise UsageError(f"{name} is {alpha:g}; expected a share of tokens from 0 to 1, such as 0.3")


def parse_floats(option: str, text: str | None, *, example: str) -> tuple[float, ...]:
    """`.1,.2` is 0.1 and 0.2; nothing is nothing. What is not finite is refused.

    >>> parse_floats("--snr", "-10,0", example="-10,0")
    (-10.0, 0.0)
    """
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(math.isfinite(one) for one in found):
        raise UsageError(f"{option} {text!r} is no list of finite numbers; expected e.g. {example}")
    return tuple(dict.fromkeys(found))
