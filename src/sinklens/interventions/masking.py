"""Keys denied at a step because of the step before: the rule that sinks and their controls share.

At every self-attention call of a run, per layer, head and row of the batch:

    1. the keys chosen at the step before get logit minus infinity (the first step has none)
    2. attention is read as it would be without that, for the dose
    3. the keys to deny at the next step are chosen

Cross-attention is left alone.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import recomputing
from sinklens.errors import UsageError
from sinklens.interventions.dose import Dose, overall, removed_and_largest
from sinklens.interventions.memory import Memory, Span
from sinklens.interventions.plan import Plan
from sinklens.interventions.ranking import Denial, Ranking, Targets, attention_paid, candidates, deny
from sinklens.interventions.views import hide, looks_ahead, one_query
from sinklens.kernels.received import Received
from sinklens.types import ModelSpec


@runtime_checkable
class Settings(Protocol):
    """What `MaskSinks` and its controls have in common: a budget, a plan for each family, and a choice of keys."""

    @property
    def top(self) -> int: ...

    def plan(self, causal: bool) -> Plan: ...

    def choose(self, ranking: Ranking) -> Targets: ...


class Masking:
    """An intervention under way: settings, what it remembers of each layer, and the doses it gave."""

    def __init__(self, settings: Settings, model: nn.Module) -> None:
        self.settings = settings
        spec = getattr(model, "spec", None)
        self._causal = spec.causal if isinstance(spec, ModelSpec) else None  # None: the first call tells
        if self._causal is not None:
            settings.plan(self._causal)  # refuses what the family cannot do, before anything runs
        self._memories: dict[int, Memory] = {}
        self._doses: list[tuple[int, int, int, bool, Tensor]] = []

    @property
    def doses(self) -> list[Dose]:
        """One entry for every step and layer, in the order they ran."""
        found = []
        for run, step, layer, masked, means in self._doses:
            removed, largest = means.tolist()
            found.append(Dose(run=run, step=step, layer=layer, masked=masked, removed=removed, largest=largest))
        return found

    @property
    def dose(self) -> float:
        """Of all steps and layers in which something was denied; NaN if there is none."""
        return overall(self.doses)

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
        self._refuse_cache(memory)
        newest = one_query(call, call.query.shape[2] - 1)
        affected = call if memory.plan.queries == "all" else newest
        denial = None if memory.targets is None else deny(affected, memory.targets)
        masked = call if denial is None else hide(call, self._hidden(call, memory, denial))
        with torch.no_grad():
            paid = attention_paid(affected)
            means = removed_and_largest(affected, paid, denial, top=self.settings.top)
            self._doses.append((memory.run, memory.step, call.site.layer, denial is not None, means))
            looked = call if memory.plan.rank_by == "received" else newest
            seen = paid if looked is affected else attention_paid(looked)
            memory.chosen = self.settings.choose(self._ranking(looked, seen, masked, memory))
        return masked

    def _recall(self, call: AttentionCall) -> Memory:
        site, span = call.site, Span.of(call)
        assert site is not None
        step, known = int(site.step), self._memories.get(site.layer)
        if known is not None and known.goes_on(step, span):
            known.advance(step, span)
            return known
        causal = not looks_ahead(call) if self._causal is None else self._causal
        memory = Memory(
            plan=self.settings.plan(causal), run=0 if known is None else known.run + 1, step=step, span=span
        )
        self._memories[site.layer] = memory
        return memory

    def _refuse_cache(self, memory: Memory) -> None:
        plan, span = memory.plan, memory.span
        if plan.causal and plan.keys == "recomputed" and span.first > 0:
            raise UsageError(
                f"keys='recomputed' needs every position computed anew at every step, but a call has only the queries "
                f"from {span.first} on: the model uses a KV cache; run it without (use_cache=False), or leave keys out"
            )

    def _hidden(self, call: AttentionCall, memory: Memory, denial: Denial) -> Bool[Tensor, "batch head rows_or_1 key"]:
        """What every query of the call is denied. Earlier queries that run again without a cache are denied what
        they were denied when they were the newest, as if they were cached."""
        plan, span, targets = memory.plan, memory.span, memory.targets
        assert targets is not None
        if plan.queries == "last" and plan.keys == "cached":
            memory.denied[span.end - 1] = targets
        if plan.queries == "all" or call.query.shape[2] == 1:
            return denial.hidden
        hidden = torch.zeros(call.scores.shape, dtype=torch.bool, device=call.key.device)
        hidden[:, :, -1] = denial.hidden[:, :, 0]
        for index, position in enumerate(call.where_queries().tolist()[:-1]):
            if position in memory.denied:
                again = deny(one_query(call, index), memory.denied[position])
                hidden[:, :, index] = again.hidden[:, :, 0]
        return hidden

    def _ranking(self, call: AttentionCall, paid: Received, masked: AttentionCall, memory: Memory) -> Ranking:
        """`call`: the queries whose attention ranks the keys, before the mask; `paid`: what they pay."""
        plan, total = memory.plan, paid.total
        if plan.measure == "after":
            after = masked if plan.rank_by == "received" else one_query(masked, masked.query.shape[2] - 1)
            total = attention_paid(after, visibility=paid.uniform).total
        if plan.causal and plan.rank_by == "received":
            total = memory.add(call, total)
        assert call.site is not None
        return Ranking(site=call.site, scores=total, candidates=candidates(call, paid), positions=call.where_keys())
