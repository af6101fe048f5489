"""Checks on what is given to a model, shared by native and transformers models.

Each costs one comparison over the ids (a synchronisation on a GPU), against an out-of-range read in the
embedding that a GPU reports far from its cause, or not at all.
"""

import warnings
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.attention.capture import capturing
from sinklens.errors import UsageError
from sinklens.types import ModelSpec


def check_ids(ids: Any, vocab_size: int) -> None:
    """Refuse ids that are not a non-empty integer [batch, query] below `vocab_size`."""
    if not isinstance(ids, Tensor):
        raise UsageError(
            f"ids are a {type(ids).__name__}; expected a tensor [batch, query], such as torch.tensor([[1, 2, 3]])"
        )
    if ids.dim() != 2:
        raise UsageError(f"ids have shape {list(ids.shape)}; expected [batch, query]: for one prompt, ids[None]")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise UsageError(f"ids are {ids.dtype}; expected integer token ids (torch.long)")
    if ids.numel() == 0:
        raise UsageError(f"ids are empty (shape {list(ids.shape)}); a prompt needs at least one token")
    if not capturing() and bool(((ids < 0) | (ids >= vocab_size)).any()):
        low, high = int(ids.min()), int(ids.max())
        raise UsageError(
            f"ids reach from {low} to {high}; this model accepts 0 to {vocab_size - 1}: "
            "were they made by another model's tokenizer?"
        )


def real_tokens(attention_mask: Any, shape: torch.Size, *, what: str = "ids") -> Bool[Tensor, "batch key"] | None:
    """Where `attention_mask` says there is a token; None when it says so everywhere (no mask at all)."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        raise UsageError(
            f"attention_mask is a {type(attention_mask).__name__}; expected a tensor of the shape of the {what}"
        )
    if attention_mask.shape != shape:
        raise UsageError(
            f"attention_mask has shape {list(attention_mask.shape)}; expected that of the {what}, {list(shape)}"
        )
    if capturing():  # whoever captures has asked all this, and gives no mask that is 1 everywhere
        return attention_mask.bool()
    check_zeros_and_ones(attention_mask)
    real = attention_mask.bool()
    if bool(real.all()):
        return None
    if not bool(real.any(dim=1).all()):
        row = int((~real.any(dim=1)).nonzero()[0, 0])
        raise UsageError(
            f"attention_mask is 0 all along row {row}; expected at least one token in each row: drop empty rows"
        )
    return real


def check_zeros_and_ones(attention_mask: Tensor) -> None:
    """Any dtype will do; other values, such as those of a mask that is added to scores, will not."""
    if bool(((attention_mask != 0) & (attention_mask != 1)).any()):
        raise UsageError(
            f"attention_mask ({attention_mask.dtype}) holds values other than 0 and 1; expected 1 for a token and "
            "0 for padding"
        )


def positions_of(real: Bool[Tensor, "batch key"]) -> Int[Tensor, "batch key"]:
    """0, 1, 2, ... over the tokens of each row; 1 at padding, which nothing reads."""
    return (real.long().cumsum(dim=1) - 1).masked_fill(~real, 1)


def check_length(length: int, spec: ModelSpec, *, warned: bool) -> bool:
    """Refuse input longer than a learned position table; warn (once) past what a rotary model promises.

    Returns whether the model has warned by now.
    """
    if spec.max_length is None or length <= spec.max_length:
        return warned
    if spec.learned_positions:
        raise UsageError(
            f"{length} positions; {spec.family} has a learned table of {spec.max_length}: shorten the input"
        )
    if not warned:
        warnings.warn(
            f"{length} positions; the config of this {spec.family} model promises {spec.max_length}: "
            "rotary positions go on, quality may not",
            UserWarning,
            stacklevel=5,  # past torch.nn.Module.__call__, to whoever called the model
        )
    return True
