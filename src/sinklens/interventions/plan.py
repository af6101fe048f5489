"""What is ranked, who is denied, and what becomes of keys and values: the paper's choice for each family, or as asked.

bidirectional  received  all queries   recomputed: a diffusion model computes every position anew at every step
causal         last_row  newest query  cached: earlier positions keep the keys and values they were given
"""

from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError, choose

RANKS = ("received", "last_row")
MEASURES = ("before", "after")
QUERIES = ("all", "last")
KEYS = ("recomputed", "cached")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of an intervention, none left open."""

    causal: bool
    rank_by: str  # "received" | "last_row"
    measure: str  # "before" | "after" the intervention's own mask
    queries: str  # "all" | "last"
    keys: str  # "recomputed" | "cached"


def check_count(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{what} is {value!r}; expected an integer of at least 1 (for none, open no intervention)")


def check_choices(*, rank_by: Any = None, measure: Any = "before", queries: Any = None, keys: Any = None) -> None:
    """Names that no family knows are refused where the settings are made."""
    choose("measure", measure, MEASURES)
    for what, value, accepted in (
        ("rank_by", rank_by, RANKS),
        ("queries", queries, QUERIES),
        ("keys", keys, KEYS),
    ):
        if value is not None:
            choose(what, value, accepted)
    if queries == "all" and keys == "cached":
        raise UsageError(
            "queries='all' with keys='cached': queries whose results are in a cache cannot be denied anything; "
            "use keys='recomputed', or queries='last'"
        )


def resolve(
    *, causal: bool, rank_by: str | None = None, measure: str = "before", queries: str | None, keys: str | None
) -> Plan:
    """None: the family's own. What a family cannot do is refused."""
    if not causal:
        for what, value, theirs in (
            ("rank_by", rank_by, "last_row"),
            ("queries", queries, "last"),
            ("keys", keys, "cached"),
        ):
            if value == theirs:
                raise UsageError(
                    f"{what}={value!r} is for causal models, but this one is bidirectional: it has no newest token, "
                    f"and computes every position anew at every step; leave {what} out"
                )
        return Plan(causal=False, rank_by="received", measure=measure, queries="all", keys="recomputed")
    if queries is None:
        queries = "all" if keys == "recomputed" else "last"
    if keys is None:
        keys = "recomputed" if queries == "all" else "cached"
    return Plan(causal=True, rank_by=rank_by or "last_row", measure=measure, queries=queries, keys=keys)
