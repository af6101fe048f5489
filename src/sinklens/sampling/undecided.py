"""The positions that a step may decide, and what the host has to know of them.

On a processor they are picked out one by one. A card would have to tell how many they are before anything behind its
forward could be launched, and would stand still meanwhile; there a whole window of positions is computed, those that
are decided already included, and left alone afterwards. What the host must know all the same is asked for before a
forward and read while it runs, or behind it and read when it has come: nothing waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from sinklens.errors import ModelError
from sinklens.sampling.predicted import Predicted


@dataclass(frozen=True, kw_only=True, eq=False)
class Undecided:
    """Some positions of a canvas: picked out, or as a window in which they lie. A `place` is one of either."""

    where: Bool[Tensor, "batch position"]
    window: range | None  # None: picked out

    def among(self, positions: range) -> "Undecided":
        """The same, all of them being among `positions`: the window need not reach beyond."""
        if self.window is None:
            return self
        start, stop = max(self.window.start, positions.start), min(self.window.stop, positions.stop)
        return Undecided(where=self.where, window=range(start, stop))

    def logits(self, predicted: Predicted) -> Float[Tensor, "*place vocab"]:
        """Of every place; of a window, the very logits of the model."""
        return predicted.at(self.where) if self.window is None else predicted.within(self.window)

    def of(self, values: Shaped[Tensor, "batch position *rest"]) -> Shaped[Tensor, "*place_and_rest"]:
        """The values of every place."""
        return values[self.where] if self.window is None else values[:, self.window.start : self.window.stop]

    def put(
        self, values: Shaped[Tensor, "*place"], onto: Shaped[Tensor, "batch position"]
    ) -> Shaped[Tensor, "batch position"]:
        """A copy of `onto` with `values` at the positions themselves."""
        if self.window is None:
            return onto.masked_scatter(self.where, values)
        there = onto.clone()
        part = there[:, self.window.start : self.window.stop]
        part.copy_(torch.where(self.of(self.where), values, part))
        return there

    def spread(self, values: Shaped[Tensor, "*place"], *, outside: float) -> Shaped[Tensor, "batch position"]:
        """`values` at the positions themselves, and `outside` elsewhere."""
        return self.put(values, torch.full(self.where.shape, outside, dtype=values.dtype, device=values.device))


def on_card(values: Tensor) -> bool:
    return values.is_cuda


def asked(value: Shaped[Tensor, ""]) -> Callable[[], Any]:
    """A number on its way to the host, in the order of what is launched; the call waits for it."""
    if not on_card(value):
        return value.item
    place = torch.empty((), dtype=value.dtype, pin_memory=True)
    place.copy_(value, non_blocking=True)
    arrived: Any = torch.cuda.current_stream(value.device).record_event()

    def wait() -> Any:
        arrived.synchronize()
        return place.item()

    wait.ready = arrived.query  # type: ignore[attr-defined]
    return wait


class Usable:
    """Looks whether tokens could be chosen at all: a ModelError, of a step on a card some steps later."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Any]] = deque()

    def look(self, best: Float[Tensor, "*any"], step: int) -> None:
        """NaN in `best`: the logits of `step` held something that is no number."""
        if best.numel() == 0:
            return
        answer = asked(best.amax())
        if not on_card(best):
            _refuse_unusable(answer(), step)
            return
        self._waiting.append((step, answer))
        while self._waiting and self._waiting[0][1].ready():
            self._check()

    def end(self) -> None:
        """After the last step."""
        while self._waiting:
            self._check()

    def _check(self) -> None:
        step, answer = self._waiting.popleft()
        _refuse_unusable(answer(), step)


def refuse_unusable(logits: Float[Tensor, "*place vocab"], step: int) -> None:
    """A ModelError, at once, where a row has no finite greatest logit: NaN, +inf, or nothing but -inf."""
    if logits.numel():
        _refuse_unusable(float((logits.amax(dim=-1) * 0).amax()), step)


def _refuse_unusable(best: float, step: int) -> None:
    if isnan(best):
        raise ModelError(
            f"the logits of step {step} hold NaN or infinite values at positions to be decided, so no token "
            "can be chosen; check the weights, or load the model in float32"
        )
