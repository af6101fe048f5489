"""How much attention an intervention takes from the queries whose predictions are scored.

    removed = attention that a query would have paid, at this step, to the keys it is denied
    largest = the most that as many keys (`top`, else as many as it is denied) would have got from it
    dose    = removed / largest, both summed over layers, heads and queries

As in interventions/dose.py, but for every query alone, and for scored queries only: so that a text in one forward, the
same text one token at a time, with cached keys and with recomputed ones, all have doses of the same kind.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.interventions.values import own_heads
from sinklens.interventions.views import views
from sinklens.kernels.reference import probabilities


class Metered:
    """An intervention, and what it takes from the queries at position `first` and later, or from the newest alone."""

    def __init__(
        self, change: Callable[[AttentionCall], AttentionCall], *, top: int | None, first: int, newest: bool
    ) -> None:
        self._change, self._top, self._first, self._newest = change, top, first, newest
        self._means: list[Float[Tensor, " three"]] = []  # one a layer and forward in which something was denied

    def __call__(self, call: AttentionCall) -> AttentionCall:
        changed = self._change(call)
        if changed is not call:
            with torch.no_grad():
                self._note(call, changed)
        return changed

    @property
    def dose(self) -> float | None:
        """None where nothing was denied."""
        removed, largest, _ = self._sums()
        return removed / largest if largest > 0 else None

    @property
    def removed(self) -> float | None:
        """As a share of a query's attention."""
        return self._sums()[0] / len(self._means) if self._means else None

    @property
    def keys(self) -> float | None:
        """Denied, a head and query."""
        return self._sums()[2] / len(self._means) if self._means else None

    def _sums(self) -> tuple[float, float, float]:
        if not self._means:
            return 0.0, 0.0, 0.0
        removed, largest, keys = torch.stack(self._means).double().sum(0).tolist()
        return removed, largest, keys

    def _note(self, call: AttentionCall, changed: AttentionCall) -> None:
        where = call.where_queries()
        scored = where >= (where[-1] if self._newest else self._first)
        if int(where[-1]) < self._first:
            return
        weights, denied = _weights(call, scored), _denied(call, changed)[:, :, scored]
        counts = denied.sum(-1)
        if self._top is None:
            sums = F.pad(weights.sort(dim=-1, descending=True).values.cumsum(-1), (1, 0))
            largest = sums.gather(-1, counts[..., None]).squeeze(-1)
        else:
            largest = weights.topk(min(self._top, weights.shape[-1]), dim=-1).values.sum(-1)
        parts = ((weights * denied).sum(-1), largest, counts.to(weights.dtype))
        self._means.append(torch.stack([part.mean() for part in parts]))


def _weights(call: AttentionCall, scored: Bool[Tensor, " query"]) -> Float[Tensor, "batch head scored key"]:
    """The attention map of some queries, before the intervention."""
    mask = call.mask if call.mask is not None and call.mask.dtype != torch.bool and not call.is_causal else views(call)
    rows = replace(call.scores, query=call.query[:, :, scored], mask=mask[:, :, scored], is_causal=False)
    return probabilities(rows, dtype=torch.promote_types(call.query.dtype, torch.float32))[0]


def _denied(call: AttentionCall, changed: AttentionCall) -> Bool[Tensor, "batch head query key"]:
    """Which entries of the attention map are lost: their logit, or the value behind them."""
    seen = views(call).expand(call.scores.shape)
    if changed.value is call.value:
        return seen & ~views(changed)
    return seen & (changed.value != own_heads(call).value).any(-1)[:, :, None]
