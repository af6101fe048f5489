"""One token a step, left to right: greedy, with a temperature, or from the nucleus (top_p).

Step 0 is the prefill and decides the first token. A model with `decode` keeps its keys and values in a
cache that is handed back to it; any other, and every one under `cache=False`, is run on all ids so far, with
the same result. A row that has reached eos (or the end of its turn) is filled with pad, else eos, and the run
ends when all have.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber, at_step
from sinklens.errors import ModelError, UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.sampling import unmask
from sinklens.sampling.checks import Number, at_least, not_negative, share
from sinklens.sampling.special_ids import fill_id, stop_ids
from sinklens.sampling.step import Step
from sinklens.sampling.undecided import refuse_unusable


@dataclass(frozen=True, kw_only=True)
class AutoregressiveSampler:
    """Settings of an autoregressive run."""

    length: int  # tokens to generate at most
    temperature: Number = 0.0  # 0: greedy, top_p then has no effect
    top_p: Number | None = None  # in (0, 1]
    cache: bool = True  # False: every step computes all positions anew, as interventions with recomputed keys need

    def __post_init__(self) -> None:
        at_least("length", self.length, 1)
        not_negative("temperature", self.temperature)
        share("top_p", self.top_p)

    def run(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
    ) -> Iterator[Step]:
        """Steps of a run from `prompt`; every check is made before the first forward."""
        if not model.spec.causal:
            raise UsageError(
                f"AutoregressiveSampler needs a causal model, but {model.spec.family!r} is not; "
                "use LLaDASampler or DreamSampler"
            )
        if attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise UsageError(
                "an autoregressive prompt ends in padding; pad rows on the left, so that each ends in an id"
            )
        return self._extend(model, prompt, attention_mask)

    def _extend(
        self,
        model: LanguageModel,
        ids: Int[Tensor, "batch position"],
        attention_mask: Int[Tensor, "batch position"] | None,
    ) -> Iterator[Step]:
        stops = torch.tensor(stop_ids(model.spec), dtype=ids.dtype, device=ids.device)
        ended = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        cache: Any = None
        for index in range(self.length):
            with torch.no_grad(), at_step(StepNumber(index, canvas=ids)):
                padding = None if bool(real.all()) else real
                logits, cache = _next_logits(model, ids, padding, cache, prefill=self.cache and index == 0)
            refuse_unusable(logits[~ended], index)
            tokens, confidence = self._choose(logits)
            tokens = tokens.masked_fill(ended, fill_id(model.spec))
            ids = torch.cat([ids, tokens.unsqueeze(1)], dim=1)
            real = torch.cat([real, (~ended).to(real.dtype).unsqueeze(1)], dim=1)
            yield _last_column(index, ids, ~ended, confidence)
            ended = ended | torch.isin(tokens, stops)
            if bool(ended.all()):
                return

    def _choose(self, logits: Float[Tensor, "batch vocab"]) -> "tuple[Int[Tensor, ' batch'], Float[Tensor, ' batch']]":
        """The next token of each row, and its probability without temperature."""
        if self.temperature == 0:
            tokens = logits.argmax(dim=-1)
        else:
            probabilities = unmask.filtered_probabilities(logits.float(), self.temperature, self.top_p, None)
            tokens = unmask.draw_tokens(probabilities, self.temperature)
        return tokens, unmask.token_probability(logits.float(), tokens)


def _next_logits(
    model: LanguageModel,
    ids: Int[Tensor, "batch position"],
    attention_mask: Int[Tensor, "batch position"] | None,
    cache: Any,
    *,
    prefill: bool,
) -> "tuple[Float[Tensor, 'batch vocab'], Any]":
    """Logits behind the last id, and the cache to hand in next time; None: the model keeps none.

    prefill: begin a cache where the model has one.
    """
    decode = getattr(model, "decode", None)
    if decode is not None and (prefill or cache is not None):
        try:
            logits, cache = decode(ids if cache is None else ids[:, -1:], attention_mask, cache)
            return logits[:, -1], cache
        except ModelError:  # an architecture without a KV cache says so before it runs
            if not prefill:
                raise
    return model(ids, attention_mask=attention_mask)[:, -1], None


def _last_column(
    index: int,
    ids: Int[Tensor, "batch position"],
    committed: Bool[Tensor, " batch"],
    confidence: Float32[Tensor, " batch"],
) -> Step:
    where = torch.zeros_like(ids, dtype=torch.bool)
    where[:, -1] = committed
    shown = torch.full(ids.shape, torch.nan, device=ids.device)
    shown[:, -1] = confidence.masked_fill(~committed, torch.nan)
    return Step(index=index, canvas=ids, committed=where, confidence=shown)
