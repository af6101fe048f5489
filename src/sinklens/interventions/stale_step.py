"""A control: the sinks of a step long past. If sinks move, these are no longer sinks."""

from dataclasses import dataclass, replace
from typing import Any

from sinklens.errors import UsageError
from sinklens.interventions.plan import Plan, check_count
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class StaleStep(Targeting):
    """Settings as for `MaskSinks`. Step t is denied the sinks of step t - lag; earlier steps are denied nothing."""

    lag: Any = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("lag", self.lag, least=2)
        if self.source not in (None, "previous_step"):
            raise UsageError(
                f"source={self.source!r} for StaleStep, whose ranking is {self.lag} steps old; leave source out"
            )

    def plan(self, causal: bool) -> Plan:
        return replace(super().plan(causal), lag=self.lag)

    def choose(self, ranking: Ranking) -> Targets:
        return self.sinks(ranking)
