"""How a card writes numbers: each with its 95 % interval, as "value (low to high)"."""

from collections.abc import Mapping
from typing import Any

Interval = Mapping[str, Any]  # value, low, high


def percent(value: float | None) -> str:
    """One digit, two below one percent.

    >>> percent(0.1234), percent(0.00123), percent(None)
    ('12.3 %', '0.12 %', '')
    """
    return "" if value is None else f"{_points(value)} %"


def shares(interval: Interval, name: str = "value") -> str:
    """A share with its interval.

    >>> shares({"value": 0.5, "low": 0.25, "high": 0.75})
    '50.0 % (25.0 to 75.0)'
    """
    value = interval[name]
    if value is None or interval["low"] is None:
        return percent(value)
    return f"{percent(value)} ({_points(interval['low'])} to {_points(interval['high'])})"


def numbers(interval: Interval, *, digits: int = 2) -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    if value is None:
        return ""
    return f"{value:.{digits}f}" + ("" if low is None else f" ({low:.{digits}f} to {high:.{digits}f})")


def plural(count: int | None, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _points(value: float) -> str:
    return f"{100 * value:.2f}" if 0 < abs(value) < 0.01 else f"{100 * value:.1f}"


def by_masks(cost: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Of an ELBO: how many random masks estimate it, and how well. Empty for other measures."""
    if cost["measure"] != "elbo":
        return ""
    errors = [one["error"] for one in cost["cells"]]
    error = "not known" if None in errors else f"of a cell at most {max(errors):.2g}"
    return f" by {plural(settings['elbo_draws'], 'random mask')} a chunk, Monte-Carlo error {error}"
