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
    generated: Any = None  # [row, position], of a diffusion run
    prompt_end: int = 0
    first: bool = True
    sums: dict[int, np.ndarray] = field(default_factory=dict)  # column sums by position: [row, head]


@dataclass
class Replay:
    top: int | None
    causal: bool
    rank_by: str
    queries: str
    keys: str
    measure: str = "before"
    source: str = "previous_step"
    prefill: str = "clean"
    scope: str = "head"
    epsilon: float | None = None
    positions: Any = None
    effect: str = "hide"  # "zero" | "mean": of the values of the keys, with the weights as they are
    layers: dict[int, LayerState] = field(default_factory=dict)
    doses: list[tuple[int, int, int, float, float]] = field(default_factory=list)
    hidden: list[np.ndarray] = field(default_factory=list)  # one a call: [row, head, query, key]
    pool: dict[int, Any] = field(default_factory=dict)  # by layer, of the step under way
    common: Any = None  # (run, step) and the lists that all layers share

    def follow(self, seen: list[Seen], tolerance: float = 2e-5) -> None:
        """Check the output of every call, for real queries that see something: nothing reads the others."""
        assert seen
        for one in seen:
            call = one.incoming
            truth = truth_of(call)
            hidden = self._hidden(call, truth)
            self.hidden.append(hidden)
            masked = truth_of(call, hidden) if self.effect == "hide" else truth
            self._remember(call, truth, masked, hidden)
            values = self._values(call, truth, hidden)
            output = np.einsum("bhqk,bhqkd->bhqd", masked.weights, values)
            error = np.abs(output - wide(one.forward.output)).max(axis=3)
            compared = truth.visible.any(-1) & counted(call)[:, None]
            assert error[compared].max(initial=0.0) < tolerance
            assert masked.visible.any(-1)[truth.visible.any(-1)].all()  # nobody lost all that it saw

    def _values(self, call: AttentionCall, truth: Truth, hidden: np.ndarray) -> np.ndarray:
        """[row, head, query, key, dim]"""
        values = np.repeat(wide(call.value), call.query.shape[1] // call.value.shape[1], axis=1)
        values = np.broadcast_to(values[:, :, None], (*hidden.shape, values.shape[-1]))
        if self.effect == "hide":
            return values
        if self.effect == "zero":
            return np.where(hidden[..., None], 0.0, values)
        where, mean, queries = call.where_keys().numpy(), np.zeros(values.shape), counted(call)
        alike = call.scores.mask_rows().same_for_all_queries
        seen = truth.visible[:, :, 0] if alike else (truth.visible & queries[:, None, :, None]).any(2)
        seen = seen & real_keys(call)[:, None]
        ahead = truth.visible[:, 0] & queries[:, :, None] & real_keys(call)[:, None]
        ahead &= where > call.where_queries().numpy()[:, None]
        whole = alike or (ahead.any() and not call.is_causal)
        for key in range(hidden.shape[-1]):
            used = seen if whole else seen & (where <= where[key])
            total = np.einsum("bhk,bhkd->bhd", used, values[:, :, 0]) / used.sum(-1).clip(min=1)[..., None]
            mean[..., key, :] = total[:, :, None]
        return np.where(hidden[..., None], mean, values)

    def _hidden(self, call: AttentionCall, truth: Truth) -> np.ndarray:
        assert call.site is not None
        step, state = int(call.site.step), self.layers.setdefault(call.site.layer, LayerState())
        first = step == 0 or step < state.step
        if first:
            state = self.layers[call.site.layer] = LayerState(run=state.run + 1)
            masked = getattr(call.site.step, "masked", None)
            state.generated = None if masked is None else masked.numpy()
            state.prompt_end = int(call.where_queries()[-1]) + 1
        elif step > state.step:
            if self.scope == "model":
                state.later = self._shared(state.run, step)
            state.now = state.later
        state.step, state.first = step, first
        if self.source != "previous_step":
            quiet = first and self.prefill == "clean"
            state.now = None if quiet else self._lists(call, truth, truth)
        hidden = np.zeros(truth.visible.shape, dtype=bool)
        if state.now is None:
            return hidden
        where, asked = call.where_queries().tolist(), self._asked(call)
        rows = {query: state.now for query in range(len(where)) if asked[:, query].any()}
        if self.queries == "last" and self.keys == "cached":
            state.denied |= {where[query]: state.now for query in rows}
            rows = {i: state.denied[p] for i, p in enumerate(where) if p in state.denied}
            asked = np.ones_like(asked)
        for query, lists in rows.items():
            meant = [heads if asked[row, query] else [[] for _ in heads] for row, heads in enumerate(lists)]
            least = 1 if self.effect == "hide" else 0
            hide_in_order(hidden, truth.visible, query, meant, call.where_keys().tolist(), least=least)
        return hidden

    def _asked(self, call: AttentionCall) -> np.ndarray:
        """[row, query]: who is denied keys."""
        assert call.site is not None
        where, step = call.where_queries().numpy(), call.site.step
        state = self.layers[call.site.layer]
        asked = np.zeros(call.query.shape[::2], dtype=bool)
        if self.queries == "all" or (state.first and self.prefill == "masked" and self.queries == "last"):
            asked[:] = True
        elif self.queries == "last":
            asked[:, -1] = True
        elif self.queries == "block":
            asked[:] = np.isin(where, list(step.block))  # type: ignore[attr-defined]
        elif self.queries == "generated":
            asked[:] = where >= state.prompt_end if self.causal else state.generated[:, where]
        else:
            asked[:] = step.masked.numpy()[:, where] == (self.queries == "masked")  # type: ignore[attr-defined]
        return asked

    def _lists(self, call: AttentionCall, truth: Truth, masked: Truth) -> Any:
        """Positions to deny, [row][head]."""
        assert call.site is not None
        rows, heads = call.query.shape[:2]
        if self.positions is not None:
            return [[list(self.positions) for _ in range(heads)] for _ in range(rows)]
        state, where = self.layers[call.site.layer], call.where_keys().tolist()
        ranking = counted(call).copy()
        if self.rank_by == "last_row":
            ranking[:, :-1] = False
        scores = (truth if self.measure == "before" else masked).received(ranking)
        candidates = (truth.viewers(ranking) > 0) & real_keys(call)[:, None]
        if self.causal and self.rank_by == "received":
            if int(call.where_queries()[0]) == 0:
                state.sums.clear()
            for index, position in enumerate(where):
                state.sums[position] = state.sums.get(position, 0.0) + scores[..., index]
                scores[..., index] = state.sums[position]
        if self.scope == "model":
            self.pool[call.site.layer] = [
                {p: (scores[b, :, i].mean(), candidates[b, :, i].any()) for i, p in enumerate(where)}
                for b in range(rows)
            ]
            return None
        if self.scope == "layer":
            scores = np.broadcast_to(scores.mean(1, keepdims=True), scores.shape)
            candidates = np.broadcast_to(candidates.any(1, keepdims=True), candidates.shape)
        if self.epsilon is not None:
            candidates = candidates & self._above(scores, truth, ranking, candidates)
        tops = len(where) if self.top is None else self.top
        return [[highest(scores[b, h], candidates[b, h], where, tops) for h in range(heads)] for b in range(rows)]

    def _above(self, scores: np.ndarray, truth: Truth, ranking: np.ndarray, there: np.ndarray) -> np.ndarray:
        assert self.epsilon is not None
        expected, found = truth.expected(ranking), np.zeros(scores.shape, dtype=bool)
        least = 8 if self.rank_by == "received" else 1
        for row, head, key in zip(*np.nonzero(there), strict=True):
            fair = scores[row, head] / np.where(expected[row, head] > 0, expected[row, head], 1.0)
            others = [fair[j] for j in np.flatnonzero(there[row, head]) if j != key]
            enough = truth.viewers(ranking)[row, head, key] >= least
            found[row, head, key] = enough and bool(others) and fair[key] - np.mean(others) > self.epsilon
        return found

    def _shared(self, run: int, step: int) -> Any:
        if self.common is None or self.common[0] != (run, step):
            heads = range(max(len(one) for one in self.hidden[-1]))
            lists = []
            for row in range(len(self.pool[0])):
                positions = sorted(set().union(*(layer[row] for layer in self.pool.values())))
                scores = [sum(layer[row].get(p, (0.0, False))[0] for layer in self.pool.values()) for p in positions]
                there = [any(layer[row].get(p, (0.0, False))[1] for layer in self.pool.values()) for p in positions]
                assert self.top is not None
                taken = highest(np.array(scores), np.array(there), positions, self.top)
                lists.append([taken for _ in heads])
            self.common = ((run, step), lists)
        return self.common[1]

    def _remember(self, call: AttentionCall, truth: Truth, masked: Truth, hidden: np.ndarray) -> None:
        assert call.site is not None
        state = self.layers[call.site.layer]
        if self.source == "previous_step":
            state.later = self._lists(call, truth, masked)
        affected = counted(call) & self._asked(call)
        self._dose(call.site.layer, state, truth=truth, hidden=hidden, affected=affected, keys=real_keys(call))

    def _dose(
        self, layer: int, state: LayerState, *, truth: Truth, hidden: np.ndarray, affected: np.ndarray, keys: np.ndarray
    ) -> None:
        rows = affected.any(-1)
        if not rows.any():
            self.doses.append((state.run, state.step, layer, np.nan, np.nan))
            return
        n = affected.sum(-1)[rows][:, None]
        removed = np.einsum("bhqk,bq->bh", np.where(hidden, truth.weights, 0.0), affected.astype(float))[rows] / n
        by_size = -np.sort(-truth.received(affected) * keys[:, None], axis=-1)
        tops = np.full(by_size.shape[:2], self.top)
        if self.top is None:
            tops = (hidden & affected[:, None, :, None]).any(2).sum(-1)
        taken = np.arange(by_size.shape[-1]) < tops[..., None]
        largest = (by_size * taken).sum(-1)[rows] / n
        self.doses.append((state.run, state.step, layer, float(removed.mean()), float(largest.mean())))


def real_keys(call: AttentionCall) -> np.ndarray:
    """[row, key]: False for padding."""
    if call.real_keys is None:
        return np.ones((call.key.shape[0], call.key.shape[2]), dtype=bool)
    return call.real_keys.numpy()


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


def hide_in_order(
    hidden: np.ndarray, visible: np.ndarray, query: int, lists: Any, where: list[int], *, least: int = 1
) -> None:
    """Take keys away in the order of their rank; the last one that a query sees stays (`least` 1)."""
    for row, heads in enumerate(lists):
        for head, positions in enumerate(heads):
            left = set(np.flatnonzero(visible[row, head, query]))
            for position in positions:
                index = where.index(position) if position in where else None
                if index in left and len(left) > least:
                    left.discard(index)
                    hidden[row, head, query, index] = True
