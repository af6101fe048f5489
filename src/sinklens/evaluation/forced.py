"""Text fed to a causal model as if it had written it, with keys denied on the way.

The text begins with a prompt: step 0, which is masked only where a condition says so (prefill="masked"). Every later
token is one step, as in generation, except that the token is the text's own. There are two rules for the keys that a
step is denied:

    prompt  chosen once, when the prompt has run, by the attention that its queries pay; they stand for all steps
    steps   chosen anew at every step, from the step before or its own: what `sl.generate` does under the same
            intervention

`in_steps` runs either rule one token at a time. `at_once` gives the same numbers, but for rounding, from one forward of
the prompt and one of the text, which a causal model allows where what a query is denied is known when it runs:

    prompt, cached       the queries after the prompt run together on the prompt's cache, all without the chosen keys
    prompt, recomputed   the whole text runs anew, every query (or those after the prompt: queries="generated") without
                         the chosen keys. One token at a time every step but the first does that, and earlier positions
                         come out the same each time: they see nothing later
    steps, cached        query i is denied what the attention of query i - 1, or its own, says in the same layer, read
                         before any mask (newest.py)

The rest is left to `in_steps`. Under either rule: averaged values (the mean over what is visible grows with every
step), a masked prefill, and recomputed keys of which the newest query alone is denied some. Where the choice changes
every step: recomputed keys (each step is another mask for all queries), one ranking for the whole model (the last layer
of step i - 1 decides on the first of step i), values at 0, keys ranked by all queries, and rankings read under the
mask, in a shadow pass or some steps earlier. `perplexity.runs_at_once` is this list as code.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import StepNumber, at_step
from sinklens.attention.observe import intervene
from sinklens.evaluation.standing import rank_prompt
from sinklens.interventions.masking import Settings
from sinklens.interventions.plan import Plan
from sinklens.interventions.ranking import Ranking, Targets

Ids = Int[Tensor, "1 position"]
Losses = Float[Tensor, " token"]  # nats, of the tokens after the prompt


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompt:
    """The first tokens of a text, run without a mask: what every masked run of that text begins with."""

    ids: Ids  # of the whole text
    end: int  # of the prompt: tokens in it
    logits: Float[Tensor, "1 vocab"]  # behind its last token
    cache: Any
    calls: tuple[AttentionCall, ...]  # self-attention, layer by layer
    received: tuple[Ranking, ...]  # its keys by what all its queries pay, layer by layer

    def losses(self, logits: Float[Tensor, "1 query vocab"]) -> Losses:
        """Of the tokens after the prompt: the first by the prompt itself, the rest by the queries after it."""
        behind = torch.cat([self.logits[:, None], logits], dim=1)[0]
        wide = behind.to(torch.promote_types(behind.dtype, torch.float32))
        return F.cross_entropy(wide, self.ids[0, self.end :], reduction="none")


@dataclass(frozen=True, kw_only=True)
class Once:
    """Settings whose choice is made at the prompt and stands, for a run in steps."""

    settings: Settings
    rank_by: str

    @property
    def top(self) -> int | None:
        return self.settings.top

    @property
    def epsilon(self) -> float | None:
        return self.settings.epsilon

    @property
    def follow(self) -> bool:
        return self.settings.follow

    @property
    def drop(self) -> bool:
        return self.settings.drop

    def plan(self, causal: bool) -> Plan:
        return replace(self.settings.plan(causal), once=True, rank_by=self.rank_by)

    def choose(self, ranking: Ranking) -> Targets:
        return self.settings.choose(ranking)


def read_prompt(model: Any, ids: Ids, *, end: int) -> Prompt:
    """Run the first `end` tokens of a text."""
    calls: list[AttentionCall] = []

    def keep(call: AttentionCall) -> AttentionCall:
        calls.append(call)
        return call

    with torch.no_grad(), intervene(model, keep), at_step(StepNumber(0, canvas=ids[:, :end])):
        logits, cache = model.decode(ids[:, :end])
        received = rank_prompt(calls, "received")
    return Prompt(ids=ids, end=end, logits=logits[:, -1], cache=cache, calls=tuple(calls), received=tuple(received))


def unmasked(model: Any, prompt: Prompt) -> Losses:
    """The text as it is."""
    return prompt.losses(_rest(model, prompt, recomputed=False))


def at_once(model: Any, prompt: Prompt, lab: Any, *, recomputed: bool) -> Losses:
    """The text under an intervention that knows the prompt, in one forward after it."""
    with intervene(model, lab):
        return prompt.losses(_rest(model, prompt, recomputed=recomputed))


def in_steps(model: Any, ids: Ids, lab: Any, *, end: int, recomputed: bool) -> Losses:
    """The same one token at a time, prompt included."""
    cache, rows = None, []
    with torch.no_grad(), intervene(model, lab):
        for step, now in enumerate(range(end, ids.shape[1])):
            with at_step(StepNumber(step, canvas=ids[:, :now])):
                if recomputed:
                    logits = model(ids[:, :now])
                else:
                    logits, cache = model.decode(ids[:, :now] if step == 0 else ids[:, now - 1 : now], cache=cache)
            rows.append(logits[0, -1])
    wide = torch.stack(rows)
    wide = wide.to(torch.promote_types(wide.dtype, torch.float32))
    return F.cross_entropy(wide, ids[0, end:], reduction="none")


def _rest(model: Any, prompt: Prompt, *, recomputed: bool) -> Float[Tensor, "1 query vocab"]:
    """Logits behind the tokens after the prompt; what is behind the last one is no loss of this text."""
    ids, end = prompt.ids, prompt.end
    with torch.no_grad(), at_step(StepNumber(1, canvas=ids)):
        if recomputed:
            logits: Tensor = model(ids[:, :-1])[:, end:]
            return logits
        found: Tensor = model.decode(ids[:, end:-1], cache=deepcopy(prompt.cache))[0]
        return found
