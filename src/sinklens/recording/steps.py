"""One run, step by step, as numbers for the rows of a trace.

What an observer has seen of a step is handed on and forgotten, so memory holds few steps at a time; steps that are not
kept run unobserved. Queries are told apart in the same pass: masked from unmasked ones on a canvas, the newest one in
an autoregressive run.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber
from sinklens.attention.observation import Observation, StepObservation
from sinklens.attention.observe import observe
from sinklens.attention.outbox import Arriving, Courier
from sinklens.errors import ObservationError
from sinklens.recording.rows import NORMS, SUMS, AttentionNumbers, StepNumbers
from sinklens.recording.wanted import Wanted
from sinklens.sampling.generate import steps
from sinklens.sampling.step import Sampler, Step

ANY_SIZE = 2**62  # of maps: they are written and forgotten step by step


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
        self.canvas: Int[np.ndarray, " position"] = np.array(prompt)
        self._run = steps(model, [prompt], sampler, seed=seed, graph=graph)
        self._causal: bool = model.spec.causal
        self._graph = graph
        self._index = 0
        self._courier = Courier()
        self._open = ExitStack()  # the observer's context
        self._seen: Observation | None = None
        self._asked: object = None  # what it was entered for

    def numbers(self) -> Generator[AbstractContextManager[StepNumbers]]:
        """One entry a forward, as it happens: its numbers, to be entered once, after those before it.

        That may be done while the run goes on, in another thread. Arrays are gone when the context closes.
        """
        try:
            with ExitStack() as self._open:
                while True:
                    began = time.monotonic()
                    step, seen = self._advance()
                    decided = self._courier.send(step.canvas[0], step.committed[0], step.confidence[0])
                    seconds = time.monotonic() - began
                    yield self._numbers(self._index, step, decided, seen, seconds=seconds)
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
        if not (self._causal or self.wanted.stores(self._index)):
            return step, None
        if self._causal:  # a cache is fed by a part of the model, whose forward ends when the next one begins
            seen.steps[0].pack()
        return step, seen.steps[0]

    def _observer(self) -> Observation | None:
        """What observes this step: the same as the last one as long as the same is asked; entering one takes time.

        So does capturing a graph of what it measures: there steps that are not kept are observed too.
        """
        stored = self._graph or self.wanted.stores(self._index)
        maps = tuple(self.wanted.maps_at(self._index))
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

    @contextmanager
    def _numbers(
        self, index: int, step: Step, decided: Arriving, seen: StepObservation | None, *, seconds: float
    ) -> Iterator[StepNumbers]:
        canvas, committed, confidence = (tensor.numpy() for tensor in decided())
        self.canvas = canvas
        with nullcontext() if seen is None else seen.lent() as lent:
            yield StepNumbers(
                index=index,
                canvas=canvas,
                committed=committed,
                confidence=confidence,
                block=_ends(step.block),
                computed=_ends(step.computed),
                seconds=seconds,
                attention=None if lent is None else self._attention(lent, maps=bool(self.wanted.maps_at(index))),
            )

    def _attention(self, seen: StepObservation, *, maps: bool) -> AttentionNumbers:
        outline = seen.outline
        arrays = {name: seen.stacked(name) for name in (*SUMS.values(), *NORMS)}
        return AttentionNumbers(
            arrays={name: values.float().numpy() for name, values in arrays.items() if values is not None},
            hidden=seen.hidden_norm.numpy() if seen.blocks == self.model.spec.layers else None,
            maps={where: values[0].numpy() for where, values in seen.maps.items()} if maps else {},
            null_mass=seen.null_mass.numpy() if any(record.null_mass is not None for record in outline) else None,
            groups=outline[0].group_names,
            queries=outline[0].queries,
            impl=", ".join(sorted({record.impl for record in outline})),
            kernel=", ".join(sorted({record.kernel for record in outline})),
        )


def _ends(positions: range | None) -> tuple[int, int] | None:
    return None if positions is None else (positions.start, positions.stop)


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
