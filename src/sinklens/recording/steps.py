"""One run, step by step, as rows of a trace.

What an observer has seen of a step is handed on and forgotten, so memory holds few steps at a time; steps that are not
kept run unobserved. Queries are told apart in the same pass: masked from unmasked ones on a canvas, the newest one in
an autoregressive run.

An autoregressive run with a KV cache computes one new query a step. Earlier rows of attention do not change, so column
sums over all queries so far are the running sum of what the steps give; `received` is that sum, `last_row` the newest
row alone.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber
from sinklens.attention.observation import SUMS, Observation, StepObservation
from sinklens.attention.observe import observe
from sinklens.attention.outbox import Arriving, Courier
from sinklens.errors import ObservationError
from sinklens.recording.running import RunningSums
from sinklens.recording.wanted import Wanted
from sinklens.sampling.generate import steps
from sinklens.sampling.step import Sampler, Step
from sinklens.traces.rows import AttentionRows, GroupRows, StepRows

ANY_SIZE = 2**62  # of maps: they are written and forgotten step by step


Some = slice | list[int]  # of the heads; a slice makes no copy


class _Ended(Exception):  # noqa: N818 - not an error
    """The run has no further step. It leaves an observer's context without the complaint that nothing ran."""


class Recorder:
    """The steps of one prompt. After the last, `canvas` is the final one."""

    def __init__(
        self,
        model: Any,
        prompt: list[int],
        sampler: Sampler,
        *,
        wanted: Wanted,
        seed: int | None,
        graph: bool = False,
    ) -> None:
        self.model, self.wanted = model, wanted
        self.canvas: Int[Tensor, " position"] = torch.tensor(prompt)
        self._run = steps(model, [prompt], sampler, seed=seed, graph=graph)
        self._causal: bool = model.spec.causal
        every = wanted.heads == tuple(range(model.spec.heads))
        self._heads: Some = slice(None) if every else list(wanted.heads)
        self._sums = RunningSums()  # of an autoregressive run
        self._index = 0
        self._courier = Courier()
        self._open = ExitStack()  # the observer's context
        self._seen: Observation | None = None
        self._asked: object = None  # what it was entered for

    def rows(self) -> Generator[Callable[[], StepRows]]:
        """One entry a forward, as it happens: what makes its rows, to be called once, after those before it.

        It may be called while the run goes on, in another thread.
        """
        try:
            with ExitStack() as self._open:
                while True:
                    began = time.monotonic()
                    step, seen = self._advance()
                    decided = self._courier.send(step.canvas[0], step.committed[0], step.confidence[0])
                    seconds = time.monotonic() - began
                    yield partial(self._row, self._index, step, decided, seen, seconds=seconds)
                    self._index += 1
        except _Ended:
            return

    def _advance(self) -> tuple[Step, StepObservation | None]:
        """The next step, observed where its attention is kept, or summed over a causal run."""
        seen = self._observer()
        if seen is None:
            return self._next(), None
        before = len(seen.steps)
        step = self._next()
        if len(seen.steps) != before + 1:
            raise ObservationError(
                f"step {self._index} ran {len(seen.steps) - before} forwards; a trace needs a sampler that yields one "
                "Step for each forward"
            )
        del seen.steps[:-1]
        if self._causal:  # a cache is fed by a part of the model, whose forward ends when the next one begins
            seen.steps[0].pack()
        return step, seen.steps[0]

    def _observer(self) -> Observation | None:
        """What observes this step: the same as the last one as long as the same is asked; entering one takes time."""
        stored, maps = self.wanted.stores(self._index), tuple(self.wanted.maps_at(self._index))
        asked = (stored, maps) if stored or self._causal else None
        if asked != self._asked:
            self._open.close()
            self._seen, self._asked = None, asked
            if asked is not None:
                norms = self.wanted.norms
                self._seen = self._open.enter_context(
                    observe(
                        self.model,
                        groups=self._groups(),
                        maps=maps,
                        norms=stored and norms,
                        hidden_norms=norms,
                        ranks=stored and norms,
                        layers=self.wanted.layers,
                        map_bytes=ANY_SIZE,
                    )
                )
        return self._seen

    def _next(self) -> Step:
        step = next(self._run, None)
        if step is None:
            raise _Ended
        return step

    def _groups(self) -> Mapping[str, Callable[[StepNumber], Tensor]]:
        if self._causal:
            return {"last_row": _newest}
        mask_id = self.model.spec.mask_id
        if mask_id is None:
            return {}
        return {"masked": lambda step: _masked(step, mask_id), "unmasked": lambda step: ~_masked(step, mask_id)}

    def _row(
        self, index: int, step: Step, decided: Arriving, seen: StepObservation | None, *, seconds: float
    ) -> StepRows:
        after, committed, confidence = decided()
        before = self._before(index, after, committed)
        self.canvas = after
        places = (committed & ~self._is_masked(after)).nonzero().flatten()  # a proposed mask is no token
        attention = None if seen is None else self._attention(index, seen, keys=len(before), computed=step.computed)
        return StepRows(
            step=index,
            ids=before.numpy().astype(np.int32),
            masked=self._is_masked(before).numpy(),
            committed=places.numpy().astype(np.int32),
            committed_ids=after[places].numpy().astype(np.int32),
            confidence=confidence.numpy(),
            block=None if step.block is None else (step.block.start, step.block.stop),
            seconds=seconds,
            attention=attention,
        )

    def _before(self, index: int, after: Int[Tensor, " position"], committed: Bool[Tensor, " position"]) -> Tensor:
        """What the forward read: the canvas of the step before; at first the prompt, or the canvas it began with."""
        if self._causal or index:
            return self.canvas
        return after.masked_fill(committed, self.model.spec.mask_id) if self.model.spec.mask_id is not None else after

    def _is_masked(self, ids: Int[Tensor, " position"]) -> Bool[Tensor, " position"]:
        mask_id = None if self._causal else self.model.spec.mask_id
        return torch.zeros_like(ids, dtype=torch.bool) if mask_id is None else ids == mask_id

    def _attention(
        self, index: int, seen: StepObservation, *, keys: int, computed: range | None
    ) -> AttentionRows | None:
        """The arrays of this step, summed over the steps so far in a causal run; None: not to be kept."""
        heads, outline = self._heads, seen.outline
        parts = {name: _sums(seen, field) for name, field in SUMS.items()}
        sums = {name: values.sum(1) for name, values in parts.items()}
        if any(record.null_mass is not None for record in outline):
            sums["null_mass"] = _numbers(seen.null_mass)[..., None]
        queries, hidden = outline[0].queries, self._hidden(seen)
        if self._causal:
            self._sums.begin(queries, keys)
            sums = {name: self._sums.add(name, values) for name, values in sums.items()}
            queries = self._sums.queries
            hidden = None if hidden is None else self._sums.place("hidden", hidden)
        elif hidden is not None and computed is not None:
            hidden = _placed(hidden, computed, keys=keys)
        if not self.wanted.stores(index):
            return None
        norms = _norms(seen, heads)
        if self._causal:
            norms = {name: self._carried(name, values) for name, values in norms.items()}
        null_mass = sums.get("null_mass")
        return AttentionRows(
            layers=self.wanted.layers,
            heads=self.wanted.heads,
            received=_some(sums["received"], heads),
            expected=_some(sums["expected"], heads),
            viewers=_some(sums["viewers"], heads),
            queries=queries,
            groups={
                group: GroupRows(**{name: _some(values[:, i], heads) for name, values in parts.items()})
                for i, group in enumerate(outline[0].group_names)
            },
            hidden_norm=hidden,
            maps=_maps(seen) if self.wanted.maps_at(index) else {},
            impl=", ".join(sorted({record.impl for record in outline})),
            kernel=", ".join(sorted({record.kernel for record in outline})),
            null_mass=None if null_mass is None else null_mass[:, heads, 0],
            **norms,
        )

    def _carried(self, name: str, values: np.ndarray | None) -> np.ndarray | None:
        """Norms of keys outlive the window of a cache, as the sums do."""
        return values if values is None or values.ndim != 3 else self._sums.carry(name, values)

    def _hidden(self, seen: StepObservation) -> "Float[np.ndarray, 'layer query'] | None":
        """Of the blocks of the layers that are kept, where there is one block a layer."""
        if seen.blocks != self.model.spec.layers:
            return None
        return seen.hidden_norm[:, 0].numpy()[list(self.wanted.layers)]


