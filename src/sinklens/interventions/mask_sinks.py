"""Attention sinks removed while a model generates, as in "Attention sinks in diffusion language models" (2510.15731).

At every step the `top` keys that received most attention at the step before, for each layer and head on its own, get
logit minus infinity. The ranking is read from logits before the step's own mask: read after it, a masked key has
received nothing, is not ranked, comes back, and every second step masks the runner-up.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sinklens.errors import UsageError
from sinklens.interventions.ranking import Ranking, Targets
from sinklens.interventions.targeting import Targeting


@dataclass(frozen=True, kw_only=True)
class MaskSinks(Targeting):
    """Settings: one of `top`, `epsilon` and `positions`; of the rest, None is the family's own choice.

    >>> MaskSinks(top=5).plan(causal=True).queries, MaskSinks(top=5).plan(causal=False).queries
    ('last', 'all')
    """

    steady: ClassVar[bool] = True
    positions: Any = None  # source="fixed": the same canvas positions at every step, in every layer and head

    def __post_init__(self) -> None:
        if self.positions is None:
            super().__post_init__()
            return
        positions = self.positions
        whole = isinstance(positions, (list, tuple)) and all(type(at) is int and at >= 0 for at in positions)
        if not whole or not positions:
            raise UsageError(f"positions is {positions!r}; expected a list of canvas positions, such as [0]")
        for name in ("top", "epsilon", "rank_by", "measure", "scope"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{name}={getattr(self, name)!r} with positions={positions!r}: nothing is ranked; leave one out"
                )
        if self.source not in (None, "fixed"):
            raise UsageError(f"source={self.source!r} with positions={positions!r}; expected 'fixed', or leave it out")
        self._check()

    def _choices(self) -> dict[str, Any]:
        return super()._choices() | ({} if self.positions is None else {"source": "fixed"})

    def choose(self, ranking: Ranking) -> Targets:
        if self.positions is None:
            return self.sinks(ranking)
        heads = ranking.scores.shape[:2]
        at = ranking.positions.new_tensor(list(dict.fromkeys(self.positions)))
        return at.expand(*heads, at.numel())
