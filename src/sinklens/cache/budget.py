"""From scores to what is kept: the best entries of every head under a count."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.errors import UsageError


def keep(
    scores: Float[Tensor, "batch kv_head entry"],
    count: int,
    *,
    positions: Int[Tensor, "batch kv_head entry"],
    real: Bool[Tensor, "batch kv_head entry"],
    first: int = 0,
    last: int = 0,
) -> Int[Tensor, "batch kv_head kept"]:
    """Indices of the `count` best entries of every head, ascending; all of them where there are fewer.

    The `first` oldest and `last` newest real entries come before all others, padding comes after all others, and of
    equal scores the lower position is kept. No index is given twice.

    >>> where = torch.arange(4)[None, None]
    >>> keep(torch.tensor([[[1.0, 3.0, 3.0, 2.0]]]), 2, positions=where, real=where >= 0)
    tensor([[[1, 2]]])
    """
    if count < 0:
        raise UsageError(f"count is {count}; expected how many entries to keep, 0 or more")
    if first + last > count:
        raise UsageError(f"first={first} and last={last} protect more entries than the {count} to keep")
    order = ranked(scores, positions=positions, real=real, first=first, last=last)
    return order[..., :count].sort(dim=-1).values


def ranked(
    scores: Float[Tensor, "batch kv_head entry"],
    *,
    positions: Int[Tensor, "batch kv_head entry"],
    real: Bool[Tensor, "batch kv_head entry"],
    first: int = 0,
    last: int = 0,
) -> Int[Tensor, "batch kv_head entry"]:
    """Indices of all entries of every head, those to be kept first."""
    if bool((scores.isnan() & real).any()):
        raise UsageError("the scores of a cache hold NaN, which has no place in an order; the order must give numbers")
    by_position = torch.where(real, positions, torch.iinfo(positions.dtype).max).argsort(dim=-1, stable=True)
    there = real.gather(-1, by_position)
    age = there.long().cumsum(-1)  # 1 for the oldest real entry
    protected = there & ((age <= first) | (age > age[..., -1:] - last))
    # Infinite scores stay within what is protected above and padding below them.
    finite = torch.finfo(scores.dtype)
    sorted_scores = scores.gather(-1, by_position).clamp(finite.min, finite.max)
    sorted_scores = sorted_scores.masked_fill(protected, torch.inf).masked_fill(~there, -torch.inf)
    best = sorted_scores.argsort(dim=-1, descending=True, stable=True)
    return by_position.gather(-1, best)