def _placed(values: Float[np.ndarray, "layer query"], computed: range, *, keys: int) -> Float[np.ndarray, "layer key"]:
    """Of the positions a step computed; NaN for those that a cache holds."""
    placed = np.full((len(values), keys), np.nan, values.dtype)
    placed[:, computed.start : computed.stop] = values
    return placed


def _norms(seen: StepObservation, heads: Some) -> dict[str, np.ndarray | None]:
    """What was measured beside the sums; None where the model has no such thing, or it was not asked for."""
    found: dict[str, np.ndarray | None] = {}
    for name in ("key_norm", "value_norm", "output_norm", "output_rank", "output_size"):
        values = seen.stacked(name)
        found[name] = (
            None if values is None else _numbers(values)[:, heads if name.startswith("output") else slice(None)]
        )
    return found


def _maps(seen: StepObservation) -> dict[tuple[int, int], np.ndarray]:
    return {where: values[0].numpy() for where, values in seen.maps.items()}


def _sums(seen: StepObservation, name: str) -> Float[np.ndarray, "layer group heads_or_1 key"]:
    """By query group, of the one row of the batch."""
    values = seen.stacked(name)
    assert values is not None
    return values[:, :, 0].float().numpy()


def _numbers(values: Float[Tensor, "layer batch *rest"]) -> np.ndarray:
    """The one row of the batch, as numpy."""
    return values[:, 0].float().numpy()


def _some(values: Float[np.ndarray, "layer heads_or_1 key"], heads: Some) -> np.ndarray:
    """Of the heads that are kept, where heads differ."""
    return values if values.shape[1] == 1 else values[:, heads]


def _canvas(step: StepNumber) -> Int[Tensor, "batch position"]:
    if step.canvas is None:
        raise ObservationError(
            "the sampler does not say what its forwards read, so queries cannot be told apart; wrap each forward in "
            "`with at_step(StepNumber(index, canvas=ids, masked=masked))`, see docs/bring-your-own.md"
        )
    return step.canvas


def _newest(step: StepNumber) -> Bool[Tensor, "batch position"]:
    newest = torch.zeros_like(_canvas(step), dtype=torch.bool)
    newest[:, -1] = True
    return newest


def _masked(step: StepNumber, mask_id: int) -> Bool[Tensor, "batch position"]:
    return _canvas(step) == mask_id if step.masked is None else step.masked
