"""What the denoising loops share: the canvas, its padding, one announced forward, and the checks around it.

The canvas is the prompt followed by `length` mask ids; its width never changes.
"""

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from sinklens.attention.clock import StepNumber, at_step
from sinklens.errors import UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.predicted import Predicted


def mask_id_of(model: LanguageModel, sampler: str) -> int:
    """The model's mask id, or a UsageError when it cannot be denoised."""
    if model.spec.causal:
        raise UsageError(
            f"{sampler} denoises masked positions, but {model.spec.family!r} is a causal model; "
            "use AutoregressiveSampler"
        )
    if model.spec.mask_id is None:
        raise UsageError(
            f"{sampler} needs a mask id, but the spec of this {model.spec.family!r} model has none; "
            "set ModelSpec.mask_id, or use a model trained to fill in masks"
        )
    return model.spec.mask_id


def begin_canvas(prompt: Int[Tensor, "batch prompt"], length: int, mask_id: int) -> Int[Tensor, "batch position"]:
    return torch.cat([prompt, prompt.new_full((prompt.shape[0], length), mask_id)], dim=1)


def extend_mask(
    attention_mask: Int[Tensor, "batch prompt"] | None, length: int
) -> Int[Tensor, "batch position"] | None:
    """The padding of the whole canvas: what is generated is always real."""
    if attention_mask is None:
        return None
    return torch.cat([attention_mask, attention_mask.new_ones((attention_mask.shape[0], length))], dim=1)


def predict(
    model: LanguageModel,
    ids: Int[Tensor, "rows position"],
    attention_mask: Int[Tensor, "rows position"] | None,
    step: StepNumber,
) -> Float[Tensor, "rows position vocab"]:
    """Logits for each position, from one forward under the number of its step.

    Where the model's output at p predicts position p + 1 (`spec.shift`), it is moved there; position 0
    keeps its own.
    """
    with torch.no_grad(), at_step(step):
        logits = model(ids, attention_mask=attention_mask)
    whole = range(ids.shape[1])
    return Predicted(logits=logits, positions=whole, shift=model.spec.shift).within(whole)


def shown(
    confidence: Float[Tensor, "batch position"], where: Bool[Tensor, "batch position"]
) -> Float32[Tensor, "batch position"]:
    """The confidence as a Step reports it: float32, NaN where none is defined."""
    return confidence.float().masked_fill(~where, torch.nan)
