"""What an intervention remembers of one layer between the steps of a run, and when it must forget."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import current_step
from sinklens.interventions.plan import Plan
from sinklens.interventions.ranking import Targets


@dataclass(frozen=True, kw_only=True)
class Span:
    """The rows and heads of a call, and the canvas positions of its queries: first to end - 1."""

    rows: int
    heads: int
    first: int
    end: int
    keys: int

    @classmethod
    def of(cls, call: AttentionCall) -> "Span":
        rows, heads, queries, keys = call.scores.shape
        if call.key_positions is None and call.query_positions is None and keys >= queries:
            return cls(rows=rows, heads=heads, first=keys - queries, end=keys, keys=keys)
        where = call.where_queries()
        return cls(rows=rows, heads=heads, first=int(where[0]), end=int(where[-1]) + 1, keys=keys)


@dataclass(kw_only=True, eq=False)
class Memory:
    """One layer of one run."""

    plan: Plan
    run: int  # how many runs were before
    step: int
    span: Span
    targets: Targets | None = None  # denied at this step: chosen at the one before
    chosen: Targets | None = None  # for the next step
    denied: dict[int, Targets] = field(default_factory=dict)  # by the position of the query that was the newest
    _sums: Float[Tensor, "batch head canvas"] | None = None

    def goes_on(self, step: int, span: Span) -> bool:
        """Whether a call belongs to the run so far. A sampler's step says so; without one, only the shape can."""
        same = (span.rows, span.heads) == (self.span.rows, self.span.heads)
        if not same or step == 0 or step < self.step:
            return False
        if current_step() is not None:
            return True
        if not self.plan.causal:
            return span.keys == self.span.keys
        after_cache = span.first == self.span.end
        anew = span.first == self.span.first == 0 and span.end > self.span.end
        return after_cache or anew

    def advance(self, step: int, span: Span) -> None:
        if step > self.step:  # else the same step once more, under the same targets
            self.targets = self.chosen
        self.step, self.span = step, span

    def add(self, call: AttentionCall, total: Float[Tensor, "batch head key"]) -> Float[Tensor, "batch head key"]:
        """Column sums over all queries so far, where the call has only the new ones."""
        where, old = call.where_keys(), self._sums if self.span.first else None
        width = max(int(where.max()) + 1, 0 if old is None else old.shape[-1])
        wide = total.new_zeros((*total.shape[:2], width))
        if old is not None:
            wide[..., : old.shape[-1]] = old
        self._sums = wide.index_add(-1, where, total)
        return self._sums[..., where]
