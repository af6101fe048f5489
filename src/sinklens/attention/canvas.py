"""Where the keys of a call stand on the canvas, and how its numbers are laid out there."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall


@dataclass(frozen=True, kw_only=True, eq=False)
class Canvas:
    """Where the keys of a call stand on the canvas."""

    positions: Tensor | None  # None: key j stands at j
    width: int
    real: Tensor | None

    @classmethod
    def of(cls, call: AttentionCall, width: int | None) -> "Canvas":
        keys = call.key.shape[2]
        positions = call.key_positions
        last = keys if positions is None else int(positions.max()) + 1
        width = max(last, width or 0)
        if positions is not None and last == keys:
            positions = None
        if positions is None and width > keys:
            positions = torch.arange(keys, device=call.key.device)
        return cls(positions=positions, width=width, real=call.real_keys)

    def put(self, values: Float[Tensor, "*any key"]) -> Float[Tensor, "*any canvas"]:
        if self.positions is None:
            return values
        wide = values.new_zeros((*values.shape[:-1], self.width))
        wide[..., self.positions] = values
        return wide

    def put_or_none(self, values: Tensor | None) -> Tensor | None:
        return None if values is None else self.put(values)

    def hide_padding(self, values: Float[Tensor, "*any batch heads key"]) -> Float[Tensor, "*any batch heads canvas"]:
        """Padding is 0 (and so NaN in the fair share)."""
        if self.real is not None:
            values = torch.where(self.real[:, None], values, 0.0)
        return self.put(values)
