"""A control: every head is denied the sinks of another head of its layer. Sinks, but not its own."""

from dataclasses import dataclass
from typing import Any

from sinklens.errors import UsageError
from sinklens.interventions.plan import check_count
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class OtherHead(Targeting):
    """Settings as for `MaskSinks`. Head h gets the sinks of head (h + shift) mod the number of heads.

    Heads share sinks, so some keys are the head's own: the dose says how much of it is.
    """

    shift: Any = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("shift", self.shift)
        if self.scope not in (None, "head"):
            raise UsageError(
                f"scope={self.scope!r} for OtherHead: heads that share their sinks have no other's; leave scope out"
            )

    def choose(self, ranking: Ranking) -> Targets:
        sinks = self.sinks(ranking)
        heads = sinks.shape[1]
        if self.shift % heads == 0:
            raise UsageError(
                f"shift {self.shift} leads every head of a layer of {heads} back to itself; expected a number that "
                f"{heads} does not divide, and at least two heads"
            )
        return sinks.roll(-self.shift, dims=1)
