"""The step a forward belongs to, as samplers announce it.

A sampler wraps each forward in `with at_step(...)`; observers, interventions and query groups read
`current_step()`. Outside a sampler it is None, and each observer counts forwards itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jaxtyping import Bool, Int
from torch import Tensor


class StepNumber(int):
    """The number of a step, which also knows what the sampler knows: `canvases[step]`, `step.masked`."""

    canvas: Int[Tensor, "batch position"] | None  # ids before the step
    masked: Bool[Tensor, "batch position"] | None  # which of them are still masked
    block: range | None  # positions of the block being filled, where there are blocks
    rows: int | None  # only the first `rows` rows are the run; the rest is guidance. None: all
    computed: range | None  # positions that the forward computes, the rest being cached; None: there is no cache

    def __new__(
        cls,
        number: int,
        *,
        canvas: "Int[Tensor, 'batch position'] | None" = None,
        masked: "Bool[Tensor, 'batch position'] | None" = None,
        block: range | None = None,
        rows: int | None = None,
        computed: range | None = None,
    ) -> "StepNumber":
        self = super().__new__(cls, number)
        self.canvas, self.masked, self.block, self.rows = canvas, masked, block, rows
        self.computed = computed
        return self

    def computing(self, positions: range) -> "StepNumber":
        """The same step, of a forward that computes these positions."""
        return StepNumber(
            self, canvas=self.canvas, masked=self.masked, block=self.block, rows=self.rows, computed=positions
        )


_step: ContextVar[StepNumber | None] = ContextVar("sinklens_step", default=None)


def current_step() -> StepNumber | None:
    return _step.get()


@contextmanager
def at_step(step: StepNumber) -> Iterator[None]:
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)
