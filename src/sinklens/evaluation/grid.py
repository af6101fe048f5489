"""The cells of a masking experiment: sinks, their controls, and one setting changed at a time.

    none                                      the untouched model, always
    sinks:top=k                               for every k
    CONTROL:top=k                             for every control and k; random ones in several draws
    sinks, random:top=k,keys=K                for every K that the family has and that is not its own, with the
                                              random control
    sinks:top=k,act=A   sinks:top=k,scope=S   for every A and S that is not the default
    sinks:epsilon=e                           for every e

Settings are not crossed with each other: every cell beside sinks:top=k differs from it in one thing.

The primary contrast is sinks less random keys with the family's own settings, said or left open: five of each or, where
there are no five, the largest number of keys that both have. It is declared before anything runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.evaluation.conditions import ACTS, CHOICES, DRAWN, SETTINGS, Condition
from sinklens.interventions.plan import ACCEPTED, resolve

PRIMARY = 5  # keys a head in the primary contrast
DRAWS = 5  # of every random control; fewer leave its own spread in the difference
CHANGED = ("act", *SETTINGS)  # what cells of the same keys may differ in
_FOLLOWING = ("queries", "measure", "prefill")  # left open, they follow from other settings, not from the family alone
_SHARED: Mapping[str, str] = {"scope": "head", "measure": "before", "source": "previous_step", "prefill": "clean"}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What to cross; empty: only the default."""

    tops: tuple[int, ...] = (0, 1, 5, 10)  # keys a head; 0, the untouched model, is always there
    controls: tuple[str, ...] = ("random",)
    keys: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = ()
    draws: int = DRAWS

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UsageError(f"draws is {self.draws}; expected at least 1")
        for name in self.controls:
            choose("control", name, tuple(name for name in CHOICES if name != "sinks"))
        for what, given, accepted in (
            ("keys", self.keys, ACCEPTED["keys"]),
            ("act", self.acts, tuple(ACTS)),
            ("scope", self.scopes, ACCEPTED["scope"]),
        ):
            for name in given:
                choose(what, name, accepted)

    def cells(self, *, causal: bool) -> list[Condition]:
        """For a model of a family, each once."""
        return list(dict.fromkeys(self._cells(resolve(causal=causal).keys, causal=causal)))

    def _cells(self, own: str, *, causal: bool) -> Iterator[Condition]:
        yield Condition()
        for top in self.tops:
            if top:
                yield Condition(choose="sinks", top=top)
                for control in self.controls:
                    yield from self._drawn(control, top)
                for keys in self.keys:
                    if keys != own and not (causal and keys == "block_cached"):
                        yield Condition(choose="sinks", top=top, keys=keys)
                        yield from self._drawn("random", top, keys) if "random" in self.controls else ()
                yield from (Condition(choose="sinks", top=top, act=act) for act in self.acts)
                yield from (Condition(choose="sinks", top=top, scope=scope) for scope in self.scopes if scope != "head")
        yield from (Condition(choose="sinks", epsilon=epsilon) for epsilon in self.epsilons)

    def _drawn(self, control: str, top: int, keys: str | None = None) -> Iterator[Condition]:
        for draw in range(self.draws if control in DRAWN else 1):
            yield Condition(choose=control, top=top, keys=keys, draw=draw)


def settings_of(condition: Condition, *, causal: bool | None, **changed: str | None) -> dict[str, str | None]:
    """What a condition does to a model of the family, with nothing left open (interventions/plan.py).

    causal: None where the family is not known; what depends on it then stays as the condition has it. changed: settings
    in place of the condition's own, None to leave one to the family. What follows from a setting changes with it.

    >>> settings_of(Condition(choose="sinks", top=5, queries="all"), causal=True)["keys"]
    'recomputed'
    """
    told = _resolved({name: getattr(condition, name) for name in CHANGED}, causal=causal)
    if not changed:
        return told
    following = [name for name in _FOLLOWING if _resolved(told | {name: None}, causal=causal) == told]
    return _resolved(told | dict.fromkeys(following) | changed, causal=causal)


def _resolved(given: Mapping[str, str | None], *, causal: bool | None) -> dict[str, str | None]:
    settings = {name: given[name] for name in SETTINGS}
    if causal is None:
        read = {name: value or _SHARED.get(name) for name, value in settings.items()}
    else:
        plan = resolve(causal=causal, **settings)
        read = {name: getattr(plan, name) for name in SETTINGS}
    return {"act": given["act"] or "mask", **read}


def primary_cells(cells: Sequence[Condition], *, causal: bool) -> tuple[Condition, list[Condition]]:
    """The sinks and the random draws of the primary contrast of a model of the family."""
    own = settings_of(Condition(), causal=causal)
    drawn: dict[str, dict[int, list[Condition]]] = {"sinks": {}, "random": {}}  # by number of keys
    for one in sorted(cells, key=lambda one: len(str(replace(one, draw=0)))):  # of two that do the same, the shorter
        if one.choose in drawn and one.top is not None and settings_of(one, causal=causal) == own:
            found = drawn[one.choose].setdefault(one.top, [])
            if not found or replace(one, draw=0) == replace(found[0], draw=0):
                found.append(one)
    tops = drawn["sinks"].keys() & drawn["random"].keys()
    if not tops:
        raise UsageError(
            "there is no primary contrast of sinks with as many random keys; have both among the cells, such as "
            "sinks:top=5 and random:top=5"
        )
    top = PRIMARY if PRIMARY in tops else max(tops)
    return drawn["sinks"][top][0], drawn["random"][top]


def declare_primary(cells: Sequence[Condition], *, causal: bool) -> dict[str, Any] | None:
    """The primary contrast a - b as experiment.json says it, with the draws of b; None where the cells have none."""
    try:
        sinks, draws = primary_cells(cells, causal=causal)
    except UsageError:
        return None
    return {"a": str(sinks), "b": str(replace(draws[0], draw=0)), "draws": len(draws)}
