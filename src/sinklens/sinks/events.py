"""Event study around the commit: does a position draw attention when it gets its token?

For every generated position and its commit step c, the attention it receives (fair share, mean over heads) and its sink
rate (share of the heads that see it in which it is a sink) are read at the steps c - 5 .. c + 5.

Step t's attention is that of the canvas BEFORE step t commits: at offset 0 the position is masked for the last time, at
offset 1 its token is read for the first time. In autoregressive runs there is nothing to see before the token stands
there, so the offsets start at 1.

The control of an event at a step are the other generated positions of that step in the same mask state, none of them
within the window of its own commit. What all positions of that state do at that step (the run warms up, few masks are
left) is in both, and drops out of the difference. Events without a control at an offset count in `value` alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.resample import bootstrap_ratios

WINDOW = 5  # steps on either side of the commit
MEASURES = ("fair_share", "sink_rate")
NEVER = np.iinfo(np.int64).max // 2  # the commit step of a position that gets no token in this run


@dataclass(frozen=True, kw_only=True, eq=False)
class EventSums:
    """Sums over the events of one sample. Sums of several layers of that sample add up."""

    offsets: Int[np.ndarray, " offset"]
    events: Int[np.ndarray, "measure offset"]  # positions that are measured at this offset
    controlled: Int[np.ndarray, "measure offset"]  # those of them that have a control
    cells: Int[np.ndarray, "measure offset"]  # event x layer: what the totals are sums over
    controlled_cells: Int[np.ndarray, "measure offset"]
    total: Float[np.ndarray, "measure offset"]
    control: Float[np.ndarray, "measure offset"]
    difference: Float[np.ndarray, "measure offset"]  # event minus its control
    exact: bool  # False: some fair shares are the common mean of the keys that were not stored

    def __add__(self, other: "EventSums") -> "EventSums":
        if not np.array_equal(self.offsets, other.offsets):
            raise UsageError(
                f"events with windows {self.offsets[-1]} and {other.offsets[-1]} do not add; measure with one window"
            )
        return EventSums(
            offsets=self.offsets,
            events=np.maximum(self.events, other.events),
            controlled=np.maximum(self.controlled, other.controlled),
            cells=self.cells + other.cells,
            controlled_cells=self.controlled_cells + other.controlled_cells,
            total=self.total + other.total,
            control=self.control + other.control,
            difference=self.difference + other.difference,
            exact=self.exact and other.exact,
        )


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """One offset of one measure, over all samples. Intervals: 95 %, over samples; None with fewer than two."""

    measure: str  # one of MEASURES
    offset: int  # steps after the commit
    value: float
    low: float | None
    high: float | None
    control: float | None  # mean over the events that have one
    difference: float | None  # event minus its control, over the same events
    difference_low: float | None
    difference_high: float | None
    events: int
    controlled: int  # events with a control
    samples: int  # samples with an event at this offset
    exact: bool  # False: the trace keeps sinks only, and the other fair shares are their common mean

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_events(
    layer: LayerArrays,
    sinks: Bool[np.ndarray, "step head key"],
    *,
    canvases: Canvases,
    window: int = WINDOW,
    min_viewers: int = MIN_VIEWERS,
) -> EventSums:
    """The events of one layer of one sample. Offsets whose step is not stored, or outside the run, are missing.

    min_viewers: as the sinks were detected. A key with fewer viewers cannot be a sink, so it has no sink rate.
    """
    if window < 1:
        raise UsageError(f"window is {window}; expected at least 1 step on either side of the commit")
    values = _over_heads(layer, sinks, min_viewers=min_viewers)
    commit = _commit_steps(canvases)
    generated = np.arange(len(commit)) >= canvases.prompt_length
    masked = canvases.masked[layer.steps]
    values[:, canvases.ids[layer.steps] < 0] = np.nan
    calm = generated & (np.abs(layer.steps[:, None] - commit) > window)
    controls = np.stack([_mean_of(values, calm & (masked == state)) for state in (False, True)])

    offsets = np.arange(-window, window + 1)
    keys = np.flatnonzero(generated & (commit < NEVER))
    at = commit[keys][:, None] + offsets
    row = np.searchsorted(layer.steps, at).clip(max=len(layer.steps) - 1)
    key = np.broadcast_to(keys[:, None], row.shape)
    value = np.where(layer.steps[row] == at, values[:, row, key], np.nan)  # [measure, event, offset]
    control = np.moveaxis(controls[masked[row, key].astype(int), :, row], -1, 0)
    seen = ~np.isnan(value)
    paired = seen & ~np.isnan(control)
    return EventSums(
        offsets=offsets,
        events=seen.sum(1),
        controlled=paired.sum(1),
        cells=seen.sum(1),
        controlled_cells=paired.sum(1),
        total=np.where(seen, value, 0.0).sum(1),
        control=np.where(paired, control, 0.0).sum(1),
        difference=np.where(paired, value - control, 0.0).sum(1),
        exact=layer.kept is None,
    )


def summarise_events(by_sample: Sequence[EventSums], *, draws: int = 1000, seed: int = 0) -> list[EventRow]:
    """Rows by measure and offset; one entry of `by_sample` a sample. Offsets at which nothing was seen are left out.

    Every value is the sum over all events divided by their number, resampled by sample.
    """
    rows = []
    for number, measure in enumerate(MEASURES):

        def column(field: str, number: int = number) -> np.ndarray:
            return np.array([getattr(one, field)[number] for one in by_sample])

        if not by_sample:
            break
        values = bootstrap_ratios(column("total"), column("cells"), draws=draws, seed=seed)
        gain = bootstrap_ratios(column("difference"), column("controlled_cells"), draws=draws, seed=seed)
        control, paired = column("control").sum(0), column("controlled_cells").sum(0)
        events, controlled = column("events").sum(0), column("controlled").sum(0)
        for i, offset in enumerate(by_sample[0].offsets):
            value = values[i].value
            if value is None:
                continue
            rows.append(
                EventRow(
                    measure=measure,
                    offset=int(offset),
                    value=value,
                    low=values[i].low,
                    high=values[i].high,
                    control=float(control[i] / paired[i]) if paired[i] else None,
                    difference=gain[i].value,
                    difference_low=gain[i].low,
                    difference_high=gain[i].high,
                    events=int(events[i]),
                    controlled=int(controlled[i]),
                    samples=values[i].n,
                    exact=measure == "sink_rate" or all(one.exact for one in by_sample),
                )
            )
    return rows


def _over_heads(
    layer: LayerArrays, sinks: Bool[np.ndarray, "step head key"], *, min_viewers: int
) -> Float[np.ndarray, "measure step key"]:
    """Mean fair share over the heads that see the key, sink rate over those in which it can be a sink; NaN: none."""
    share = layer.fair_share
    visible = ~np.isnan(share)
    can = visible & (layer.viewers >= min_viewers)
    sums = np.stack([np.where(visible, share, 0).sum(1, dtype=np.float64), (sinks & can).sum(1)])
    heads = np.stack([visible.sum(1), can.sum(1)])
    means = np.full(sums.shape, np.nan)
    np.divide(sums, heads, out=means, where=heads > 0)
    return means


def _commit_steps(canvases: Canvases) -> Int[np.ndarray, " key"]:
    """The first step in which each position gets its token."""
    return np.where(canvases.committed.any(0), canvases.committed.argmax(0), NEVER)


def _mean_of(
    values: Float[np.ndarray, "measure step key"], chosen: Bool[np.ndarray, "step key"]
) -> Float[np.ndarray, "measure step"]:
    """The mean over the chosen keys of every step that have a value; NaN where there are none."""
    known = chosen & ~np.isnan(values)
    sums = np.where(known, values, 0.0).sum(-1)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, known.sum(-1), out=means, where=known.any(-1))
    return means
