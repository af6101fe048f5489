"""What is kept of a cache, as data. Nothing here loads torch."""

import math
import re
from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError, choose

ORDERS = (
    "low",
    "high",
    "random",
    "recent",
    "streaming",
    "fastgen",
    "keydiff",
    "expected",
    "received",
    "value",
    "key_value",
)
SCHEDULES = ("once", "cap", "saw")
SINKS = 4  # first tokens that "streaming" keeps and "expected" neither measures nor drops


# What comes from callers is annotated as anything, because it is checked here, with a message.
@dataclass(frozen=True, kw_only=True)
class Compression:
    """Settings of `compress`: which entries a cache keeps, how many, and when it is cut.

    order: a name of ORDERS, or a function Entries -> scores [batch, kv_head, entry]; the highest are kept.
    keep: entries a kv head of a compressed layer holds after a cut. Padding is not counted.
    skip: layers that are left alone.
    first, last: so many of the oldest and newest entries are kept whatever their score.
    schedule: "once" after the first forward of a cache; "cap" after every forward; "saw" whenever a row holds `above`
        entries or more.
    strict: "once" only: the prompt without its last token is cut to keep - 1 entries, then the last token runs
        against them, so that no answer token is chosen from the full cache.
    seed: of the order "random"; one for all rows, which then differ by their number, or one for each row.
    """

    order: Any = "low"  # str, or a function Entries -> scores
    keep: Any
    skip: Any = (0, 1)
    first: Any = 0
    last: Any = 0
    schedule: Any = "once"
    above: Any = None
    strict: Any = False
    seed: Any = 0

    def __post_init__(self) -> None:
        if not callable(self.order):
            choose("order", self.order, ORDERS)
        choose("schedule", self.schedule, SCHEDULES)
        _whole("keep", self.keep, 1)
        _whole("first", self.first, 0)
        _whole("last", self.last, 0)
        object.__setattr__(self, "skip", _layers(self.skip))
        if self.first + self.last > self.keep:
            raise UsageError(
                f"first={self.first} and last={self.last} protect more entries than keep={self.keep}; lower them, or "
                "keep more"
            )
        if self.schedule == "saw":
            if self.above is None:
                raise UsageError("schedule='saw' needs above=: a row that holds so many entries is cut to `keep`")
            _whole("above", self.above, self.keep + 1)
        elif self.above is not None:
            raise UsageError(f"above={self.above} belongs to schedule='saw'; this one is {self.schedule!r}")
        if self.strict and self.schedule != "once":
            raise UsageError(f"strict belongs to schedule='once'; {self.schedule!r} looks at every forward")
        if self.strict and self.first >= self.keep:
            raise UsageError(f"strict keeps the last token of the prompt: first={self.first} leaves no room for it")
        seeds = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
            raise UsageError(f"seed is {self.seed!r}; expected a whole number, or a tuple with one for each row")

    @property
    def order_name(self) -> str:
        """The name of the order; that of its function where it is one."""
        if isinstance(self.order, str):
            return self.order
        return str(getattr(self.order, "__name__", type(self.order).__name__))

    def left_of(self, held: int, *, ahead: int = 0) -> int:
        """Of so many entries in a row, how many stay; `ahead` of the budget belong to tokens that are yet to come."""
        keep = int(self.keep) - ahead
        limit = keep if self.above is None else int(self.above)
        return keep if held >= max(limit, keep) else held


def parse_keep(text: Any, length: Any) -> int:
    """A budget as written on a command line, in entries: "128", or a share of `length` such as "50%", rounded up.

    >>> parse_keep("128", 1000), parse_keep("50%", 13)
    (128, 7)
    """
    _whole("length", length, 1)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(text))
    if match is None or (not match[2] and "." in match[1]):
        raise UsageError(f"keep is {text!r}; expected a number of entries such as 128, or a share such as 50%")
    if not match[2]:
        _whole("keep", int(match[1]), 1)
        return int(match[1])
    share = float(match[1])
    if not 0 < share <= 100:
        raise UsageError(f"keep is {text!r}; a share lies above 0% and at most at 100%")
    # Rounded first: 0.07 * 100 is a little more than 7, and is not meant to keep 8.
    return math.ceil(round(share * int(length) / 100, 9))


def _layers(skip: Any) -> tuple[int, ...]:
    try:
        layers = tuple(skip)
    except TypeError:
        layers = (None,)
    if not all(isinstance(layer, int) and not isinstance(layer, bool) and layer >= 0 for layer in layers):
        raise UsageError(f"skip is {skip!r}; expected layer numbers such as (0, 1), or () for none")
    return tuple(sorted(set(layers)))


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} is {value!r}; expected a whole number of at least {least}")
