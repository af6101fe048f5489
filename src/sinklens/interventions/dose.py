"""How much attention an intervention really takes away.

    removed = attention that the denied keys would have received at this step, a query
    largest = the most that as many keys of a head would have received, a query
    dose    = removed / largest

both read before the mask, over the queries that are denied something, as a mean over heads and rows of the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.interventions.ranking import Denial, candidates
from sinklens.interventions.views import views
from sinklens.kernels.received import Received
from sinklens.kernels.reference import probabilities
from sinklens.kernels.scores import Scores


@dataclass(frozen=True, kw_only=True)
class Dose:
    """The dose of one layer at one step."""

    run: int  # generations under one context, from 0
    step: int
    layer: int
    masked: bool  # False where no targets are known yet, as at the first step of a run
    removed: float  # share of a query's attention
    largest: float
    keys: float  # denied, a head
    dropped: bool = False  # the keys were dropped from the call, which is the same and needs no mask

    @property
    def ratio(self) -> float:
        return self.removed / self.largest if self.largest > 0 else float("nan")


def overall(doses: Iterable[Dose]) -> float:
    """Removed over largest, summed over all steps and layers in which something was denied; NaN if none was."""
    masked = [dose for dose in doses if dose.masked and dose.largest > 0]
    largest = sum(dose.largest for dose in masked)
    return sum(dose.removed for dose in masked) / largest if masked else float("nan")


def dose_means(
    call: AttentionCall, paid: Received, denial: Denial | None, *, top: int | None
) -> Float[Tensor, " three"]:
    """Removed, largest and the number of keys; `call` holds the queries that are denied something, `paid` what they
    pay unmasked. `top` None: the largest is that of as many keys as the head is denied."""
    queries, keys = call.scores.shape[2:]
    real = candidates(call, paid)
    total = paid.total.masked_fill(~real, 0.0)
    removed = total.new_zeros(total.shape[:2]) if denial is None else _removed(call, total, denial)
    count = torch.zeros_like(removed) if denial is None else (denial.listed & real).sum(-1).to(removed.dtype)
    if top is None:
        sums = torch.nn.functional.pad(total.sort(dim=-1, descending=True).values.cumsum(-1), (1, 0))
        largest = sums.gather(-1, count.long()[..., None]).squeeze(-1)
    else:
        largest = total.topk(min(top, keys), dim=-1).values.sum(-1)
    counted = queries if call.real_queries is None else call.real_queries.sum(-1)[:, None]
    return per_query(call, torch.stack([removed, largest, count * counted]))


def per_query(call: AttentionCall, sums: Float[Tensor, "part batch head"]) -> Float[Tensor, " part"]:
    """Sums over the real queries of a call, divided by their number: means over heads and rows."""
    batch, _, queries, _ = call.scores.shape
    counted = sums.new_full((batch,), queries) if call.real_queries is None else call.real_queries.sum(-1)
    rows = counted > 0  # a row that has ended has no query left
    shares = sums.mean(-1) / counted.clamp(min=1)
    return (shares * rows).sum(-1) / rows.sum()


def _removed(call: AttentionCall, total: Tensor, denial: Denial) -> Float[Tensor, "batch head"]:
    return (total * denial.listed).sum(-1) - spared_mass(call, total, denial)


def spared_mass(
    call: AttentionCall, total: Float[Tensor, "batch head key"], denial: Denial
) -> Float[Tensor, "batch head"]:
    """What queries pay, before the mask, to the listed keys that they keep because they see no other."""
    if denial.spared is None:
        return total.new_zeros(total.shape[:2])
    if denial.spared.shape[2] == 1:
        return (total * denial.spared[:, :, 0]).sum(-1)
    return _weights_at(call, denial.spared)


def _weights_at(call: AttentionCall, entries: Bool[Tensor, "batch head query key"]) -> Float[Tensor, "batch head"]:
    """Attention weights at single entries, added up over real queries; each is in a query that sees few keys."""
    scores, dtype = call.scores, torch.promote_types(call.query.dtype, torch.float32)
    sums = call.query.new_zeros(scores.shape[:2], dtype=dtype)
    if call.real_queries is not None:
        entries = entries & call.real_queries[:, None, :, None]
    row, head, query, key = (index[:, None] for index in entries.nonzero(as_tuple=True))
    if not row.numel():
        return sums
    seen = views(call)[row, head, query].squeeze(1)
    index = seen.int().topk(int(seen.sum(-1).max()), dim=-1).indices
    visible = seen.gather(-1, index)
    mask = scores.mask_rows().mask
    if mask is not None and mask.dtype != torch.bool:
        visible = torch.where(visible, mask.expand(scores.shape)[row, head, query, index], -torch.inf)
    weights, _ = probabilities(  # every entry as a head of its own
        Scores(
            query=call.query[row, head, query][None],
            key=call.key[row, head // scores.per_kv, index][None],
            mask=visible[None, :, None],
            scale=scores.softmax_scale,
            softcap=scores.softcap,
            sink_logits=None if scores.sink_logits is None else scores.sink_logits[head[:, 0]],
        ),
        dtype=dtype,
    )
    at_entry = (weights[0, :, 0] * (index == key)).sum(-1)
    return sums.index_put((row[:, 0], head[:, 0]), at_entry, accumulate=True)
