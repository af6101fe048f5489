"""What `MaskSinks` and its controls share: how many keys, ranked by what, when, and who is denied them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from torch import nn

from sinklens.errors import UsageError
from sinklens.interventions.masking import Masking
from sinklens.interventions.plan import Plan, check_choices, check_count, resolve
from sinklens.interventions.ranking import Ranking, Targets


@dataclass(frozen=True, kw_only=True)
class Targeting(ABC):
    """Settings; None is the family's own choice. Docs: docs/interventions.md."""

    steady: ClassVar[bool] = False  # the choice follows from the ranking and the step's number alone

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    top: Any = None  # keys a head, at least 1
    epsilon: Any = None  # in place of top: as many as exceed the others' mean by more than this, in fair shares
    rank_by: Any = None  # "received": by all queries so far | "last_row": by the newest query
    source: Any = None  # "previous_step" | "same_step" | "same_input": the input of this step, without the mask
    measure: Any = None  # "before" the step's own mask | "after" it | in a "shadow" pass without it
    prefill: Any = None  # "clean" | "masked": step 0
    scope: Any = None  # "head" | "layer" | "model": what shares its targets
    queries: Any = None  # who is denied: "all" | "generated" | "block" | "masked" | "unmasked" | "last"
    keys: Any = None  # "recomputed" | "cached" | "block_cached": whether keys and values are computed under the mask
    drop: Any = False  # where every head loses as many keys, drop them instead of masking; not while observed
    follow: Any = False  # record where the removed attention goes (`lab.flows`); one pass more

    def __post_init__(self) -> None:
        if (self.top is None) == (self.epsilon is None):
            raise UsageError(
                f"top is {self.top!r} and epsilon is {self.epsilon!r}; expected one of them: a number of keys a head, "
                "or a threshold in fair shares"
            )
        self._check()

    def _check(self) -> None:
        if self.top is not None:
            check_count("top", self.top)
        epsilon = self.epsilon
        number = isinstance(epsilon, (int, float)) and not isinstance(epsilon, bool)
        if epsilon is not None and not (number and isfinite(epsilon) and epsilon >= 0):
            raise UsageError(f"epsilon is {epsilon!r}; expected a finite number, 0 or more")
        for name in ("drop", "follow"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}; expected True or False")
        if self.source == "fixed" and getattr(self, "positions", None) is None:
            raise UsageError(
                "source='fixed' needs positions, which only MaskSinks takes: MaskSinks(positions=[0]); "
                "a control follows a ranking"
            )
        check_choices(**self._choices())

    def _choices(self) -> dict[str, Any]:
        names = ("rank_by", "source", "measure", "prefill", "scope", "queries", "keys")
        return {name: getattr(self, name) for name in names}

    def start(self, model: nn.Module) -> Masking:
        """The intervention itself, which knows nothing yet."""
        return Masking(self, model)

    def plan(self, causal: bool) -> Plan:
        return resolve(causal=causal, **self._choices())

    def sinks(self, ranking: Ranking) -> Targets:
        """The keys that stand out: the highest, or those above epsilon."""
        return ranking.above(self.epsilon) if self.top is None else ranking.highest(self.top)

    @abstractmethod
    def choose(self, ranking: Ranking) -> Targets:
        """The keys to deny."""
