"""The control of `MaskSinks`: as many keys, at the same steps, of the same queries, but drawn at random."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sinklens.interventions.draws import noise
from sinklens.interventions.plan import check_seed
from sinklens.interventions.ranking import Ranking, Targets, first_of
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class RandomKeys(Targeting):
    """Settings as for `MaskSinks`.

    Each layer, head, row and step has its own draw, among the keys that `MaskSinks` would have ranked. It depends on
    the seed, the step, the layer and the number of the row, on nothing else. With a seed for each row, the number of
    the row plays no part, nor does the padding before it: a prompt has the same draws in every batch.
    """

    steady: ClassVar[bool] = True
    seed: Any = 0  # an integer, or a tuple with one for each row

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)

    def choose(self, ranking: Ranking) -> Targets:
        drawn = replace(ranking, scores=noise(ranking, self.seed))
        if self.top is not None:
            return drawn.highest(self.top)
        sinks = self.sinks(ranking)
        return first_of(drawn.highest(sinks.shape[-1]), (sinks >= 0).sum(-1))
