"""The orders: a score for every entry of a layer, in float32; the highest are kept.

low         - |k|                    the method: a low key norm goes with much attention (Devoto et al. 2024)
high        |k|                      its opposite
random      uniform                  by seed, row, event, layer, position and head
recent      position                 a window
streaming   the first 4, then recent (Xiao et al. 2024)
fastgen     special tokens and punctuation, then recent (the attention-free part of Ge et al. 2024)
keydiff     - cos(k, mean of k / |k|)   (Park et al. 2025)
expected    E[attention of coming queries] x |v|, the first 4 always (Devoto et al. 2025)
received    attention received so far, mean over the queries that have seen the entry (as H2O, Zhang et al. 2023)
value       |v|
key_value   |v| / |k|                the method's score for attention times what the entry carries
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.cache.draws import noise, since_first
from sinklens.cache.entries import Entries
from sinklens.cache.settings import ORDERS, SINKS
from sinklens.errors import UsageError, choose

Scored = Float[Tensor, "batch kv_head entry"]


def score(
    order: str, entries: Entries, *, seed: int | tuple[int, ...] = 0, event: "int | Int[Tensor, ' batch']" = 0
) -> Scored:
    """Scores of an order by its name; `seed` and `event` (one number for all rows, or one each) are for "random"."""
    choose("order", order, ORDERS)
    if order == "random":
        return noise(entries, seed=seed, event=event)
    return _BY_NAME[order](entries).float()


def norms(vectors: Float[Tensor, "batch kv_head entry dim"]) -> Scored:
    """L2 norms, summed in float32: in bf16 most of them would tie."""
    found: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.promote_types(vectors.dtype, torch.float32))
    return found


def low(entries: Entries) -> Scored:
    return -norms(entries.keys)


def high(entries: Entries) -> Scored:
    return norms(entries.keys)


def recent(entries: Entries) -> Scored:
    return since_first(entries).float()


def streaming(entries: Entries) -> Scored:
    age = entries.real.long().cumsum(-1)  # 1 for the oldest
    newest = recent(entries)
    above = newest.amax(-1, keepdim=True) + 1.0
    return torch.where(entries.real & (age <= SINKS), above + SINKS - age, newest)


def fastgen(entries: Entries) -> Scored:
    if entries.marked is None:
        raise UsageError("order='fastgen' needs to know which entries are special tokens or punctuation (marked)")
    newest = recent(entries)
    return newest + entries.marked * (newest.amax(-1, keepdim=True) + 1.0)


def keydiff(entries: Entries) -> Scored:
    """Padding does not take part in the mean."""
    keys, real = entries.keys.float(), entries.real[..., None]
    directions = F.normalize(keys, p=2.0, dim=-1) * real
    anchor = directions.sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)
    return -F.cosine_similarity(keys, anchor, dim=-1)


def expected(entries: Entries) -> Scored:
    """Queries to come as a Gaussian: E[exp(q k)] = exp(mean k + k cov k / 2), normalised over the entries."""
    queries = entries.queries
    if queries is None:
        raise UsageError("order='expected' needs statistics of the queries so far (queries)")
    keys = entries.keys.float()
    batch, kv_heads, _, dim = keys.shape
    mean = queries.mean.float().view(batch, kv_heads, -1, dim)
    covariance = queries.covariance.float().view(batch, kv_heads, -1, dim, dim)
    sinks = entries.real & (entries.real.long().cumsum(-1) <= SINKS)
    counted = entries.real & ~sinks
    weights = torch.zeros_like(keys[..., 0])
    for member in range(
        mean.shape[2]
    ):  # one query head of every group at a time: the products are as large as the keys
        logits = (keys @ mean[:, :, member, :, None]).squeeze(-1) * queries.scale
        logits += ((keys @ covariance[:, :, member]) * keys).sum(-1) * (queries.scale**2 / 2)
        weights += logits.masked_fill(~counted, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    scores = weights / mean.shape[2] * norms(entries.values)
    return torch.where(sinks, torch.inf, scores)


def received(entries: Entries) -> Scored:
    if entries.received is None:
        raise UsageError("order='received' needs the attention that the entries have received so far (received)")
    return entries.received


def value(entries: Entries) -> Scored:
    return norms(entries.values)


def key_value(entries: Entries) -> Scored:
    return norms(entries.values) / norms(entries.keys).clamp(min=torch.finfo(torch.float32).tiny)


_BY_NAME: dict[str, Callable[[Entries], Tensor]] = {
    "low": low,
    "high": high,
    "recent": recent,
    "streaming": streaming,
    "fastgen": fastgen,
    "keydiff": keydiff,
    "expected": expected,
    "received": received,
    "value": value,
    "key_value": key_value,
}
