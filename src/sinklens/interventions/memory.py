"""What an intervention remembers of one layer between the steps of a run, and when it must forget."""

from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
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
    masked_at_first: Bool[Tensor, "batch position"] | None  # of a diffusion run: what is to be generated
    real_at_first: Bool[Tensor, "batch key"] | None  # False: padding
    prompt_end: int  # of a causal run: where generated positions begin
    first: bool = True  # no step of the run was before this one
    targets: Targets | None = None  # of an earlier step, denied at this one
    chosen: Targets | None = None  # at this step
    place: Targets | None = None  # where a CUDA graph reads what its last run chose
    clock: Int[Tensor, ""] | None = None  # and the number of its step
    plenty: bool = False  # every query that counts sees more keys than it may be denied
    denied: dict[int, Targets] = field(default_factory=dict)  # by the position of the query that was the newest
    _choices: list[Targets | None] = field(default_factory=list)  # of the last steps, no more than the lag asks for
    _sums: dict[str, Float[Tensor, "batch _ canvas"]] = field(default_factory=dict)

    @classmethod
    def begin(cls, plan: Plan, *, run: int, step: int, call: AttentionCall) -> "Memory":
        clock, span = current_step(), Span.of(call)
        return cls(
            plan=plan,
            run=run,
            step=step,
            span=span,
            masked_at_first=None if clock is None else clock.masked,
            real_at_first=call.real_keys,
            prompt_end=span.end,
        )

    @property
    def quiet(self) -> bool:
        """Nothing is denied at this step, whatever stands out."""
        if self.plan.source == "previous_step":
            return self.targets is None
        return self.first and self.plan.prefill == "clean"

    @property
    def newest_only(self) -> bool:
        """Of the queries of a call, the newest alone is denied keys; a masked prefill is masked as a whole."""
        plan = self.plan
        return plan.queries == "last" and not (self.first and plan.prefill == "masked" and plan.keys == "cached")

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
            self._choices = [*self._choices, self.chosen][-self.plan.lag :]
            self.targets = self._choices[0] if len(self._choices) == self.plan.lag else None
            self.first = False
        self.step, self.span = step, span
        if self.place is not None and not capturing():  # a step of its own between two runs of the graph
            self.targets = self.place.clone()

    def settle(self) -> None:
        """The choice is made: where a graph runs the next step, it lies where that reads it."""
        if self.place is not None and self.chosen is not None:
            self.place.copy_(self.chosen)
            self.chosen = self.place

    def add(
        self, name: str, call: AttentionCall, total: Float[Tensor, "batch heads_or_1 key"]
    ) -> Float[Tensor, "batch heads_or_1 key"]:
        """Column sums over all queries so far, where the call has only the new ones."""
        where, old = call.where_keys(), self._sums.get(name) if self.span.first else None
        width = max(int(where.max()) + 1, 0 if old is None else old.shape[-1])
        wide = total.new_zeros((*total.shape[:2], width))
        if old is not None:
            wide[..., : old.shape[-1]] = old
        self._sums[name] = wide.index_add(-1, where, total)
        return self._sums[name][..., where]
