"""A control: the first tokens of the sequence, where autoregressive models keep their sink."""

from dataclasses import dataclass, replace
from typing import Any

from sinklens.errors import UsageError
from sinklens.interventions.plan import Plan
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class FirstToken(Targeting):
    """Settings as for `MaskSinks`: the first `top` positions of each row that are not padding, in every head.

    They are read off once, at the first step of a run, and denied from the second on, like all others.
    """

    top: Any = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, accepted in (("epsilon", None), ("rank_by", None), ("measure", None), ("source", "previous_step")):
            value = getattr(self, name)
            if value is not None and value != accepted:
                raise UsageError(f"{name}={value!r} for FirstToken, which ranks nothing; leave {name} out")

    def plan(self, causal: bool) -> Plan:
        return replace(super().plan(causal), rank_by="received", once=True)  # all keys, not those of one window

    def choose(self, ranking: Ranking) -> Targets:
        earlier = -ranking.positions.to(ranking.scores.dtype)
        return replace(ranking, scores=earlier.expand_as(ranking.scores)).highest(self.top)
