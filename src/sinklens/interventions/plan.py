"""What is ranked, who is denied, and what becomes of keys and values: the paper's choice for each family, or as asked.

bidirectional  received  all queries   recomputed: a diffusion model computes every position anew at every step
causal         last_row  newest query  cached: earlier positions keep the keys and values they were given
"""

from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError, choose

ACCEPTED = {
    "rank_by": ("received", "last_row"),
    "source": ("previous_step", "same_step", "same_input", "fixed"),
    "measure": ("before", "after", "shadow"),
    "prefill": ("clean", "masked"),
    "scope": ("head", "layer", "model"),
    "queries": ("all", "generated", "block", "masked", "unmasked", "last"),
    "keys": ("recomputed", "cached", "block_cached"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of an intervention, none left open."""

    causal: bool
    rank_by: str  # "received" | "last_row"
    queries: str  # who is denied: "all" | "generated" | "block" | "masked" | "unmasked" | "last"
    keys: str  # "recomputed" | "cached" | "block_cached"
    source: str = "previous_step"  # | "same_step" | "same_input" | "fixed": where the targets come from
    measure: str = "before"  # | "after" the intervention's own mask | in a "shadow" pass without it
    prefill: str = "clean"  # | "masked": step 0
    scope: str = "head"  # | "layer" | "model": what shares its targets
    lag: int = 1  # steps between the ranking and the denial
    once: bool = False  # the first choice of a run stands

    @property
    def clean_keys(self) -> bool:
        """Keys and values come from a shadow pass."""
        return self.keys == "cached" and not self.causal

    @property
    def needs_shadow(self) -> bool:
        return self.measure == "shadow" or self.clean_keys


def check_count(what: str, value: Any, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{what} is {value!r}; expected an integer of at least {least} (for none, open no intervention)"
        )


def check_seed(seed: Any) -> None:
    numbers = seed if isinstance(seed, tuple) and seed else (seed,)
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise UsageError(f"seed is {seed!r}; expected an integer, or a tuple of integers, one for each row")


def check_choices(**given: Any) -> None:
    """Names that no family knows, and those that no family could combine; None stands for a default."""
    for what, value in given.items():
        if value is not None:
            choose(what, value, ACCEPTED[what])
    source, measure = given.get("source") or "previous_step", given.get("measure")
    if source == "same_step" and measure in ("after", "shadow"):
        raise UsageError(
            f"measure={measure!r} with source='same_step': a step's own ranking is read before its mask; leave "
            "measure out, or use source='same_input' for a pass without the mask"
        )
    if source == "same_input" and measure in ("before", "after"):
        raise UsageError(
            f"measure={measure!r} with source='same_input', which ranks in a shadow pass without the mask; leave "
            "measure out"
        )
    if source == "previous_step" and given.get("prefill") == "masked":
        raise UsageError(
            "prefill='masked' with source='previous_step': before step 0 nothing was ranked; use source='same_step' "
            "or 'same_input', or fixed positions"
        )
    if source == "same_step" and given.get("scope") == "model":
        raise UsageError(
            "scope='model' with source='same_step': the later layers have not run yet; use source='same_input'"
        )


def resolve(
    *,
    causal: bool,
    rank_by: str | None = None,
    source: str | None = None,
    measure: str | None = None,
    prefill: str | None = None,
    scope: str | None = None,
    queries: str | None = None,
    keys: str | None = None,
) -> Plan:
    """None: the family's own. What a family cannot do is refused."""
    queries, keys = _causal(queries, keys) if causal else _bidirectional(rank_by, queries, keys)
    source = source or "previous_step"
    if prefill is None:  # there is a clean prefill where a cache keeps it; nothing else is known at step 0
        prefill = "masked" if source == "fixed" and not (causal and keys == "cached") else "clean"
    return Plan(
        causal=causal,
        rank_by=rank_by or ("last_row" if causal else "received"),
        source=source,
        measure=measure or ("shadow" if source == "same_input" else "before"),
        prefill=prefill,
        scope=scope or "head",
        queries=queries,
        keys=keys,
    )


def _bidirectional(rank_by: str | None, queries: str | None, keys: str | None) -> tuple[str, str]:
    for what, value, theirs in (("rank_by", rank_by, "last_row"), ("queries", queries, "last")):
        if value == theirs:
            raise UsageError(
                f"{what}={value!r} is for causal models, but this one is bidirectional: it has no newest token; "
                f"leave {what} out"
            )
    return queries or "all", keys or "recomputed"


def _causal(queries: str | None, keys: str | None) -> tuple[str, str]:
    if queries in ("block", "masked", "unmasked"):
        raise UsageError(
            f"queries={queries!r} is for masked diffusion models, but this one is causal: no position is masked and "
            "there are no blocks; expected 'last', 'all' or 'generated'"
        )
    if keys == "block_cached":
        raise UsageError(
            "keys='block_cached' is for diffusion models, which hold keys and values from one refresh to the next; a "
            "causal model's own cache is keys='cached'"
        )
    if queries in ("all", "generated") and keys == "cached":
        raise UsageError(
            f"queries={queries!r} with keys='cached': queries whose results are in a cache cannot be denied anything; "
            "use keys='recomputed', or queries='last', which denies every generated query when it is the newest"
        )
    if queries is None:
        queries = "all" if keys == "recomputed" else "last"
    return queries, keys or ("cached" if queries == "last" else "recomputed")
