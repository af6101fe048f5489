"""Attention calls, looked at and narrowed: who sees what, one query alone, keys hidden."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from sinklens.attention.call import AttentionCall


def views(call: AttentionCall) -> Bool[Tensor, "batch head rows key"]:
    """Which keys every query may see; `rows` is 1 where all queries see the same. Nothing is copied along heads."""
    batch, heads, queries, keys = call.scores.shape
    mask = call.scores.mask_rows()
    rows = 1 if mask.same_for_all_queries else queries
    seen = mask.visible(0, rows, call.key.device)
    if seen is None:
        seen = torch.ones((), dtype=torch.bool, device=call.key.device)
    return seen.expand(batch, heads, rows, keys)


def looks_ahead(call: AttentionCall) -> bool:
    """True when a query may see a key that stands after it; padding neither looks nor is looked at."""
    if call.is_causal:
        return False
    seen, where = views(call)[:, 0], call.where_queries()
    if call.real_keys is not None:
        seen = seen & call.real_keys[:, None]
    if seen.shape[1] > 1 and call.real_queries is not None:
        seen = seen & call.real_queries[:, :, None]
    ahead = call.where_keys() > where[: seen.shape[1], None]  # where all see the same, the first query decides
    return bool((seen & ahead).any())


def sees_more_than(keys: int, call: AttentionCall) -> bool:
    """True when every real query sees more than so many keys."""
    enough = (views(call).sum(-1) > keys).all(1)
    return bool((enough if call.real_queries is None else enough | ~call.real_queries).all())


def hide(call: AttentionCall, hidden: Bool[Tensor, "batch head rows key"]) -> AttentionCall:
    """The call with minus infinity for the logits of hidden keys."""
    if call.is_causal:  # by place, and SDPA takes either the flag or a mask
        hidden = hidden | ~views(replace(call, mask=None))
    mask = call.mask
    if mask is None:
        mask = ~hidden
    elif mask.dtype == torch.bool:
        mask = mask & ~hidden
    else:
        mask = torch.where(hidden, -torch.inf, mask)
    return replace(call, mask=mask, is_causal=False)


def one_query(call: AttentionCall, index: int) -> AttentionCall:
    """The call with a single one of its queries (`index` from 0), which sees what it saw."""
    if call.query.shape[2] == 1:
        return call
    batch, heads, _, keys = call.scores.shape
    only = slice(index, index + 1)
    mask = call.scores.mask_rows().mask
    if mask is not None and mask.shape[2] > 1:
        mask = mask[:, :, only]
    row = replace(
        call,
        query=call.query[:, :, only],
        mask=mask,
        is_causal=False,
        query_positions=call.where_queries()[only],
        real_queries=None if call.real_queries is None else call.real_queries[:, only],
    )
    if not call.is_causal:
        return row
    later = torch.arange(keys, device=call.key.device) > index
    return hide(row, later.expand(batch, heads, 1, keys))
