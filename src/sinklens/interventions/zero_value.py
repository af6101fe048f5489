"""The values of sinks set to 0, with the attention weights as they are: what does a sink carry?"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from sinklens.interventions.masking import Masking
from sinklens.interventions.values import choice, zero


@dataclass(frozen=True, kw_only=True)
class ZeroValue:
    """Settings: `top` sinks chosen as `MaskSinks` does by default, or the keys `of` other settings."""

    top: Any = None
    of: Any = None  # MaskSinks(...) or a control

    def __post_init__(self) -> None:
        choice("ZeroValue", self.top, self.of)

    def start(self, model: nn.Module) -> Masking:
        """The intervention itself, which knows nothing yet."""
        return Masking(choice("ZeroValue", self.top, self.of), model, revalue=zero)
