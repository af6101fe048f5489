"""Keys that are chosen once, by the attention inside a prompt, and denied to all that follows."""

from collections.abc import Sequence
from typing import Any

import torch

from sinklens.attention.call import AttentionCall
from sinklens.interventions.ranking import Ranking, Targets, attention_paid, candidates, deny, merge, ranks
from sinklens.interventions.values import zero
from sinklens.interventions.views import hide, one_query
from sinklens.sinks.detect import MIN_VIEWERS


def rank_prompt(calls: Sequence[AttentionCall], rank_by: str) -> list[Ranking]:
    """The keys of a prompt, layer by layer: "received", by all its queries, or "last_row", by the last one."""
    found = []
    for call in calls:
        assert call.site is not None
        looked = call if rank_by == "received" else one_query(call, call.query.shape[2] - 1)
        paid = attention_paid(looked)
        found.append(
            Ranking(
                site=call.site,
                scores=paid.total,
                expected=paid.expected,
                viewers=paid.viewers,
                candidates=candidates(looked, paid),
                positions=call.where_keys(),
                anchor=call.where_queries()[-1:].expand(call.query.shape[0]),
                least_viewers=MIN_VIEWERS if rank_by == "received" else 1,
            )
        )
    return found


def choose_once(settings: Any, rankings: Sequence[Ranking], *, scope: str) -> dict[int, Targets]:
    """What the settings choose, by layer."""
    heads = rankings[0].scores.shape[1]
    if scope == "model":
        shared = settings.choose(merge([ranking.pooled() for ranking in rankings])).expand(-1, heads, -1)
        return {ranking.site.layer: shared for ranking in rankings}
    if scope == "layer":
        return {ranking.site.layer: settings.choose(ranking.pooled()).expand(-1, heads, -1) for ranking in rankings}
    return {ranking.site.layer: settings.choose(ranking) for ranking in rankings}


class StandingMasking:
    """The intervention on what follows: the logits of the chosen keys at minus infinity, or their values at 0."""

    def __init__(self, targets: dict[int, Targets], *, act: str, start: int = 0) -> None:
        self._targets, self._act = targets, act
        self._start = start  # queries before this position see all keys

    def __call__(self, call: AttentionCall) -> AttentionCall:
        assert call.site is not None
        targets = self._targets[call.site.layer]
        with torch.no_grad():
            if self._act == "zero":
                return zero(call, ranks(targets, call.where_keys()) >= 0)
            hidden = deny(call, targets).hidden
        late = call.where_queries() >= self._start
        return hide(call, hidden if bool(late.all()) else hidden & late[:, None])
