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
    masked: bool  # False at the first step of a run, which has no step before it
    removed: float  # share of a query's attention
    largest: float

    @property
    def ratio(self) -> float:
        return self.removed / self.largest if self.largest > 0 else float("nan")


def overall(doses: Iterable[Dose]) -> float:
    """Removed over largest, summed over all steps and layers in which something was denied; NaN if none was."""
    masked = [dose for dose in doses if dose.masked and dose.largest > 0]
    largest = sum(dose.largest for dose in masked)
    return sum(dose.removed for dose in masked) / largest if masked else float("nan")


def removed_and_largest(
    call: AttentionCall, paid: Received, denial: Denial | None, *, top: int
) -> Float[Tensor, " two"]:
    """Both means of one call; `call` holds the queries that are denied something, `paid` what they pay unmasked."""
    batch, _, queries, keys = call.scores.shape
    total = paid.total.masked_fill(~candidates(call, paid), 0.0)
    largest = total.topk(min(top, keys), dim=-1).values.sum(-1)
    removed = torch.zeros_like(largest) if denial is None else _removed(call, total, denial)
    counted = total.new_full((batch,), queries) if call.real_queries is None else call.real_queries.sum(-1)
    rows = counted > 0  # a row that has ended has no query left
    shares = torch.stack([removed, largest]).mean(-1) / counted.clamp(min=1)
    return (shares * rows).sum(-1) / rows.sum()


def _removed(call: AttentionCall, total: Tensor, denial: Denial) -> Float[Tensor, "batch head"]:
    if denial.spared is None or denial.spared.shape[2] == 1:
        return (total * denial.hidden[:, :, 0]).sum(-1)
    return (total * denial.listed).sum(-1) - _weights_at(call, denial.spared)


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
