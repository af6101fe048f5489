"""One attention call as a value: everything softmax(q k^T) v needs, and where in the model it happens.

Interventions take a call and return a new one (`dataclasses.replace`); observers only look.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.kernels.scores import Scores


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a call happens, as one observer or intervention counts it."""

    step: int  # the sampler's step, or the number of forwards seen so far
    layer: int  # self- and cross-attention are numbered separately, in the order they first run
    module: str  # dotted name inside the observed model
    kind: Literal["self", "cross"] = "self"


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """The arguments of one attention call, in SDPA's conventions.

    `mask` is boolean (True: may be seen) or a float that is added to the logits, and broadcasts to
    [batch, head, query, key]. `is_causal` is aligned top-left, as SDPA's. Key heads may be fewer than query
    heads: query head j reads kv head j // (heads / kv_heads).
    """

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch kv_head key dim"]
    value: Float[Tensor, "batch kv_head key value_dim"]
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None
    is_causal: bool = False
    scale: float | None = None  # None: 1 / sqrt(dim)
    dropout: float = 0.0
    softcap: float | None = None  # c: logits become c * tanh(logits / c) before the mask is added
    sink_logits: Float[Tensor, " head"] | None = None  # one more logit a row, with no value (gpt-oss)
    key_positions: Int[Tensor, " key"] | None = None  # canvas position of each key; None: 0, 1, 2, ...
    query_positions: Int[Tensor, " query"] | None = None  # None: the last `query` of the key positions
    real_keys: Bool[Tensor, "batch key"] | None = None  # False: padding
    real_queries: Bool[Tensor, "batch query"] | None = None  # False: padding
    output_weight: Float[Tensor, "width features"] | None = None  # of the projection that follows
    site: Site | None = None  # filled in by the seam, for each observer in its own count

    @property
    def scores(self) -> Scores:
        """What the logits are made of, as the kernels take it."""
        return Scores(
            query=self.query,
            key=self.key,
            mask=self.mask,
            is_causal=self.is_causal,
            scale=self.scale,
            softcap=self.softcap,
            sink_logits=self.sink_logits,
        )

    def keep_keys(self, index: Int[Tensor, " kept"] | Bool[Tensor, " key"]) -> "AttentionCall":
        """The call with only some of its keys, in the order given; each keeps its position, mask and padding."""
        index = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        index = index.to(self.key.device)
        mask = self.mask
        if mask is not None and mask.shape[-1] > 1:
            mask = mask[..., index]
        if self.is_causal:  # by place: query i sees what were keys 0..i
            causal = torch.arange(self.query.shape[2], device=index.device)[:, None] >= index[None]
            mask = causal[None, None] if mask is None else _both(mask, causal)
        return replace(
            self,
            key=self.key[:, :, index],
            value=self.value[:, :, index],
            mask=mask,
            is_causal=False,
            key_positions=self.where_keys()[index],
            query_positions=self.where_queries(),
            real_keys=None if self.real_keys is None else self.real_keys[:, index],
        )

    def where_keys(self) -> Int[Tensor, " key"]:
        """Canvas position of every key."""
        if self.key_positions is not None:
            return self.key_positions
        return torch.arange(self.key.shape[2], device=self.key.device)

    def where_queries(self) -> Int[Tensor, " query"]:
        """Canvas position of every query: the last ones, unless the call says otherwise."""
        if self.query_positions is not None:
            return self.query_positions
        queries, keys = self.query.shape[2], self.where_keys()
        if keys.numel() >= queries:
            return keys[keys.numel() - queries :]
        return torch.arange(queries, device=self.key.device)

    def outline(self) -> "AttentionCall":
        """Its shapes, positions and padding, without the numbers: to be kept where q, k and v would be too much."""
        nothing = self.query.new_empty(())
        query, key, value = (nothing.expand(tensor.shape) for tensor in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, mask=None)


def _both(mask: Tensor, visible: Tensor) -> Tensor:
    """A mask of either kind, narrowed to what is visible."""
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, -torch.inf)
