"""The rule of MaskSinks written a second time, in numpy float64 with whole attention maps, and replayed on a run.

A probe keeps every attention call of a run as it came and as it was computed. The replay reads the calls one after the
other, decides by itself which logits are minus infinity, and gives the output and the dose that follow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

import sinklens as sl
from kernels.oracle import Truth, attention
from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Seen


class Probe:
    """Looks at every call and changes none."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def __call__(self, call: AttentionCall) -> AttentionCall:
        return call

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)


@contextmanager
def probed(model: Any, settings: Any) -> Iterator[tuple[Any, list[Seen]]]:
    """The intervention at work, and every call it sees."""
    probe = Probe()
    with sl.intervene(model, probe), sl.intervene(model, settings) as lab:
        yield lab, probe.seen


def wide(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


@dataclass
class LayerState:
    step: int = -1
    run: int = -1
    now: Any = None  # lists of positions, [row][head]
    later: Any = None
    denied: dict[int, Any] = field(default_factory=dict)
    sums: dict[int, np.ndarray] = field(default_factory=dict)  # column sums by position: [row, head]


@dataclass
class Replay:
    top: int
    causal: bool
    rank_by: str
    queries: str
    keys: str
    measure: str = "before"
    layers: dict[int, LayerState] = field(default_factory=dict)
    doses: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    hidden: list[np.ndarray] = field(default_factory=list)  # one a call: [row, head, query, key]

    def follow(self, seen: list[Seen], tolerance: float = 2e-5) -> None:
        """Check the output of every call, for real queries that see something: nothing reads the others."""
        assert seen
        for one in seen:
            call = one.incoming
            truth = truth_of(call)
            hidden = self._hidden(call, truth)
            self.hidden.append(hidden)
            masked = truth_of(call, hidden)
            self._remember(call, truth, masked, hidden)
            values = np.repeat(wide(call.value), call.query.shape[1] // call.value.shape[1], axis=1)
            error = np.abs(masked.weights @ values - wide(one.forward.output)).max(axis=3)
            compared = truth.visible.any(-1) & counted(call)[:, None]
            assert error[compared].max(initial=0.0) < tolerance
            assert masked.visible.any(-1)[truth.visible.any(-1)].all()  # nobody lost all that it saw

    def _hidden(self, call: AttentionCall, truth: Truth) -> np.ndarray:
        assert call.site is not None
        step, state = int(call.site.step), self.layers.setdefault(call.site.layer, LayerState())
        if step == 0 or step < state.step:
            state = self.layers[call.site.layer] = LayerState(run=state.run + 1)
        elif step > state.step:
            state.now = state.later
        state.step = step
        hidden = np.zeros(truth.visible.shape, dtype=bool)
        if state.now is None:
            return hidden
        where = call.where_queries().tolist()
        rows = dict.fromkeys(range(len(where)), state.now) if self.queries == "all" else {len(where) - 1: state.now}
        if self.queries == "last" and self.keys == "cached":
            state.denied[where[-1]] = state.now
            rows = {i: state.denied[p] for i, p in enumerate(where) if p in state.denied}
        for query, lists in rows.items():
            hide_in_order(hidden, truth.visible, query, lists, call.where_keys().tolist())
        return hidden

    def _remember(self, call: AttentionCall, truth: Truth, masked: Truth, hidden: np.ndarray) -> None:
        assert call.site is not None
        state = self.layers[call.site.layer]
        newest = counted(call).copy()
        newest[:, :-1] = False
        affected = counted(call) if self.queries == "all" else newest
        ranking = counted(call) if self.rank_by == "received" else newest
        keys = np.ones(truth.visible.shape[::3], dtype=bool) if call.real_keys is None else call.real_keys.numpy()
        candidates = (truth.viewers(ranking) > 0) & keys[:, None]
        scores = (truth if self.measure == "before" else masked).received(ranking)
        where = call.where_keys().tolist()
        if self.causal and self.rank_by == "received":
            if int(call.where_queries()[0]) == 0:
                state.sums.clear()
            for index, position in enumerate(where):
                state.sums[position] = state.sums.get(position, 0.0) + scores[..., index]
                scores[..., index] = state.sums[position]
        state.later = [
            [highest(scores[b, h], candidates[b, h], where, self.top) for h in range(scores.shape[1])]
            for b in range(scores.shape[0])
        ]
        self._dose(call.site.layer, state, truth=truth, hidden=hidden, affected=affected, keys=keys)

    def _dose(
        self, layer: int, state: LayerState, *, truth: Truth, hidden: np.ndarray, affected: np.ndarray, keys: np.ndarray
    ) -> None:
        rows = affected.any(-1)
        if not rows.any():
            self.doses.append((state.run, state.step, layer, np.nan, np.nan))
            return
        n = affected.sum(-1)[rows][:, None]
        removed = np.einsum("bhqk,bq->bh", np.where(hidden, truth.weights, 0.0), affected.astype(float))[rows] / n
        largest = np.sort(truth.received(affected) * keys[:, None], axis=-1)[..., -self.top :].sum(-1)[rows] / n
        self.doses.append((state.run, state.step, layer, float(removed.mean()), float(largest.mean())))


def truth_of(call: AttentionCall, hidden: np.ndarray | None = None) -> Truth:
    """Attention maps of a call; the logits of `hidden` are minus infinity."""
    mask = None
    if call.mask is not None:
        mask = wide(call.mask) if call.mask.dtype.is_floating_point else call.mask.numpy()
    if hidden is not None and mask is not None and mask.dtype != bool:
        mask = np.where(hidden, -np.inf, mask)
    elif hidden is not None:
        mask = ~hidden if mask is None else mask & ~hidden
    return attention(
        wide(call.query), wide(call.key), scale=call.scale, mask=mask, hidden=-9999.0, causal=call.is_causal,
        softcap=call.softcap, sinks=None if call.sink_logits is None else wide(call.sink_logits),
    )  # fmt: skip


def counted(call: AttentionCall) -> np.ndarray:
    """[row, query]: False for padding."""
    if call.real_queries is None:
        return np.ones(call.query.shape[::2], dtype=bool)
    return call.real_queries.numpy()


def highest(scores: np.ndarray, candidates: np.ndarray, where: list[int], top: int) -> list[int]:
    """Positions of the highest candidates; of equals, the lower position first."""
    ranked = sorted((-score, position) for score, can, position in zip(scores, candidates, where, strict=True) if can)
    return [position for _, position in ranked[:top]]


def hide_in_order(hidden: np.ndarray, visible: np.ndarray, query: int, lists: Any, where: list[int]) -> None:
    """Take keys away in the order of their rank; the last one that a query sees stays."""
    for row, heads in enumerate(lists):
        for head, positions in enumerate(heads):
            left = set(np.flatnonzero(visible[row, head, query]))
            for position in positions:
                index = where.index(position) if position in where else None
                if index in left and len(left) > 1:
                    left.discard(index)
                    hidden[row, head, query, index] = True
