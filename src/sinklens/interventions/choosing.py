"""When the keys to deny are chosen, and from which attention.

previous_step   at the end of a call, for a later step; ranked before its mask, after it, or in a shadow pass
same_step       before the call's own mask
same_input      in a shadow pass over the input of this step
fixed           at any time: nothing is ranked
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.interventions.asking import anchor_of, mask_state
from sinklens.interventions.memory import Memory
from sinklens.interventions.ranking import Ranking, Targets, attention_paid, candidates, merge
from sinklens.interventions.views import one_query
from sinklens.kernels.received import Received
from sinklens.sinks.detect import MIN_VIEWERS


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """One call before its mask, and what was read from it."""

    call: AttentionCall
    clean: AttentionCall | None  # the same layer in a shadow pass
    affected: AttentionCall  # the queries that are denied something
    paid: Received  # what those pay


class Chooser:
    """Rankings of one intervention; `choose` is its choice of keys."""

    def __init__(self, choose: Callable[[Ranking, Memory], Targets]) -> None:
        self._choose = choose
        self._layers: dict[int, Ranking] = {}  # of the step under way, where the model is ranked as a whole
        self._shared: tuple[tuple[int, int], Targets] | None = None  # by run and step
        self._clean: Mapping[int, AttentionCall] = {}

    def now(self, look: Look, memory: Memory) -> Targets | None:
        """What this call is denied; None: nothing."""
        plan = memory.plan
        if plan.source == "previous_step":
            return memory.targets
        if memory.quiet:
            return None
        if plan.source == "same_input" and plan.scope == "model":
            return self._for_all(lambda: self._clean_layers(memory), memory, memory.step)
        if plan.source == "fixed":
            return self._pick(_ranking(look.affected, look.paid, memory), memory)
        if plan.source == "same_input":
            assert look.clean is not None
            return self._pick(_ranking(*_looked(look.clean, memory), memory), memory)
        return self._pick(_ranking(*_looked(look.call, memory, look), memory, grows=True), memory)

    def prepare(self, look: Look, memory: Memory, changed: AttentionCall) -> None:
        """Choose for a later step."""
        plan = memory.plan
        if plan.once and memory.chosen is not None:
            return
        if plan.measure == "shadow":
            assert look.clean is not None
            ranking = _ranking(*_looked(look.clean, memory), memory)
        else:
            call, paid = _looked(look.call, memory, look)
            total = paid.total
            if plan.measure == "after":
                total = attention_paid(_narrow(changed, memory), visibility=paid.uniform).total
            ranking = _ranking(call, paid, memory, total=total, grows=True)
        if plan.scope == "model":
            self._layers[ranking.site.layer] = ranking.pooled()
        else:
            memory.chosen = self._pick(ranking, memory).contiguous()

    def complete(self, memory: Memory, step: int) -> None:
        """Before a layer goes on to `step`: where all layers share their targets, these are known only now."""
        plan = memory.plan
        if plan.scope != "model" or plan.source != "previous_step" or (plan.once and memory.chosen is not None):
            return
        memory.chosen = self._for_all(lambda: list(self._layers.values()), memory, step)

    def see(self, clean: Mapping[int, AttentionCall]) -> None:
        """A shadow pass over the input of this step has run."""
        self._clean = clean

    def _clean_layers(self, memory: Memory) -> list[Ranking]:
        looked = [_looked(call, memory) for call in self._clean.values()]
        return [_ranking(call, paid, memory).pooled() for call, paid in looked]

    def _for_all(self, layers: Callable[[], list[Ranking]], memory: Memory, step: int) -> Targets:
        """Chosen once a step, by the first layer: later ones would find some layers ranked anew."""
        if self._shared is None or self._shared[0] != (memory.run, step):
            self._shared = (memory.run, step), self._choose(merge(layers()), memory)
        targets = self._shared[1]
        return targets.expand(-1, memory.span.heads, -1)

    def _pick(self, ranking: Ranking, memory: Memory) -> Targets:
        if memory.plan.scope == "layer":
            return self._choose(ranking.pooled(), memory).expand(-1, memory.span.heads, -1)
        return self._choose(ranking, memory)


def _narrow(call: AttentionCall, memory: Memory) -> AttentionCall:
    return call if memory.plan.rank_by == "received" else one_query(call, call.query.shape[2] - 1)


def _looked(call: AttentionCall, memory: Memory, look: Look | None = None) -> tuple[AttentionCall, Received]:
    """The queries whose attention ranks the keys, and what they pay."""
    looked, asked = _narrow(call, memory), (memory.plan.queries, memory.plan.rank_by)
    same = asked in (("all", "received"), ("last", "last_row")) or (asked[0] == "last" and call.query.shape[2] == 1)
    if look is not None and same and looked.query.shape == look.affected.query.shape:
        return looked, look.paid
    return looked, attention_paid(looked)


def _ranking(
    call: AttentionCall,
    paid: Received,
    memory: Memory,
    *,
    total: Float[Tensor, "batch head key"] | None = None,
    grows: bool = False,
) -> Ranking:
    """`grows`: the call has only the new queries of a causal run, and those before count too."""
    plan, sums = memory.plan, {"expected": paid.expected, "viewers": paid.viewers}
    sums["scores"] = paid.total if total is None else total
    if grows and plan.causal and plan.rank_by == "received":
        sums = {name: memory.add(name, call, value) for name, value in sums.items()}
    assert call.site is not None
    alone = capturing()  # the sampler's clock stands still there: what it says of masks and blocks would stay for good
    return Ranking(
        site=call.site,
        candidates=candidates(call, paid),
        positions=call.where_keys(),
        anchor=call.where_queries()[-1:].expand(call.query.shape[0]) if alone else anchor_of(call, plan.causal),
        mask_state=None if alone else mask_state(call),
        least_viewers=MIN_VIEWERS if plan.rank_by == "received" else 1,
        clock=memory.clock if alone else None,
        **sums,
    )
