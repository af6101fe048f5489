"""Several contrasts at once: the primary one apart, the others under Holm.

A family is what one model does on one task. One contrast of it is declared primary before the run and is tested alone,
at the full level. All others are exploratory and share the level by Holm's rule: with p sorted upwards, m of them,

    adjusted(i) = max over j <= i of min(1, (m - j + 1) p(j)),   i, j = 1..m

The chance of any false rejection among them is then at most alpha, whatever the dependence between the contrasts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.paired import PairedDifference

ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One contrast of a family."""

    name: str
    primary: bool
    difference: PairedDifference
    adjusted_p: float  # of the primary contrast: its own p
    rejected: bool  # adjusted_p <= alpha: the two cells differ


def holm(p_values: Mapping[str, Any]) -> dict[str, float]:
    """Adjusted p of every contrast, in the order given. Reject where it is at most alpha.

    >>> holm({"next": 0.01, "mass": 0.04, "random": 0.03})
    {'next': 0.03, 'mass': 0.06, 'random': 0.06}
    """
    for name, p in p_values.items():
        if not 0 <= p <= 1:
            raise UsageError(f"p of {name!r} is {p}; expected a number from 0 to 1: leave out contrasts without a test")
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def judge_family(
    contrasts: Mapping[str, PairedDifference], *, primary: str | None, alpha: Any = ALPHA
) -> list[Verdict]:
    """The verdicts of one model and task: the primary contrast first, then the others in their order.

    primary None: the family has none (it was not declared, so nothing may be called primary now).
    """
    if primary is not None and primary not in contrasts:
        names = ", ".join(repr(name) for name in contrasts)
        raise UsageError(f"primary contrast {primary!r} is not among the contrasts; expected one of {names} or None")
    if not 0 < alpha < 1:
        raise UsageError(f"alpha is {alpha}; expected a number between 0 and 1, such as 0.05")
    adjusted = holm({name: one.p for name, one in contrasts.items() if name != primary})
    if primary is not None:
        adjusted = {primary: contrasts[primary].p} | adjusted
    return [
        Verdict(
            name=name,
            primary=name == primary,
            difference=contrasts[name],
            adjusted_p=p,
            rejected=p <= alpha,
        )
        for name, p in adjusted.items()
    ]
