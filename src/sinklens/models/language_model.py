"""What samplers, observers and tasks ask of a model, and nothing more.

Any object of this shape can be sampled from and observed: a native model, a wrapped transformers model, or one
class of your own. No code in sinklens asks which of them it is; what differs between them is in `spec`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.types import ModelSpec

MEMBERS = "spec, tokenizer, device and __call__(ids, attention_mask=None)"  # for messages; `chat` is optional
Messages = Sequence[Mapping[str, str]]  # one {"role": ..., "content": ...} a message


@runtime_checkable
class LanguageModel(Protocol):
    """A model from token ids to logits."""

    spec: ModelSpec
    tokenizer: Any  # a transformers tokenizer, or None when the checkpoint came without one

    @property
    def device(self) -> torch.device:
        """Where ids are expected."""

    def __call__(
        self, ids: Int[Tensor, "batch query"], attention_mask: Int[Tensor, "batch query"] | None = None
    ) -> Float[Tensor, "batch query vocab"]:
        """Logits as the checkpoint computes them: Dream's are not shifted."""
