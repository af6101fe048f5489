"""Logits of one forward, told by the position they are for."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """Logits for some positions of the canvas, those that may be decided among them."""

    logits: Float[Tensor, "rows position vocab"]  # as the model gives them
    positions: range  # that they stand at
    shift: bool = False  # those at p are for p + 1, and position 0 keeps its own
    computed: range | None = None  # by the forward; None: the whole canvas

    @property
    def targets(self) -> range:
        """The positions that they are for."""
        start, stop = self.positions.start, self.positions.stop
        return range(start + 1, stop) if self.shift and start > 0 else self.positions

    def at(self, where: Bool[Tensor, "rows canvas"]) -> Float[Tensor, " row vocab"]:
        """A copy of the logits for the True positions, row-major."""
        return self.within(self.targets)[where[:, self.targets.start : self.targets.stop]]

    def within(self, window: range) -> Float[Tensor, "rows window vocab"]:
        """The logits for a window of the targets: no copy, unless they have to be moved at position 0."""
        first = window.start - self.positions.start - self.shift
        if first < 0:
            return torch.cat([self.logits[:, :1], self.logits[:, : len(window) - 1]], dim=1)
        return self.logits[:, first : first + len(window)]
