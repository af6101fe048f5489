"""Keys denied at a step because of the step before: the rule that sinks and their controls share.

At every self-attention call of a run, per layer, head and row of the batch:

    1. the keys chosen at the step before get logit minus infinity (the first step has none)
    2. attention is read as it would be without that, for the dose
    3. the keys to deny at the next step are chosen

Other sources of the ranking (this very step, a pass without the mask, fixed positions) change when the choice is made;
other effects (values taken, keys dropped) change what becomes of the call. Cross-attention is left alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.attention.seam import recomputing, scopes_of
from sinklens.errors import UsageError
from sinklens.interventions.asking import denied_queries, fills_cache
from sinklens.interventions.choosing import Chooser, Look
from sinklens.interventions.dose import Dose, dose_means, overall
from sinklens.interventions.dropping import drop
from sinklens.interventions.flow import EPSILON, PARTS, Flow, redistributed
from sinklens.interventions.graph_runs import GraphRuns
from sinklens.interventions.memory import Memory, Span
from sinklens.interventions.plan import Plan
from sinklens.interventions.ranking import Denial, Ranking, Targets, attention_paid, deny
from sinklens.interventions.shadow import Shadow
from sinklens.interventions.views import hide, looks_ahead, one_query, sees_more_than
from sinklens.types import ModelSpec

Revalue = Callable[[AttentionCall, Tensor], AttentionCall]  # takes the listed keys, [batch, head, key]


@runtime_checkable
class Settings(Protocol):
    """What `MaskSinks` and its controls have in common: a budget, a plan for each family, and a choice of keys."""

    @property
    def top(self) -> int | None: ...

    @property
    def epsilon(self) -> float | None: ...

    @property
    def follow(self) -> bool: ...

    @property
    def drop(self) -> bool: ...

    @property
    def steady(self) -> bool: ...

    def plan(self, causal: bool) -> Plan: ...

    def choose(self, ranking: Ranking) -> Targets: ...


class Masking:
    """An intervention under way: settings, what it remembers of each layer, and the doses it gave."""

    def __init__(self, settings: Settings, model: nn.Module, *, revalue: Revalue | None = None) -> None:
        self.settings = settings
        self._model, self._revalue = model, revalue
        spec = getattr(model, "spec", None)
        self._causal = spec.causal if isinstance(spec, ModelSpec) else None  # None: the first call tells
        self._shadow: Shadow | None = None
        if self._causal is not None:  # what the family cannot do is refused before anything runs
            self._cast_shadow(settings.plan(self._causal))
        self._chooser = Chooser(self._choose)
        self._memories: dict[int, Memory] = {}
        self._doses: list[tuple[int, int, int, bool, bool, Tensor]] = []
        self._flows: list[tuple[int, int, int, Tensor]] = []
        self._graph = GraphRuns()

    @property
    def doses(self) -> list[Dose]:
        """One entry for every step and layer, in the order they ran."""
        found = []
        for run, step, layer, masked, dropped, means in self._doses:
            removed, largest, keys = means.tolist()
            found.append(
                Dose(
                    run=run, step=step, layer=layer, masked=masked, dropped=dropped,
                    removed=removed, largest=largest, keys=keys,
                )
            )  # fmt: skip
        return found

    @property
    def dose(self) -> float:
        """Of all steps and layers in which something was denied; NaN if there is none."""
        return overall(self.doses)

    @property
    def flows(self) -> list[Flow]:
        """Where the removed attention went, for every step and layer that masked something; with follow=True."""
        return [
            Flow(run=run, step=step, layer=layer, **dict(zip(PARTS, means.tolist(), strict=True)))
            for run, step, layer, means in self._flows
        ]

    def __call__(self, call: AttentionCall) -> AttentionCall:
        assert call.site is not None
        if call.site.kind == "cross":
            return call
        if recomputing():
            raise UsageError(
                "a forward is run again inside a backward pass (gradient checkpointing), where the keys that were "
                "denied the first time are not known; switch checkpointing off under this intervention"
            )
        memory = self._recall(call)
        if capturing():
            return self._capture(call, memory)
        self._refuse_cache(memory)
        clean = self._clean(call, memory)
        if clean is not None and memory.plan.clean_keys and not memory.quiet:
            call = replace(call, key=clean.key, value=clean.value)
        affected = self._affected(call, memory)
        with torch.no_grad():
            look = Look(call=call, clean=clean, affected=affected, paid=attention_paid(affected))
            targets = None if fills_cache(memory) else self._chooser.now(look, memory)
        denial = None if targets is None else self._deny(affected, targets)
        changed = call if denial is None or targets is None else self._change(call, memory, denial, targets)
        with torch.no_grad():
            self._note(look, memory, denial, changed)
            if memory.plan.source == "previous_step":
                self._chooser.prepare(look, memory, changed)
                memory.settle()
        return changed

    def capturable(self) -> bool:
        """Whether steps under it can be a CUDA graph: all that it decides follows from what the card holds."""
        settings = self.settings
        if self._causal is not False or not settings.steady or settings.top is None or settings.follow:
            return False
        plan = settings.plan(causal=False)
        usual = (plan.source, plan.queries, plan.keys, plan.lag) == ("previous_step", "all", "recomputed", 1)
        return usual and plan.scope != "model" and plan.measure != "shadow" and not plan.once

    def _capture(self, call: AttentionCall, memory: Memory) -> AttentionCall:
        """The same, written down for the card. What only the next step needs is measured beside the model."""
        targets = memory.place = memory.targets
        if targets is None:
            raise UsageError("a step is captured before anything was ranked; run two steps of the run first")
        denial = self._deny(call, targets)
        changed = self._change(call, memory, denial, targets)
        if denial.spared is not None and denial.spared.shape[2] > 1:
            if not memory.plenty:
                raise UsageError(
                    f"graph=True while a query sees no more than the {targets.shape[-1]} keys that it may be denied; "
                    "leave graph out"
                )
            denial = replace(denial, spared=None)  # of padding alone, which has no dose
        with torch.no_grad(), self._graph.beside.branch(call, changed, denial):
            look = Look(call=call, clean=None, affected=call, paid=attention_paid(call))
            self._note(look, memory, denial, changed)
            self._chooser.prepare(look, memory, changed)
            memory.settle()
        return changed

    def join(self) -> None:
        """The forward that is captured ends."""
        self._graph.beside.join()

    def captured(self) -> None:
        """A forward was captured and has not run."""
        self._graph.captured(memory.place for memory in self._memories.values() if memory.place is not None)

    def before_replay(self, step: int) -> None:
        self._graph.begin(step)

    def after_replay(self, step: int) -> None:
        """The card has run a step: its doses are there."""
        run = next(iter(self._memories.values())).run
        for memory in self._memories.values():
            memory.step = step
        self._doses += [(run, step, layer, True, *found) for layer, found in self._graph.doses()]

    def _choose(self, ranking: Ranking, _memory: Memory) -> Targets:
        return self.settings.choose(ranking)

    def _cast_shadow(self, plan: Plan) -> None:
        if plan.needs_shadow and self._shadow is None:
            self._shadow = Shadow(self._model)

    def _recall(self, call: AttentionCall) -> Memory:
        site, span = call.site, Span.of(call)
        assert site is not None
        step, known = int(site.step), self._memories.get(site.layer)
        if known is not None and known.goes_on(step, span):
            if step > known.step:
                self._chooser.complete(known, step)
            known.advance(step, span)
            return known
        causal = not looks_ahead(call) if self._causal is None else self._causal
        run = 0 if known is None else known.run + 1
        memory = Memory.begin(self.settings.plan(causal), run=run, step=step, call=call)
        if self.settings.top is not None and self.capturable():
            memory.plenty = sees_more_than(self.settings.top, call)
            memory.clock = self._graph.clock_on(call.key.device)  # made in a graph, it would be made by every run
        self._cast_shadow(memory.plan)
        self._memories[site.layer] = memory
        return memory

    def _refuse_cache(self, memory: Memory) -> None:
        plan, span = memory.plan, memory.span
        if plan.causal and plan.keys == "recomputed" and span.first > 0:
            raise UsageError(
                f"keys='recomputed' needs every position computed anew at every step, but a call has only the queries "
                f"from {span.first} on: the model uses a KV cache; run it without (use_cache=False), or leave keys out"
            )

    def _clean(self, call: AttentionCall, memory: Memory) -> AttentionCall | None:
        """The same layer in a pass without the mask, which runs when the first layer of a forward does."""
        assert call.site is not None
        if self._shadow is None:
            return None
        if call.site.layer == 0:
            self._shadow.run(memory.real_at_first)
            self._chooser.see(self._shadow.calls)
        return self._shadow.calls[call.site.layer]

    def _affected(self, call: AttentionCall, memory: Memory) -> AttentionCall:
        """The call with the queries that are denied something; the others count as padding."""
        if memory.newest_only:
            return one_query(call, call.query.shape[2] - 1)
        who = denied_queries(call, memory)
        if who is None:
            return call
        return replace(call, real_queries=who if call.real_queries is None else who & call.real_queries)

    def _deny(self, affected: AttentionCall, targets: Targets) -> Denial:
        denial = deny(affected, targets)
        return denial if self._revalue is None else replace(denial, spared=None)  # who keeps all weights lacks none

    def _change(self, call: AttentionCall, memory: Memory, denial: Denial, targets: Targets) -> AttentionCall:
        who, plan = denied_queries(call, memory), memory.plan
        for_all = who is None and (not memory.newest_only or call.query.shape[2] == 1)
        if self._revalue is not None:
            if not for_all:
                raise UsageError(
                    f"a value is changed for all queries of a call, but with queries={plan.queries!r} only some of "
                    f"{call.query.shape[2]} are meant; run a causal model with its cache and a clean prefill, and any "
                    "with queries='all'"
                )
            return self._revalue(call, denial.listed)
        if self.settings.drop and for_all:
            self._refuse_watchers(call)
            dropped = drop(call, denial)
            if dropped is not None:
                return dropped
        hidden = self._hidden(call, memory, denial, targets)
        return hide(call, hidden if who is None else hidden & who[:, None, :, None])

    def _refuse_watchers(self, call: AttentionCall) -> None:
        assert call.site is not None
        if len(scopes_of(self._model.get_submodule(call.site.module))) > 1:
            raise UsageError(
                "drop=True while something else observes or changes this model: keys that every head drops on its own "
                "have no common positions; leave drop out, the result is the same"
            )

    def _hidden(
        self, call: AttentionCall, memory: Memory, denial: Denial, targets: Targets
    ) -> Bool[Tensor, "batch head rows_or_1 key"]:
        """What every query of the call is denied. Earlier queries that run again without a cache are denied what
        they were denied when they were the newest, as if they were cached."""
        plan, span = memory.plan, memory.span
        if plan.queries == "last" and plan.keys == "cached":
            newly = [span.end - 1] if memory.newest_only else call.where_queries().tolist()
            memory.denied |= dict.fromkeys(newly, targets)
        if not memory.newest_only or call.query.shape[2] == 1:
            return denial.hidden
        hidden = torch.zeros(call.scores.shape, dtype=torch.bool, device=call.key.device)
        hidden[:, :, -1] = denial.hidden[:, :, 0]
        for index, position in enumerate(call.where_queries().tolist()[:-1]):
            if position in memory.denied:
                again = deny(one_query(call, index), memory.denied[position])
                hidden[:, :, index] = again.hidden[:, :, 0]
        return hidden

    def _note(self, look: Look, memory: Memory, denial: Denial | None, changed: AttentionCall) -> None:
        assert look.call.site is not None
        place = (memory.run, memory.step, look.call.site.layer)
        means = dose_means(look.affected, look.paid, denial, top=self.settings.top)
        dropped = changed.key.shape[2] < look.call.key.shape[2]
        if capturing():
            self._graph.note(look.call.site.layer, dropped, means)
            return
        self._doses.append((*place, denial is not None, dropped, means))
        if self.settings.follow and denial is not None:
            masked = hide(look.affected, denial.hidden)
            epsilon = EPSILON if self.settings.epsilon is None else self.settings.epsilon
            flow = redistributed(look.affected, masked, look.paid, denial=denial, epsilon=epsilon)
            self._flows.append((*place, flow))
