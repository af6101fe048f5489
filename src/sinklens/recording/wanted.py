"""What of a run is to be kept, checked against the model before anything runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.traces.manifest import DETAILS
from sinklens.types import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What of a run is kept."""

    detail: str = "full"  # or "sinks": only what exceeds the others' mean by more than one fair share
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    every: int = 1  # attention of every N-th step; canvases of all
    maps: frozenset[tuple[int, int, int]] = frozenset()  # (layer, head, step) whose whole map is kept
    norms: bool = True
    exact: bool = False  # float32 as measured, not rounded

    def stores(self, step: int) -> bool:
        return step % self.every == 0

    def maps_at(self, step: int) -> list[tuple[int, int]]:
        return sorted((layer, head) for layer, head, at in self.maps if at == step)

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "detail": self.detail,
            "layers": list(self.layers),
            "heads": list(self.heads),
            "every": self.every,
            "maps": [list(entry) for entry in sorted(self.maps)],
            "norms": self.norms,
            "exact": self.exact,
        }


def read_wanted(
    spec: ModelSpec,
    *,
    detail: str,
    layers: Iterable[int] | None,
    heads: Iterable[int] | None,
    every: int,
    maps: Iterable[Sequence[int]],
    norms: bool,
    exact: bool,
) -> Wanted:
    """Refused here: numbers that the model does not have."""
    choose("detail", detail, DETAILS)
    if type(every) is not int or every < 1:
        raise UsageError(f"every is {every!r}; expected a whole number of steps, at least 1")
    wanted_layers = _numbers("layers", layers, spec.layers)
    wanted_heads = _numbers("heads", heads, spec.heads)
    found = frozenset(_map_entry(entry) for entry in maps)
    for layer, head, step in sorted(found):
        if layer not in wanted_layers or head not in wanted_heads or step < 0 or step % every:
            raise UsageError(
                f"maps asks for layer {layer}, head {head}, step {step}; kept are layers {_span(wanted_layers)}, heads "
                f"{_span(wanted_heads)} and steps that are multiples of {every}; ask for one of these, or keep more"
            )
    return Wanted(
        detail=detail, layers=wanted_layers, heads=wanted_heads, every=every, maps=found, norms=norms, exact=exact
    )


def _numbers(what: str, given: Iterable[int] | None, total: int) -> tuple[int, ...]:
    if given is None:
        return tuple(range(total))
    numbers = sorted(set(given))
    if not numbers or not all(type(number) is int and 0 <= number < total for number in numbers):
        raise UsageError(f"{what} is {numbers}; expected numbers from 0 to {total - 1}")
    return tuple(numbers)


def _span(numbers: tuple[int, ...]) -> str:
    if numbers == tuple(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _map_entry(entry: Any) -> tuple[int, int, int]:
    try:
        layer, head, step = (int(number) for number in entry)
    except (TypeError, ValueError):
        raise UsageError(f"maps holds {entry!r}; expected (layer, head, step), such as (3, 1, 38)") from None
    return layer, head, step
