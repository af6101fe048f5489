"""The values of sinks replaced by the mean of the visible values: does it matter what a sink carries?"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from sinklens.interventions.masking import Masking
from sinklens.interventions.values import average, choice


@dataclass(frozen=True, kw_only=True)
class MeanValue:
    """Settings: `top` sinks chosen as `MaskSinks` does by default, or the keys `of` other settings."""

    top: Any = None
    of: Any = None  # MaskSinks(...) or a control

    def __post_init__(self) -> None:
        choice("MeanValue", self.top, self.of)

    def start(self, model: nn.Module) -> Masking:
        """The intervention itself, which knows nothing yet."""
        return Masking(choice("MeanValue", self.top, self.of), model, revalue=average)
