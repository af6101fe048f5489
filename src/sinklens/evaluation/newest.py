"""The keys denied to every query by the one before it, or by itself, for a whole text in one forward.

One token at a time, the newest query is denied what the query before it (source "previous_step") or itself
("same_step") pays most attention to in the same layer, read before that query's own mask. Neither needs anything that
stands later in the text, and nothing of a higher layer. So all queries of a layer can be masked together, from the
attention map of the layer before any mask, whose hidden states already come from masked layers below.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.interventions.masking import Settings
from sinklens.interventions.ranking import Ranking, Targets, ranks
from sinklens.interventions.views import hide, one_query, views
from sinklens.kernels.reference import probabilities


class NewestMasking:
    """An intervention on the queries of one text after its prompt, all in one call a layer."""

    def __init__(self, settings: Settings, prompt: Sequence[AttentionCall]) -> None:
        self.settings = settings
        plan = settings.plan(causal=True)
        self._pooled, self._own = plan.scope == "layer", plan.source == "same_step"
        self._together = not hasattr(settings, "seed")  # draws depend on the step, rankings alone do not
        last = [one_query(call, call.query.shape[2] - 1) for call in prompt]
        self._first = [] if self._own else [self._after(call) for call in last]

    def __call__(self, call: AttentionCall) -> AttentionCall:
        assert call.site is not None and call.query.shape[0] == 1
        with torch.no_grad():
            weights, seen, where = _weights(call), views(call), call.where_keys()
            asked = call.query.shape[2] if self._own else call.query.shape[2] - 1
            size = max(1, asked) if self._together else 1
            parts = [slice(start, min(start + size, asked)) for start in range(0, asked, size)]
            chosen = [self._choose(call, weights, seen, rows=rows, step=rows.start + 1) for rows in parts]
            if not self._own:
                chosen.insert(0, self._first[call.site.layer])
            rank = torch.cat([ranks(targets, where) for targets in chosen])
            return hide(call, _hidden(seen, rank.transpose(0, 1)[None]))

    def _after(self, call: AttentionCall) -> Targets:
        """What the last query of the prompt says the first one after it is denied."""
        return self._choose(call, _weights(call), views(call), rows=slice(0, 1), step=0)

    def _choose(self, call: AttentionCall, weights: Tensor, seen: Tensor, *, rows: slice, step: int) -> Targets:
        """What each of some queries of the text says a query is denied, as rows of a batch."""
        assert call.site is not None
        visible = seen[0, :, rows].transpose(0, 1)
        viewers = visible.to(weights.dtype)
        ranking = Ranking(
            site=replace(call.site, step=step),
            scores=weights[0, :, rows].transpose(0, 1),
            expected=viewers / viewers.sum(-1, keepdim=True).clamp(min=1),
            viewers=viewers,
            candidates=visible,
            positions=call.where_keys(),
            anchor=call.where_queries()[rows],
        )
        if self._pooled:
            return self.settings.choose(ranking.pooled()).expand(-1, weights.shape[1], -1)
        return self.settings.choose(ranking)


def _weights(call: AttentionCall) -> Float[Tensor, "1 head query key"]:
    """The attention map before any mask of ours."""
    return probabilities(call.scores, dtype=torch.promote_types(call.query.dtype, torch.float32))[0]


def _hidden(
    seen: Bool[Tensor, "1 head query key"], rank: Int[Tensor, "1 head query key"]
) -> Bool[Tensor, "1 head query key"]:
    """The targets of every query as entries of the attention map; rank: -1 where a key is none. As in `deny`, a query
    that would be left with nothing keeps the lowest ranked."""
    hidden = seen & (rank >= 0)
    starved = seen.any(-1, keepdim=True) & ~(seen & ~hidden).any(-1, keepdim=True)
    lowest = rank == torch.where(seen, rank, -1).amax(-1, keepdim=True)
    return hidden & ~(starved & lowest)
