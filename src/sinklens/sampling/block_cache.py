"""A cache for diffusion samplers: keys and values of the prompt and of finished blocks, kept between refreshes.

    every `refresh` steps and where a block begins   the whole canvas is computed, and its keys and values are held
    all other steps                                  the active positions alone, against the held entries and their own

Active is what may still be decided and what lies behind it: the block (from its first mask, or from one that was left
further to the left) to the end of the canvas, or with `suffix` to the end of the block, the masks behind it being held
too. A model whose output at p predicts p + 1 (`spec.shift`) computes one position more, on the left.

With refresh=1 every step is a refresh, and the run is that of no cache, bit for bit. Otherwise it is an approximation:
what is held does not know of the tokens that were committed since the last refresh.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.attention.clock import StepNumber, at_step
from sinklens.cache.blocks import CanvasCache
from sinklens.cache.evicted_prompt import ORDERS, Eviction
from sinklens.errors import UsageError, choose
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.checks import at_least
from sinklens.sampling.predicted import Predicted


@dataclass(frozen=True, kw_only=True)
class BlockCache:
    """Settings of the cache of a diffusion run.

    With `prompt_keep`, each kv head holds so many entries of the prompt, chosen anew at every refresh; the refresh
    itself sees them all, so that refresh=1 evicts nothing.
    """

    refresh: int | None = None  # steps from one refresh to the next; None: only where a block begins
    suffix: bool = False  # hold the masks behind the block too
    prompt_keep: int | None = None  # entries of the prompt a kv head; None: all
    order: str = "low"  # of them: "low" or "high" key norms, "random", what "masked" positions attend to, ... (ORDERS)
    # What is checked here, with a message, is annotated as anything.
    skip: Any = (0, 1)  # layers that hold all of the prompt
    seed: Any = 0  # of order "random": an integer for all rows, or a tuple with one for each

    def __post_init__(self) -> None:
        if self.refresh is not None:
            at_least("refresh", self.refresh, 1)
        if self.prompt_keep is not None:
            at_least("prompt_keep", self.prompt_keep, 1)
        choose("order", self.order, ORDERS)
        if not isinstance(self.skip, tuple) or any(type(layer) is not int or layer < 0 for layer in self.skip):
            raise UsageError(f"skip is {self.skip!r}; expected a tuple of layer numbers such as (0, 1), or ()")
        seeds = self.seed if isinstance(self.seed, tuple) and self.seed else (self.seed,)
        if any(type(seed) is not int for seed in seeds):
            raise UsageError(f"seed is {self.seed!r}; expected an integer, or a tuple of integers, one for each row")

    def start(self, model: LanguageModel, *, prompt: int, mask_id: int) -> "CachedRun":
        """The cache of one run, which holds nothing yet. `prompt`: where the prompt ends."""
        if not getattr(model, "takes_canvas_cache", False):
            raise UsageError(
                f"cache needs a model that computes part of a canvas: LLaDA, Dream or MMaDA as sinklens.load builds "
                f"them, without graph=True; this {model.spec.family!r} model computes all or nothing: leave cache out"
            )
        beyond = [layer for layer in self.skip if layer >= model.spec.layers and self.prompt_keep is not None]
        if beyond:
            raise UsageError(f"skip names layer {beyond[0]}; this model has layers 0 to {model.spec.layers - 1}")
        return CachedRun(self, model, prompt=prompt, mask_id=mask_id)


class CachedRun:
    """The forwards of one run, and what is held between them."""

    def __init__(self, settings: BlockCache, model: LanguageModel, *, prompt: int, mask_id: int) -> None:
        self.settings, self._model = settings, model
        self._prompt, self._mask_id = prompt, mask_id
        eviction = None
        if settings.prompt_keep is not None:
            eviction = Eviction(keep=settings.prompt_keep, order=settings.order, skip=settings.skip, seed=settings.seed)
        self.cache = CanvasCache(model.spec.layers, eviction=eviction)
        self.refreshes = 0  # so far
        self._block: range | None = None
        self._age = 0  # steps since the last refresh

    def predict(
        self,
        ids: Int[Tensor, "rows canvas"],
        attention_mask: Int[Tensor, "rows canvas"] | None,
        step: StepNumber,
        *,
        block: range,
    ) -> Predicted:
        """Logits from one forward under the number of its step; see `sampling.canvas.predict`."""
        if block != self._block or self._age == self.settings.refresh:
            self.cache.refresh(
                span=self._span(step, block, ids.shape[1]), prompt=self._prompt, masked=ids == self._mask_id
            )
            self._block, self._age = block, 0
            self.refreshes += 1
        self._age += 1
        computed = self.cache.computed_of(ids)
        model: Any = self._model  # that it takes a cache was asked at the start
        with torch.no_grad(), at_step(step.computing(computed)):
            logits = model(ids, attention_mask=attention_mask, cache=self.cache)
        return Predicted(logits=logits, positions=computed, shift=self._model.spec.shift, computed=computed)

    def _span(self, step: StepNumber, block: range, width: int) -> range:
        """What is computed until the next refresh: every position that may be decided is among it."""
        assert step.masked is not None
        left = step.masked[:, : block.start].any(dim=0).nonzero()  # masks that earlier blocks or the prompt left
        first = int(left[0]) if len(left) else block.start
        return range(max(0, first - self._model.spec.shift), block.stop if self.settings.suffix else width)


def predict_with(
    cached: CachedRun | None,
    model: LanguageModel,
    ids: Int[Tensor, "rows canvas"],
    attention_mask: Int[Tensor, "rows canvas"] | None,
    step: StepNumber,
    *,
    block: range,
) -> Predicted:
    """Logits of a step, through its cache where the run has one."""
    if cached is not None:
        return cached.predict(ids, attention_mask, step, block=block)
    with torch.no_grad(), at_step(step):
        logits = model(ids, attention_mask=attention_mask)
    return Predicted(logits=logits, positions=range(ids.shape[1]), shift=model.spec.shift)
