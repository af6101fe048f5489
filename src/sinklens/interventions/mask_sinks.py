"""Attention sinks removed while a model generates, as in "Attention sinks in diffusion language models" (2510.15731).

At every step the `top` keys that received most attention at the step before, for each layer and head on its own, get
logit minus infinity. The ranking is read from logits before the step's own mask: read after it, a masked key has
received nothing, is not ranked, comes back, and every second step masks the runner-up.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from sinklens.interventions.masking import Masking
from sinklens.interventions.plan import Plan, check_choices, check_count, resolve
from sinklens.interventions.ranking import Ranking, Targets


@dataclass(frozen=True, kw_only=True)
class MaskSinks:
    """Settings; None is the family's own choice (bidirectional | causal).

    >>> MaskSinks(top=5)
    MaskSinks(top=5, rank_by=None, measure='before', queries=None, keys=None)
    """

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    top: Any  # keys a head, at least 1
    rank_by: Any = None  # "received": by all queries so far | "last_row": by the newest query
    measure: Any = "before"  # the step's own mask, or "after" it
    queries: Any = None  # "all" | "last": who is denied the keys
    keys: Any = None  # "recomputed" | "cached": whether earlier positions are computed anew under the mask

    def __post_init__(self) -> None:
        check_count("top", self.top)
        check_choices(rank_by=self.rank_by, measure=self.measure, queries=self.queries, keys=self.keys)

    def start(self, model: nn.Module) -> Masking:
        """The intervention itself, which knows nothing yet."""
        return Masking(self, model)

    def plan(self, causal: bool) -> Plan:
        return resolve(causal=causal, rank_by=self.rank_by, measure=self.measure, queries=self.queries, keys=self.keys)

    def choose(self, ranking: Ranking) -> Targets:
        return ranking.highest(self.top)
