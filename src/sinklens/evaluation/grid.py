"""The cells of a masking experiment: sinks, their controls, and one setting changed at a time.

    none                                      the untouched model, always
    sinks:top=k                               for every k
    CONTROL:top=k                             for every control and k; random ones in several draws
    sinks, random:top=k,keys=K                for every K that is not the family's own, with the random control
    sinks:top=k,act=A   sinks:top=k,scope=S   for every A and S that is not the default
    sinks:epsilon=e                           for every e

Settings are not crossed with each other: every cell beside sinks:top=k differs from it in one thing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sinklens.errors import UsageError, choose
from sinklens.evaluation.conditions import ACTS, CHOICES, DRAWN, Condition
from sinklens.interventions.plan import ACCEPTED, resolve

PRIMARY = 5  # keys a head in the primary contrast
DRAWS = 5  # of every random control; fewer leave its own spread in the difference


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
        return list(dict.fromkeys(self._cells(resolve(causal=causal).keys)))

    def _cells(self, own: str) -> Iterator[Condition]:
        yield Condition()
        for top in self.tops:
            if top:
                yield Condition(choose="sinks", top=top)
                for control in self.controls:
                    yield from self._drawn(control, top)
                for keys in self.keys:
                    if keys != own:
                        yield Condition(choose="sinks", top=top, keys=keys)
                        yield from self._drawn("random", top, keys) if "random" in self.controls else ()
                yield from (Condition(choose="sinks", top=top, act=act) for act in self.acts)
                yield from (Condition(choose="sinks", top=top, scope=scope) for scope in self.scopes if scope != "head")
        yield from (Condition(choose="sinks", epsilon=epsilon) for epsilon in self.epsilons)

    def _drawn(self, control: str, top: int, keys: str | None = None) -> Iterator[Condition]:
        for draw in range(self.draws if control in DRAWN else 1):
            yield Condition(choose=control, top=top, keys=keys, draw=draw)


def primary_cells(cells: Sequence[Condition]) -> tuple[Condition, list[Condition]]:
    """The sinks and the random draws of the primary contrast, in the family's own way; PRIMARY keys or the most."""
    counts = {one.top for one in cells if one.top is not None}
    pairs = {top: [Condition(choose=name, top=top) for name in ("sinks", "random")] for top in counts}
    tops = [top for top, pair in pairs.items() if all(one in cells for one in pair)]
    if not tops:
        raise UsageError(
            "there is no primary contrast of sinks with as many random keys; have both among the cells, such as "
            "sinks:top=5 and random:top=5"
        )
    top = PRIMARY if PRIMARY in tops else max(tops)
    sinks, first = pairs[top]
    return sinks, [one for one in cells if replace(one, draw=0) == first]
