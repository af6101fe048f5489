"""The denoising loop of Dream: every step works on the whole canvas, and commits by a schedule in time.

    times = linspace(1, eps, steps + 1); a step from t to s commits the share 1 - s / t, the last one all
    origin:  each masked position commits with that probability, whatever it holds
    others:  int(share * masked positions a row) positions a row: the most confident, or with alg_temp
             a draw from softmax(confidence / alg_temp)

With as many steps as tokens, truncation makes step 0 commit nothing and the last step two: so do the
originals. Draws: `origin` draws the positions, then the tokens of those; the others draw tokens, then
positions.

Kept from the released code: with a temperature, if the probabilities of one position do not add up to 1 within
1e-6, as happens in bfloat16, no token of the step is drawn and all are the most probable; in float16 an entropy
may be NaN, and such positions commit first.

One difference: where a row has fewer masks than the count of the batch, the original overwrites finished tokens with
masks; here they stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber
from sinklens.errors import ModelError, UsageError, choose
from sinklens.models.language_model import LanguageModel
from sinklens.sampling import unmask
from sinklens.sampling.block_cache import BlockCache, CachedRun, predict_with
from sinklens.sampling.canvas import begin_canvas, extend_mask, mask_id_of, shown
from sinklens.sampling.checks import Number, at_least, not_negative, share
from sinklens.sampling.step import Step
from sinklens.sampling.undecided import Undecided, Usable, asked, on_card, refuse_unusable

# Canvas after a step, positions committed, confidences.
_Outcome = tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"], Float[Tensor, "batch position"]]


@dataclass(frozen=True, kw_only=True)
class DreamSampler:
    """Settings of a Dream run. The filters top_p and top_k act at temperature 0 too: they change the
    confidences.
    """

    steps: int  # forwards in all
    length: int  # tokens to generate
    alg: str = "origin"  # or "maskgit_plus", "topk_margin", "entropy"
    temperature: Number = 0.0  # 0: arg-max
    top_p: Number | None = None  # in (0, 1]
    top_k: int | None = None
    alg_temp: Number | None = None  # temperature of the choice of positions; None or 0: the most confident
    eps: Number = 1e-3  # time of the last step, in (0, 1)
    cache: BlockCache | None = None  # holds the prompt; None: every step computes the whole canvas

    def __post_init__(self) -> None:
        at_least("length", self.length, 1)  # before the steps, which the command line takes from it
        at_least("steps", self.steps, 1)
        choose("alg", self.alg, ("origin", "maskgit_plus", "topk_margin", "entropy"))
        not_negative("temperature", self.temperature)
        share("top_p", self.top_p)
        if self.top_k is not None:
            at_least("top_k", self.top_k, 1)
        not_negative("alg_temp", self.alg_temp or 0.0)
        if not 0.0 < self.eps < 1.0:
            raise UsageError(f"eps is {self.eps!r}; expected a number above 0 and below 1")
        if self.alg == "origin" and self.alg_temp:
            raise UsageError("alg_temp draws positions by confidence, but alg 'origin' has none; choose another alg")
        if self.cache is not None and self.cache.suffix:
            raise UsageError(
                "suffix=True holds the masks behind a block, but DreamSampler has no blocks: any mask may be decided "
                "at any step; leave suffix out, or use LLaDASampler, which runs on Dream too"
            )

    def run(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
    ) -> Iterator[Step]:
        """Steps of a run from `prompt`; every check is made before the first forward."""
        mask_id = mask_id_of(model, "DreamSampler")
        canvas = begin_canvas(prompt, self.length, mask_id)
        cached = None if self.cache is None else self.cache.start(model, prompt=prompt.shape[1], mask_id=mask_id)
        return self._denoise(model, canvas, extend_mask(attention_mask, self.length), mask_id=mask_id, cached=cached)

    def _denoise(
        self,
        model: LanguageModel,
        canvas: Int[Tensor, "batch position"],
        attention_mask: Int[Tensor, "batch position"] | None,
        *,
        mask_id: int,
        cached: CachedRun | None,
    ) -> Iterator[Step]:
        answer = range(canvas.shape[1] - self.length, canvas.shape[1])
        earliest = 0 if bool((canvas[:, : answer.start] == mask_id).any()) else answer.start
        sorts_few = self.alg == "origin" and (self.top_p is not None or self.top_k is not None)  # those that commit
        # Draws are made for masks alone.
        picked = not on_card(canvas) or bool(self.temperature or self.alg_temp or sorts_few)
        window = None if picked else range(earliest, answer.stop)
        times = torch.linspace(1, self.eps, self.steps + 1)
        usable = Usable()
        for index in range(self.steps):
            masked = canvas == mask_id
            count = asked(masked.sum())
            number = StepNumber(index, canvas=canvas, masked=masked)
            predicted = predict_with(cached, model, canvas, attention_mask, number, block=answer)
            undecided = Undecided(where=masked, window=window).among(predicted.targets)
            logits = undecided.logits(predicted)
            best = logits.amax(dim=-1)
            if picked:  # at once: nothing can be drawn from NaN
                refuse_unusable((best / (self.temperature or 1)).unsqueeze(-1), index)
            else:
                usable.look(undecided.spread(best * 0, outside=-torch.inf), index)
            last = index == self.steps - 1
            leaving = torch.ones(()) if last else 1 - times[index + 1] / times[index]
            step = self._by_chance if self.alg == "origin" else self._by_confidence
            canvas, committed, confidence = step(canvas, undecided, logits, leaving, count())
            yield Step(
                index=index,
                canvas=canvas,
                committed=committed,
                confidence=shown(confidence, masked),
                computed=predicted.computed,
            )
        usable.end()

    def _by_chance(
        self,
        canvas: Int[Tensor, "batch position"],
        undecided: Undecided,
        logits: Float[Tensor, "*place vocab"],
        leaving: Float[Tensor, ""],
        masks: int,
    ) -> _Outcome:
        chosen = torch.rand(masks, device=canvas.device) < float(leaving)
        none = torch.full(canvas.shape, torch.nan, device=canvas.device)
        committed = undecided.where.masked_scatter(undecided.where, chosen)
        if undecided.window is None:
            tokens = unmask.draw_or_take_best(self._probabilities(logits[chosen]), self.temperature)
            return canvas.masked_scatter(committed, tokens), committed, none
        tokens = unmask.draw_or_take_best(self._probabilities(logits), 0)
        return torch.where(committed, undecided.put(tokens, canvas), canvas), committed, none

    def _by_confidence(
        self,
        canvas: Int[Tensor, "batch position"],
        undecided: Undecided,
        logits: Float[Tensor, "*place vocab"],
        leaving: Float[Tensor, ""],
        masks: int,
    ) -> _Outcome:
        probabilities = self._probabilities(logits)
        tokens = unmask.draw_or_take_best(probabilities, self.temperature)
        if self.alg == "maskgit_plus":
            values = unmask.maskgit_plus(probabilities, tokens)
        elif self.alg == "topk_margin":
            values = unmask.topk_margin(probabilities)
        else:
            values = unmask.negative_entropy(probabilities)
        confidence = undecided.spread(values, outside=-torch.inf)
        # In float32, as the original: where the product is close to an integer, truncation depends on it.
        count = int(torch.tensor(masks) / len(canvas) * leaving)
        if count == 0:
            committed = torch.zeros_like(undecided.where)
        elif self.alg_temp:
            if bool(confidence.isnan().any()):
                raise ModelError(
                    "an entropy in float16 is NaN where a probability is 0, so no positions can be drawn by it; load "
                    "the model in bfloat16 or float32, or leave alg_temp out"
                )
            committed = unmask.select_drawn(confidence, count, self.alg_temp)
        else:
            committed = unmask.select_top(confidence, count)
        return torch.where(committed, undecided.put(tokens, canvas), canvas), committed, confidence

    def _probabilities(self, logits: Float[Tensor, "*place vocab"]) -> Float[Tensor, "*place vocab"]:
        return unmask.filtered_probabilities(logits, self.temperature, self.top_p, self.top_k)
