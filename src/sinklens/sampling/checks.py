"""Checks of sampler settings, each with one message."""

from sinklens.errors import UsageError

Number = float | int  # said in full, because run-time checkers of annotations do not take 0 for a float


def at_least(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{what} is {value!r}; expected an integer of at least {least}")


def not_negative(what: str, value: Number) -> None:
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"{what} is {value!r}; expected a finite number of at least 0")


def share(what: str, value: Number | None) -> None:
    """A number in (0, 1], or None: not set."""
    if value is not None and not 0.0 < value <= 1.0:
        raise UsageError(f"{what} is {value!r}; expected a number above 0 and at most 1")
