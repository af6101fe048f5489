"""The denoising loop of LLaDA, which MMaDA shares: block by block, the most confident positions commit.

    for each block, for each of its steps:
        logits      = model(canvas), guided: u + (cfg + 1)(c - u), u seeing masks for all that was given
        token       = arg-max, or a Gumbel-max draw in float64
        confidence  = softmax(logits)[token] without temperature, or uniform noise
        the scheduled number of most confident masked positions before the block's end take their token

Kept from the released code: masks left in earlier blocks or inside the prompt compete too; the mask id may
itself be proposed, which uses up the slot and leaves the mask; under `confidence_eos_eot_inf` a position
proposing eos or eot has confidence 0 at temperature 0, while above 0 only eot is held back. Draws: the
Gumbel noise of all positions, then the uniform confidences of all positions.

MMaDA differs by its family name alone: confidence in float64, and its own stop rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber
from sinklens.errors import UsageError, choose
from sinklens.models.language_model import LanguageModel
from sinklens.sampling import unmask
from sinklens.sampling.block_cache import BlockCache, CachedRun, predict_with
from sinklens.sampling.canvas import begin_canvas, extend_mask, mask_id_of, shown
from sinklens.sampling.checks import Number, at_least, not_negative, share
from sinklens.sampling.predicted import Predicted
from sinklens.sampling.special_ids import required_id
from sinklens.sampling.step import Step
from sinklens.sampling.undecided import Undecided, Usable, on_card


@dataclass(frozen=True, kw_only=True)
class LLaDASampler:
    """Settings of a LLaDA or MMaDA run.

    With `threshold` every position whose confidence exceeds it commits, at least one a step and row, until
    the block has no mask left: `steps` then plays no part, and the mask id is never proposed, so each step
    gets further. `stop_at_eos`: LLaDA stops when every row has an eos with no mask before it; MMaDA after a
    block whose last position is eot in every row.
    """

    steps: int  # forwards in all; a multiple of length / block
    length: int  # tokens to generate
    block: int  # tokens a block; divides length
    temperature: Number = 0.0  # 0: arg-max
    cfg: Number = 0.0  # guidance scale; 0: none, and half the work
    remasking: str = "low_confidence"  # or "random"
    logits_eos_inf: bool = False  # never propose eos
    confidence_eos_eot_inf: bool = False  # commit eos and eot last
    eos_id: int | None = None  # None: the model's
    eot_id: int | None = None  # None: the model's
    threshold: Number | None = None  # in (0, 1]; None: the schedule
    stop_at_eos: bool = False
    cache: BlockCache | None = None  # None: every step computes the whole canvas

    def __post_init__(self) -> None:
        at_least("length", self.length, 1)  # before the steps, which the command line takes from it
        at_least("steps", self.steps, 1)
        at_least("block", self.block, 1)
        not_negative("temperature", self.temperature)
        not_negative("cfg", self.cfg)
        share("threshold", self.threshold)
        choose("remasking", self.remasking, ("low_confidence", "random"))
        if self.length % self.block:
            raise UsageError(
                f"length {self.length} is not a multiple of block {self.block}; choose one that divides it"
            )
        blocks = self.length // self.block
        if self.steps % blocks and self.threshold is None:
            raise UsageError(
                f"steps {self.steps} cannot be shared by {blocks} blocks (length {self.length} / block "
                f"{self.block}); choose a multiple of {blocks}"
            )
        if self.threshold is not None and self.remasking == "random":
            raise UsageError("threshold compares confidences, but remasking is 'random'; use 'low_confidence'")

    def run(
        self,
        model: LanguageModel,
        prompt: Int[Tensor, "batch prompt"],
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
    ) -> Iterator[Step]:
        """Steps of a run from `prompt`; every check is made before the first forward."""
        mask_id = mask_id_of(model, "LLaDASampler")
        mmada = model.spec.family == "mmada"
        wants_eos = self.logits_eos_inf or self.confidence_eos_eot_inf or (self.stop_at_eos and not mmada)
        wants_eot = self.confidence_eos_eot_inf or (self.stop_at_eos and mmada)
        loop = _Loop(
            sampler=self,
            model=model,
            attention_mask=extend_mask(attention_mask, self.length),
            given=begin_canvas(prompt, self.length, mask_id) != mask_id,
            mask_id=mask_id,
            eos_id=required_id("eos_id", self.eos_id, model.spec) if wants_eos else None,
            eot_id=required_id("eot_id", self.eot_id, model.spec) if wants_eot else None,
            mmada=mmada,
            cached=None if self.cache is None else self.cache.start(model, prompt=prompt.shape[1], mask_id=mask_id),
        )
        return loop.denoise(prompt)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Loop:
    """One run: the settings, the model, and what stays fixed while the canvas fills."""

    sampler: LLaDASampler
    model: LanguageModel
    attention_mask: Int[Tensor, "batch position"] | None
    given: Bool[Tensor, "batch position"]
    mask_id: int
    eos_id: int | None
    eot_id: int | None
    mmada: bool
    cached: CachedRun | None

    def denoise(self, prompt: Int[Tensor, "batch prompt"]) -> Iterator[Step]:
        usable = Usable()
        yield from self._blocks(prompt, usable)
        usable.end()

    def _blocks(self, prompt: Int[Tensor, "batch prompt"], usable: Usable) -> Iterator[Step]:
        index, start, size = 0, prompt.shape[1], self.sampler.block
        canvas = begin_canvas(prompt, self.sampler.length, self.mask_id)
        earliest = 0 if bool((prompt == self.mask_id).any()) else start  # masks inside the prompt compete too
        for first in range(start, start + self.sampler.length, size):
            block = range(first, first + size)
            inside = torch.arange(canvas.shape[1], device=canvas.device) < block.stop
            for count in self._quotas():
                masked = canvas == self.mask_id
                eligible = masked & inside
                if count is None and not bool(eligible.any()):
                    break
                number = StepNumber(index, canvas=canvas, masked=masked, block=block, rows=len(canvas))
                window = range(earliest, block.stop) if on_card(canvas) else None
                step = self._step(number, Undecided(where=eligible, window=window), count, usable)
                canvas, index = step.canvas, index + 1
                yield step
                if self._eos_reached(canvas, start):
                    return
            if self._turn_ended(canvas[:, block.stop - 1]):
                return

    def _quotas(self) -> Iterator[int | None]:
        """How many positions each row commits, step by step; None: whatever passes the threshold.

        A block is all masks when its turn comes, so nobody has to be asked.
        """
        if self.sampler.threshold is not None:
            return repeat(None)
        steps = self.sampler.steps * self.sampler.block // self.sampler.length
        return iter(unmask.transfer_schedule(self.sampler.block, steps))

    def _step(self, number: StepNumber, undecided: Undecided, count: int | None, usable: Usable) -> Step:
        canvas, block = number.canvas, number.block
        assert canvas is not None
        assert block is not None
        predicted = self._logits(number, block)
        undecided = undecided.among(predicted.targets)
        tokens, values, best = self._decide(undecided.logits(predicted), undecided)
        confidence = undecided.spread(values, outside=-torch.inf)
        usable.look(confidence if best is None else undecided.spread(best, outside=-torch.inf), number)
        if count is None:
            assert self.sampler.threshold is not None
            committed = unmask.select_above(confidence, self.sampler.threshold)
        else:
            committed = unmask.select_top(confidence, count)
        return Step(
            index=int(number),
            canvas=torch.where(committed, undecided.put(tokens, canvas), canvas),
            committed=committed,
            confidence=shown(confidence, undecided.where),
            block=block,
            computed=predicted.computed,
        )

    def _logits(self, step: StepNumber, block: range) -> Predicted:
        canvas, mask = step.canvas, self.attention_mask
        assert canvas is not None
        if self.sampler.cfg == 0:
            return predict_with(self.cached, self.model, canvas, mask, step, block=block)
        both = torch.cat([canvas, canvas.masked_fill(self.given, self.mask_id)])
        masks = None if mask is None else mask.repeat(2, 1)
        predicted = predict_with(self.cached, self.model, both, masks, step, block=block)
        with_prompt, without = predicted.logits.chunk(2)
        return replace(predicted, logits=without + (self.sampler.cfg + 1) * (with_prompt - without))

    def _decide(
        self, logits: Float[Tensor, "*place vocab"], undecided: Undecided
    ) -> tuple[Int[Tensor, "*place"], Float[Tensor, "*place"], Float[Tensor, "*place"] | None]:
        """Token and confidence of each place, and what tells whether they can be used, if the confidence does not."""
        settings, best = self.sampler, None
        if settings.logits_eos_inf or settings.confidence_eos_eot_inf:
            best = logits.amax(dim=-1) * 0  # of eos and eot too, which are lost below
            logits = logits.clone()
        if settings.logits_eos_inf:
            logits[..., self.eos_id].fill_(-torch.inf)
        noise = None
        if settings.temperature > 0:
            shape = torch.Size((*undecided.where.shape, logits.shape[-1]))  # of all positions, as the original draws
            noise = undecided.of(unmask.gumbel_noise(shape, logits.device))
        proposable = logits
        if settings.threshold is not None:
            proposable = logits.clone()
            proposable[..., self.mask_id].fill_(-torch.inf)
        tokens = unmask.propose_tokens(proposable, settings.temperature, noise)
        if settings.remasking == "random":
            drawn = undecided.of(torch.rand(undecided.where.shape, device=logits.device))
            left = logits.amax(dim=-1) * 0
            return tokens, drawn, left if best is None else best + left
        if settings.confidence_eos_eot_inf:
            logits[..., self.eot_id].fill_(-torch.inf)
            if settings.temperature == 0:
                logits[..., self.eos_id].fill_(-torch.inf)
        values = unmask.token_probability(logits.double() if self.mmada else logits, tokens)
        return tokens, values, None if best is None else best + values

    def _eos_reached(self, canvas: Int[Tensor, "batch position"], start: int) -> bool:
        """LLaDA's stop: every row has an eos behind the prompt with no mask before it."""
        if self.mmada or not self.sampler.stop_at_eos:
            return False
        decided = (canvas == self.mask_id).cumsum(dim=1) == 0
        return bool(((canvas == self.eos_id) & decided)[:, start:].any(dim=1).all())

    def _turn_ended(self, last: Int[Tensor, " batch"]) -> bool:
        """MMaDA's stop, asked after a block: its last position is eot in every row."""
        return self.mmada and self.sampler.stop_at_eos and last.tolist() == [self.eot_id] * len(last)
