"""The positions that a step may decide, asked for before its forward and known while the forward runs.

How many there are decides the shapes of what follows, so the host has to know. Asked behind the forward, a card would
stand still until the answer has reached the host and the next kernels have come back. Asked before it, the answer is
there long before the forward ends, and the host is always ahead of the card. So too for logits that cannot be used: of
a step on a card it is known with the next one's positions, or at the end of the run.
"""

from collections.abc import Callable
from functools import cached_property
from math import isnan

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from sinklens.attention.outbox import Courier
from sinklens.errors import ModelError


class Undecided:
    """Positions of a canvas, one row behind the other. What is made of each of them is a `row`."""

    def __init__(self, where: Bool[Tensor, "batch position"], answer: Callable[[], int]) -> None:
        self.where, self._answer = where, answer

    @cached_property
    def count(self) -> int:
        """Waits for the answer."""
        return self._answer()

    @cached_property
    def places(self) -> Int[Tensor, " row"]:
        """In the flattened canvas."""
        flat = self.where.flatten()
        if not _on_card(flat):
            return flat.nonzero().flatten()
        return flat.byte().argsort(descending=True, stable=True)[: self.count]  # nothing waits for a sort

    def of(self, values: Shaped[Tensor, "batch position *rest"]) -> Shaped[Tensor, " row *rest"]:
        """A copy of the values there."""
        return values.flatten(0, 1).index_select(0, self.places)

    def put(
        self, values: Shaped[Tensor, " row"], canvas: Shaped[Tensor, "batch position"]
    ) -> Shaped[Tensor, "batch position"]:
        """A copy of the canvas with `values` there."""
        return canvas.flatten().scatter(0, self.places, values).view(canvas.shape)

    def spread(self, values: Shaped[Tensor, " row"], *, outside: float) -> Shaped[Tensor, "batch position"]:
        """`values` there, and `outside` elsewhere."""
        return self.put(values, torch.full(self.where.shape, outside, dtype=values.dtype, device=values.device))


class Deciding:
    """What one run asks of its card."""

    def __init__(self) -> None:
        self._courier = Courier()
        self._last: tuple[int, Tensor] | None = None  # a step, and 0 where its logits can be used, else NaN

    def ask(self, where: Bool[Tensor, "batch position"]) -> Undecided:
        """Before the forward of a step."""
        last, self._last = self._last, None
        arriving = self._courier.send(where.sum(), *(() if last is None else last[1:]))

        def answer() -> int:
            count, *usable = arriving()
            if last is not None:
                _refuse_unusable(float(usable[0]), last[0])
            return int(count)

        return Undecided(where, answer)

    def look(self, best: Float[Tensor, " row"], step: int, *, now: bool = False) -> None:
        """At the greatest logit of every row: a ModelError where there is no finite one (NaN, +inf, or all -inf).

        Raised by a later call where the logits are on a card, unless `now`.
        """
        usable = (best * 0).sum()
        if now or not _on_card(best):
            _refuse_unusable(float(usable), step)
        else:
            self._last = (step, usable)

    def end(self) -> None:
        """After the last step."""
        if self._last is not None:
            step, usable = self._last
            self._last = None
            _refuse_unusable(float(usable), step)


def refuse_unusable(logits: Float[Tensor, "row vocab"], step: int) -> None:
    """`Deciding.look` at once, where there is no run."""
    if logits.shape[0]:
        _refuse_unusable(float((logits.amax(dim=-1) * 0).sum()), step)


def _on_card(values: Tensor) -> bool:
    return values.is_cuda


def _refuse_unusable(usable: float, step: int) -> None:
    if isnan(usable):
        raise ModelError(
            f"the logits of step {step} hold NaN or infinite values at positions to be decided, so no token "
            "can be chosen; check the weights, or load the model in float32"
        )
