"""What is done to a cache in one cell of an experiment, as data: how much is kept, by which order, in which layers.

    none                                 nothing
    low:keep=50%,skip=0+1                half of the prompt's entries, the lowest key norms, layers 0 and 1 untouched
    random:keep=128,schedule=cap,draw=3  at most 128 entries, drawn; the fourth draw

Importable without torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from sinklens.cache.settings import ORDERS, SCHEDULES, parse_keep
from sinklens.errors import UsageError, choose

SAW = 0.98  # what a saw leaves of its budget: the published code's own share
MIDDLE = "m"  # in a list of skipped layers: the one in the middle
NOTHING = "none"
DRAWN = ("random",)  # orders that differ from draw to draw


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to compress. `keep` and `skip` stay as they were asked for: what they come to depends on the problem."""

    order: str = NOTHING
    keep: str = ""  # "50%" of the prompt, or "128"
    skip: str = "0,1"  # layers that are left alone; "" for none of them
    schedule: str = "once"
    strict: bool = False
    first: int = 0  # entries that are always kept
    last: int = 0
    draw: int = 0

    def __post_init__(self) -> None:
        if self.order == NOTHING:
            for name, value in (("keep", ""), ("skip", ""), ("schedule", "once"), ("strict", False)):
                object.__setattr__(self, name, value)
            return
        choose("order", self.order, (NOTHING, *ORDERS))
        choose("schedule", self.schedule, SCHEDULES)
        parse_keep(self.keep, 1)
        layers_of(self.skip, 1)
        if self.strict and self.schedule != "once":
            raise UsageError(f"strict is for schedule 'once', not {self.schedule!r}: the others cut at every step")

    def __str__(self) -> str:
        if self.order == NOTHING:
            return NOTHING
        parts = [f"keep={self.keep}", f"skip={self.skip.replace(',', '+') or NOTHING}"]
        parts += [] if self.schedule == "once" else [f"schedule={self.schedule}"]
        parts += ["strict"] if self.strict else []
        parts += [f"{name}={value}" for name in ("first", "last", "draw") if (value := getattr(self, name))]
        return f"{self.order}:{','.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def budget(self, length: int) -> int:
        """Entries of a compressed layer for a text of `length` tokens."""
        return parse_keep(self.keep, length)

    def settings(self, *, length: int, layers: int, seed: int | tuple[int, ...]) -> dict[str, Any]:
        """The arguments of `Compression` for texts of `length` tokens. A saw cuts when it holds the whole budget."""
        budget = self.budget(length)
        saw = self.schedule == "saw"
        return {
            "order": self.order,
            "keep": max(1, min(ceil(SAW * budget), budget - 1)) if saw else budget,
            "above": budget if saw else None,
            "skip": layers_of(self.skip, layers),
            "schedule": self.schedule,
            "strict": self.strict,
            "first": self.first,
            "last": self.last,
            "seed": seed,
        }


def layers_of(text: str, layers: int) -> tuple[int, ...]:
    """`0,1,m`: numbers of layers, m the middle one of all; empty or `none`: no layer.

    >>> layers_of("0,1,m", 30)
    (0, 1, 15)
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() not in ("", NOTHING) else []
    if not all(part.isascii() and (part.isdigit() or part == MIDDLE) for part in parts):
        raise UsageError(f"skip is {text!r}; expected layers such as 0,1 or 0,1,m (m: the middle one), or none")
    return tuple(sorted({layers // 2 if part == MIDDLE else int(part) for part in parts}))


def cross(
    *,
    orders: Sequence[str],
    keeps: Sequence[str],
    skips: Sequence[str],
    schedule: str,
    strict: bool = False,
    first: int = 0,
    last: int = 0,
    draws: int = 5,
) -> list[Cell]:
    """The untouched cache, then every order with every budget and every set of skipped layers."""
    if draws < 1:
        raise UsageError(f"draws is {draws}; expected at least 1")
    plain = [order for order in orders if order != NOTHING]
    if len(set(plain)) < len(plain):
        raise UsageError(f"an order stands twice ({', '.join(plain)}); give each once")
    fixed: dict[str, Any] = {"schedule": schedule, "strict": strict, "first": first, "last": last}
    return [
        Cell(),
        *(
            Cell(order=order, keep=keep.strip(), skip=_plain_skip(skip), draw=draw, **fixed)
            for keep in keeps
            for skip in skips
            for order in plain
            for draw in range(draws if order in DRAWN else 1)
        ),
    ]


def _plain_skip(text: str) -> str:
    """As it is compared: without blanks, `none` empty."""
    bare = text.replace(" ", "")
    return "" if bare == NOTHING else bare
