"""Numbers of a masking result in words: percent, points, p, doses."""

from collections.abc import Mapping, Sequence
from typing import Any

DAGGER = "†"  # in pages; a terminal shows a star


def percent(value: float) -> str:
    """Of an accuracy, without the sign: 97."""
    return f"{100 * value:.0f}"


def percent_range(entry: Mapping[str, Any]) -> str:
    return "" if entry["low"] is None else f"{percent(entry['low'])}-{percent(entry['high'])}"


def share(value: float) -> str:
    """As the paper prints accuracies.

    >>> share(0.824), share(1.0), share(0.0)
    ('.82', '1.00', '.00')
    """
    return f"{value:.2f}".removeprefix("0") if value >= 0 else f"-{share(-value)}"


def share_range(entry: Mapping[str, Any]) -> str:
    return "" if entry["low"] is None else f"{share(entry['low'])}-{share(entry['high'])}"


def points(entry: Mapping[str, Any], *, scale: float = 100.0, digits: int = 1) -> str:
    """A difference and its interval in points, or in log-odds with scale 1: -12.3 [-15.0, -9.1]."""
    value, low, high = (
        None if entry[name] is None else f"{_rounded(scale * entry[name], digits):.{digits}f}"
        for name in ("value", "low", "high")
    )
    return f"{value}" if low is None or high is None else f"{value} [{low}, {high}]"


def chance(p: float | None) -> str:
    """A p value: .023, <.001, or a dash.

    >>> chance(0.0234), chance(0.00001), chance(1.0), chance(None)
    ('.023', '<.001', '1', '-')
    """
    if p is None:
        return "-"
    if p < 0.001:
        return "<.001"
    return "1" if p > 0.9995 else f"{p:.3f}".removeprefix("0")


def number(value: float | None, *, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def doses(values: Sequence[float | None], differs: bool | None) -> str:
    """Doses side by side, and what is to be said of them.

    >>> doses([0.95, 0.1], True), doses([0.95, None], False)
    ('.95 / .10, dose differs', '.95 / -')
    """
    shown = " / ".join("-" if value is None else share(value) for value in values)
    return shown + (", dose differs" if differs else "")


def _rounded(value: float, digits: int) -> float:
    """Without a minus before zero."""
    return round(value, digits) + 0.0
