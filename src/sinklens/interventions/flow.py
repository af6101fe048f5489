"""Where the attention goes that a mask takes away.

With the keys' logits at minus infinity the weights of all other keys grow. What they gain, summed over the queries that
are denied something, is told apart by where it lands, each key counted once, in this order:

    neighbours    within NEAR positions of a denied key
    next_ranked   as many keys as were denied, the highest of the rest before the mask
    others        the rest, padding included where a model lets it be seen
    null          the null term of the softmax, where the model has one

The four add up to `removed` of the dose. `new_sinks` is the share of heads in which a key rises above epsilon that was
not above it before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.interventions.dose import per_query, spared_mass
from sinklens.interventions.ranking import Denial, attention_paid, candidates
from sinklens.kernels.received import Received
from sinklens.sinks.detect import excess

NEAR = 2
EPSILON = 3.0  # fair shares above the others' mean
PARTS = ("neighbours", "next_ranked", "others", "null", "new_sinks")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The removed attention of one layer at one step, as shares of a query's attention; means over heads and rows."""

    run: int
    step: int
    layer: int
    neighbours: float
    next_ranked: float
    others: float
    null: float
    new_sinks: float  # share of heads and rows

    @property
    def removed(self) -> float:
        return self.neighbours + self.next_ranked + self.others + self.null


def shares(flows: Iterable[Flow]) -> dict[str, float]:
    """The parts of what was removed in all, which add up to 1, and the mean of `new_sinks`; NaN where nothing was."""
    counted = [flow for flow in flows if not isnan(flow.removed)]
    total = sum(flow.removed for flow in counted)
    found = {
        name: sum(getattr(flow, name) for flow in counted) / total if total > 0 else float("nan") for name in PARTS[:-1]
    }
    new = sum(flow.new_sinks for flow in counted) / len(counted) if counted else float("nan")
    return found | {"new_sinks": new}


def redistributed(
    call: AttentionCall, masked: AttentionCall, paid: Received, *, denial: Denial, epsilon: float
) -> Float[Tensor, " parts"]:
    """The five means; `call` and `masked` hold the queries that are denied something, before and after."""
    now = attention_paid(masked)
    real = candidates(call, paid)
    gain = torch.where(denial.listed, 0.0, now.total - paid.total)
    near = _near(call, denial.listed) & real & ~denial.listed
    free = real & ~denial.listed & ~near
    ranked = paid.total.masked_fill(~free, -torch.inf).argsort(dim=-1, descending=True).argsort(dim=-1)
    following = free & (ranked < denial.listed.sum(-1, keepdim=True))
    parts = [(gain * where).sum(-1) for where in (near, following, ~near & ~following)]
    before = paid.total.masked_fill(~real, 0.0)  # a query that sees nothing else pays all to the key it keeps
    parts[2] = parts[2] + (now.total * denial.listed).sum(-1) - spared_mass(call, before, denial)
    nulls = [one.sums.null_mass for one in (now, paid)]
    parts.append(torch.zeros_like(parts[0]) if nulls[0] is None or nulls[1] is None else nulls[0] - nulls[1])
    new = _above(now, candidates(masked, now), epsilon) & ~_above(paid, real, epsilon)
    counted = call.query.shape[2] if call.real_queries is None else call.real_queries.sum(-1)[:, None]
    return per_query(call, torch.stack([*parts, new.any(-1).to(parts[0].dtype) * counted]))


def _near(call: AttentionCall, listed: Bool[Tensor, "batch head key"]) -> Bool[Tensor, "batch head key"]:
    where = call.where_keys()
    close = (where[:, None] - where).abs() <= NEAR
    return (listed.to(torch.float32) @ close.to(torch.float32)) > 0


def _above(paid: Received, real: Tensor, epsilon: float) -> Bool[Tensor, "batch head key"]:
    over = excess(torch.where(real, paid.total, torch.nan), paid.expected) > epsilon
    found: Tensor = over
    return found
