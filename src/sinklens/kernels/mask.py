"""Attention masks as SDPA takes them, read a few query rows at a time.

A mask is boolean (True: may be seen) or a float that is added to the logits, and broadcasts to
[batch, head, query, key]. A float entry at or below HIDDEN means "may not be seen": that is how models write minus
infinity, and nothing is left of a softmax weight that far down.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.errors import UsageError

HIDDEN = -9999.0  # the lowest number of any dtype, -1e9 and BERT's -10000 are all below
AnyMask = Bool[Tensor, "..."] | Float[Tensor, "..."]


def may_see(mask: AnyMask) -> Bool[Tensor, "..."]:
    """Which entries of a mask may be seen."""
    return mask if mask.dtype == torch.bool else mask > HIDDEN


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskRows:
    """A mask and the causal flag, cut into rows of queries; nothing of size query x key is made from the flag."""

    mask: Tensor | None  # 4-D: batch or 1, head or 1, query or 1, key or 1
    is_causal: bool
    keys: int

    @classmethod
    def of(cls, mask: AnyMask | None, *, is_causal: bool, shape: tuple[int, int, int, int]) -> "MaskRows":
        """`shape` is [batch, head, query, key] of the call."""
        if mask is not None:
            given = tuple(mask.shape)
            mask = mask.reshape((1,) * (4 - mask.dim()) + given)
            fits = mask.dim() == 4 and all(size in (1, full) for size, full in zip(mask.shape, shape, strict=True))
            if not fits:
                raise UsageError(
                    f"a mask of shape {given} does not broadcast to [batch, head, query, key] = {list(shape)}"
                )
        return cls(mask=mask, is_causal=is_causal, keys=shape[3])

    @property
    def same_for_all_queries(self) -> bool:
        return not self.is_causal and (self.mask is None or self.mask.shape[2] == 1)

    def additive(self, start: int, stop: int) -> Tensor | None:
        """What is added to the logits of queries start..stop, where the mask is a float."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return None
        return self._rows(start, stop)

    def visible(self, start: int, stop: int, device: torch.device) -> Bool[Tensor, "b h q k"] | None:
        """Which keys queries start..stop may see; None: all of them."""
        seen = None if self.mask is None else may_see(self._rows(start, stop))
        if self.is_causal:
            rows = torch.arange(start, stop, device=device)[:, None]
            causal = (rows >= torch.arange(self.keys, device=device))[None, None]
            seen = causal if seen is None else seen & causal
        return seen

    def _rows(self, start: int, stop: int) -> Tensor:
        assert self.mask is not None
        return self.mask if self.mask.shape[2] == 1 else self.mask[:, :, start:stop]
