"""Follow sinks over the steps of a generation: one row a track, with where it was, what stood there and what it did.

A stay is one position of one head (stays.py); stays join into tracks by hand-offs that beat chance (handoffs.py,
chains.py); every track has a kind (kinds.py). The rule in words, with its null: docs/tracks.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from sinklens.errors import UsageError, choose
from sinklens.sinks.arrays import READINGS, Canvases, LayerArrays, TraceLike, among, from_arrays
from sinklens.sinks.chains import Chains, build_chains
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.handoffs import DRAWS, FIRST, Linked, link
from sinklens.sinks.kinds import Surroundings, classify
from sinklens.sinks.stays import find_stays
from sinklens.sinks.track_table import NULL_COLUMNS, cells, life, no_null, stay_lists, what, whose


@dataclass(frozen=True, kw_only=True)
class TrackRule:
    """The numbers of the rule."""

    epsilon: float = 3.0  # fair shares above the others' mean for a birth; alive above half of it
    min_viewers: int = MIN_VIEWERS  # queries that must see a key for a birth
    seed: int = 0  # of the shifts in time
    draws: int = DRAWS  # of the null that hand-offs are tested against
    shifted: int = 0  # draws of it that are classified as well

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < float("inf"):
            raise UsageError(f"epsilon is {self.epsilon}; expected a finite number above 0")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; expected 0 or more")
        if self.draws < FIRST:
            raise UsageError(
                f"draws is {self.draws}; expected {FIRST} or more: with fewer, no total can be among the greatest 5 %"
            )
        if not 0 <= self.shifted <= FIRST:
            raise UsageError(f"shifted is {self.shifted}; expected 0 to {FIRST}, the draws that every head gets")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tracked:
    """The tracks, and those of stays shifted in time (`shifted` draws of them) to compare every share with."""

    tracks: Any  # pyarrow.Table
    null: Any  # pyarrow.Table: draw and some columns of `tracks`; no rows when shifted is 0

    @staticmethod
    def join(parts: "Iterable[Tracked]") -> "Tracked":
        """Many layers as one."""
        every = list(parts)
        if not every:
            raise UsageError("no layers to join; expected at least one")
        return Tracked(
            tracks=pa.concat_tables([part.tracks for part in every]),
            null=pa.concat_tables([part.null for part in every]),
        )


def track_sinks(
    trace_or_arrays: Any,
    epsilon: float = 3.0,
    *,
    reading: str = "received",
    layers: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    min_viewers: int = MIN_VIEWERS,
    seed: int = 0,
    draws: int = DRAWS,
) -> Any:
    """A pyarrow.Table with one row a track (docs/tracks.md has the columns).

    trace_or_arrays: a trace; or `received` as an array or tensor [step, layer, head, key] or [step, head, key]; or a
    mapping with `received` and any of `expected`, `viewers`, `masked`, `ids`, as `from_arrays` takes them.
    """
    rule = TrackRule(epsilon=epsilon, min_viewers=min_viewers, seed=seed, draws=draws)
    return follow_sinks(trace_or_arrays, rule, reading=reading, layers=layers, samples=samples).tracks


def follow_sinks(
    trace_or_arrays: Any,
    rule: TrackRule | None = None,
    *,
    reading: str = "received",
    layers: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
) -> Tracked:
    """The same with the null: as many draws of it as `rule.shifted` says."""
    rule = rule or TrackRule()
    choose("reading", reading, READINGS)
    trace = _trace(trace_or_arrays)
    wanted = among("layers", layers, trace.layers)
    parts, most = [], 0.0
    for sample in among("samples", samples, trace.samples):
        canvases = trace.canvases(sample)
        for number in wanted:
            layer = trace.layer(sample, number, groups=True).reading(reading)
            most = max(most, float(np.nanmax(layer.viewers, initial=0)))
            parts.append(track_layer(layer, canvases, rule=rule))
    if most < rule.min_viewers:
        raise UsageError(
            f"no key is seen by {rule.min_viewers} queries or more (at most {most:g}), so none could be a sink; "
            f"pass min_viewers={max(1, int(most))} or less"
        )
    return Tracked.join(parts)


def track_layer(layer: LayerArrays, canvases: Canvases, *, rule: TrackRule | None = None) -> Tracked:
    """The tracks of one layer of one sample, from arrays that are already there.

    Split tracks are found where the layer has its groups. A layer with every n-th step only is followed over those:
    "one step" then means one stored step; births and deaths are numbers of steps; a lifetime is the number of stored
    steps times n.
    """
    rule = rule or TrackRule()
    if layer.kept is not None and rule.epsilon < 2:
        raise UsageError(
            f"epsilon {rule.epsilon:g} follows keys down to an excess of {rule.epsilon / 2:g}, but this trace keeps "
            "only those above 1 (detail 'sinks'); use epsilon 2 or more, or a full trace"
        )
    above = layer.excess
    stays = find_stays(above, eligible=layer.viewers >= rule.min_viewers, epsilon=rule.epsilon)
    seeds = [(rule.seed, canvases.sample, layer.layer, head) for head in layer.heads.tolist()]
    linked, surrogates = link(stays, steps=len(layer.steps), seeds=seeds, draws=rule.draws, shifted=rule.shifted)
    around = Surroundings.of(
        canvases, steps=layer.steps, groups=layer.groups, epsilon=rule.epsilon, min_viewers=rule.min_viewers
    )
    chains = build_chains(linked)
    columns = whose(chains, layer, sample=canvases.sample) | life(chains, layer)
    columns |= cells(chains, layer, canvases=canvases, above=above) | what(chains, classify(chains, around))
    columns |= {"stays": stay_lists(chains, linked.stays, layer=layer)}
    null = [_null(one, layer, around=around, sample=canvases.sample, draw=at) for at, one in enumerate(surrogates)]
    return Tracked(tracks=pa.table(columns), null=pa.concat_tables([no_null(columns), *null]))


def _null(one: Linked, layer: LayerArrays, *, around: Surroundings, sample: int, draw: int) -> Any:
    chains = build_chains(one)
    columns = whose(chains, layer, sample=sample) | what(chains, classify(chains, around))
    columns |= {"draw": pa.array(np.full(len(chains), draw, np.int32))}
    table = pa.table({name: columns[name] for name in ("draw", *NULL_COLUMNS)})
    return table.filter(pa.array(_counted_once(one, chains)))


def _counted_once(one: Linked, chains: Chains) -> np.ndarray:
    """A stay that the shift has cut in two is one: of its two chains that without a hand-off is left out."""
    counted = np.ones(len(chains), bool)
    if one.halves is None or not len(one.halves):
        return counted
    sizes = np.diff(chains.stay_starts)
    chain = np.empty(len(one.stays), np.int64)
    chain[chains.stay] = np.repeat(np.arange(len(chains)), sizes)
    begun, rest = chain[one.halves].T
    apart = begun != rest
    counted[np.where(sizes[rest] == 1, rest, begun)[apart]] = False
    return counted


def _trace(given: Any) -> TraceLike:
    if hasattr(given, "canvases") and hasattr(given, "layer"):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str | PathLike):
        raise UsageError(f"{given!r} is a path; open the trace first: sinklens.open_trace(...)")
    options = dict(given) if isinstance(given, Mapping) else {"received": given}
    known = ("received", "expected", "viewers", "masked", "ids")
    strange = [name for name in options if name not in known]
    if strange or "received" not in options:
        raise UsageError(f"the mapping has {list(options)}; expected 'received' and any of {', '.join(known[1:])}")
    received = options.pop("received")
    shape = tuple(getattr(received, "shape", np.shape(received)))
    if len(shape) == 3:  # one layer
        received = _with_layer(received)
        for name in ("expected", "viewers"):
            if options.get(name) is not None and len(np.shape(options[name])) == 3:
                options[name] = _with_layer(options[name])
    elif len(shape) != 4:
        raise UsageError(
            f"received has shape {shape}; expected [step, layer, head, key] or [step, head, key], or a trace"
        )
    return from_arrays(received, **options)


def _with_layer(values: Any) -> Any:
    return values[:, None] if hasattr(values, "shape") else np.asarray(values)[:, None]
