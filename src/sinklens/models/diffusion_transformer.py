"""`DiffusionTransformer`: the one class behind LLaDA, Dream and MMaDA.

The families differ in a `TransformerShape`, in the names of their tensors on disk and in their chat format;
the arithmetic is in layers.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinklens.cache.blocks import CanvasCache
from sinklens.errors import UsageError
from sinklens.models.inputs import check_ids, check_length, positions_of, real_tokens
from sinklens.models.language_model import Messages
from sinklens.models.layers import Block, RMSNorm, Rotary, TransformerShape, Visibility
from sinklens.models.tokenization import ChatFormat
from sinklens.types import ModelSpec


class DiffusionTransformer(nn.Module):
    """A bidirectional transformer from ids to logits, in the dtype of its weights."""

    def __init__(
        self, shape: TransformerShape, spec: ModelSpec, *, tokenizer: Any = None, chat_format: ChatFormat
    ) -> None:
        super().__init__()
        self.shape, self.spec = shape, spec
        self.tokenizer, self.chat_format = tokenizer, chat_format
        # Without first values: to draw them on the meta device torch loads its compiler, which takes a second.
        nothing = torch.empty(shape.rows, shape.width)
        self.embed: nn.Embedding = nn.Embedding.from_pretrained(nothing, freeze=False)  # type: ignore[no-untyped-call]
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.rows, bias=False)
        self._rotary = Rotary(shape.head_dim, shape.rope_theta)
        self._warned = False  # of input past spec.max_length

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    takes_canvas_cache = True  # `forward` computes the part of a canvas that a CanvasCache asks for

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    def forward(
        self,
        ids: Any,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: CanvasCache | None = None,
    ) -> Float[Tensor, "batch query vocab"]:
        """Logits of integer ids [batch, query]; attention_mask, of the same shape, is 0 at padding.

        With a cache, `ids` are still the whole canvas, and the logits those of `cache.computed` alone.
        """
        check_ids(ids, self.shape.rows)
        real = real_tokens(attention_mask, ids.shape)
        length = ids.shape[1]
        self._warned = check_length(length, self.spec, warned=self._warned)
        if position_ids is not None:
            length = self._check_positions(position_ids, ids.shape)
        elif real is not None and self.shape.positions_skip_padding:
            position_ids = positions_of(real)
        else:
            position_ids = torch.arange(length, device=ids.device)[None]
        visibility = Visibility.of(real, self.shape.padding, self.embed.weight.dtype)
        if cache is not None:
            computed = cache.computed_of(ids)
            some = slice(computed.start, computed.stop)
            ids, position_ids, visibility = ids[:, some], position_ids[:, some], visibility.seen_from(computed)
        rotation = self._rotary.at(position_ids, length)
        x = self.embed(ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, visibility, None if cache is None else cache.layers[layer])
        return self.unembed(self.final_norm(x))

    def unembed(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query vocab"]:
        """Logits of a normed residual stream."""
        return F.linear(x, (self.embed if self.head is None else self.head).weight)

    def chat(self, messages: Messages) -> Int[Tensor, " position"]:
        """Prompt ids of a conversation, up to where the assistant's answer begins."""
        ids = self.chat_format.encode(messages, self.tokenizer, source=self.spec.source)
        return torch.tensor(ids, device=self.device)

    def _check_positions(self, position_ids: Tensor, shape: torch.Size) -> int:
        """How long a rotary table `position_ids` need."""
        if position_ids.shape != shape or position_ids.dtype.is_floating_point or bool((position_ids < 0).any()):
            raise UsageError(
                f"position_ids have shape {list(position_ids.shape)} and dtype {position_ids.dtype}; "
                f"expected non-negative integers of the shape of the ids, {list(shape)}"
            )
        return int(position_ids.max()) + 1
