"""Which entries of a prompt each kv head keeps, and how attention on them is written.

The orders are those of the other caches (scores.py), as far as the keys, values and attention of a refresh give them:
`received` by attention from all positions, `masked` by attention from the masked ones alone, exact, mean over the query
heads of a kv head. Nothing of the prompt is protected, and padding is never kept before a token.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.cache.budget import keep
from sinklens.cache.entries import Entries
from sinklens.cache.scores import score
from sinklens.errors import choose
from sinklens.kernels.mask import AnyMask
from sinklens.kernels.received import received_of

ORDERS = ("low", "high", "random", "masked", "received", "recent", "streaming", "keydiff", "value", "key_value")


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """How much of the prompt is held."""

    keep: int  # entries a kv head
    order: str = "low"  # one of ORDERS; the highest scores are kept
    skip: tuple[int, ...] = (0, 1)  # layers that hold all
    seed: int | tuple[int, ...] = 0  # of "random", for all rows or for each; another draw at every refresh

    def __post_init__(self) -> None:
        choose("order", self.order, ORDERS)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptPrompt:
    """The kept entries of one layer, by position."""

    key: Float[Tensor, "batch kv_head kept dim"]
    value: Float[Tensor, "batch kv_head kept dim"]
    positions: Int[Tensor, "batch kv_head kept"]
    prompt: int  # positions before eviction
    mask: AnyMask | None  # of the span's queries, over the kept entries and all others; None: all is seen

    @classmethod
    def of(
        cls,
        call: AttentionCall,
        eviction: Eviction,
        *,
        layer: int,
        prompt: int,
        span: range,
        masked: Bool[Tensor, "batch key"],
        event: int,
    ) -> "KeptPrompt":
        """From the call of a forward that computed the whole canvas."""
        positions = _kept_positions(call, eviction, layer=layer, prompt=prompt, masked=masked, event=event)
        index = positions[..., None].expand(-1, -1, -1, call.key.shape[-1])
        return cls(
            key=call.key.gather(2, index),
            value=call.value.gather(2, index),
            positions=positions,
            prompt=prompt,
            mask=_mask_of(call, positions, prompt=prompt, span=span),
        )

    def spread(self) -> "tuple[Float[Tensor, 'batch kv_head prompt dim'], Float[Tensor, 'batch kv_head prompt dim']]":
        """Keys and values at their positions, 0 elsewhere."""
        index = self.positions[..., None].expand_as(self.key)
        empty = self.key.new_zeros((*self.key.shape[:2], self.prompt, self.key.shape[3]))
        return empty.scatter(2, index, self.key), empty.scatter(2, index, self.value)

    def hide_evicted(self, call: AttentionCall) -> AttentionCall:
        """`call`, whose keys are the whole canvas, with the evicted ones hidden."""
        rows, _, _, keys = call.scores.shape
        held = torch.ones((rows, call.key.shape[1], keys), dtype=torch.bool, device=call.key.device)
        held[..., : self.prompt] = False
        held.scatter_(2, self.positions, True)
        seen = held.repeat_interleave(call.scores.per_kv, dim=1)[:, :, None]
        if call.mask is None:
            return replace(call, mask=seen)
        mask = call.mask & seen if call.mask.dtype == torch.bool else call.mask.masked_fill(~seen, -torch.inf)
        return replace(call, mask=mask)


def _kept_positions(
    call: AttentionCall, eviction: Eviction, *, layer: int, prompt: int, masked: Bool[Tensor, "batch key"], event: int
) -> Int[Tensor, "batch kv_head kept"]:
    rows, kv_heads = call.key.shape[:2]
    positions = torch.arange(prompt, device=call.key.device).expand(rows, kv_heads, prompt)
    real = torch.ones_like(positions, dtype=torch.bool)
    if call.real_keys is not None:
        real = call.real_keys[:, None, :prompt].expand_as(positions)
    received = None
    if eviction.order in ("masked", "received"):
        received = _received(call, masked if eviction.order == "masked" else None)[..., :prompt]
    entries = Entries(
        layer=layer,
        keys=call.key[:, :, :prompt],
        values=call.value[:, :, :prompt],
        positions=positions,
        real=real,
        received=received,
    )
    seed = eviction.seed
    if isinstance(seed, tuple) and len(seed) * 2 == rows:  # guidance: the batch is doubled
        seed = seed * 2
    order = "received" if eviction.order == "masked" else eviction.order
    return keep(score(order, entries, seed=seed, event=event), eviction.keep, positions=positions, real=real)


def _received(call: AttentionCall, some: Bool[Tensor, "batch key"] | None) -> Float[Tensor, "batch kv_head key"]:
    """Attention received from all queries or from some: mean over them, and over the query heads of each kv head."""
    counted = call.real_queries if some is None or call.real_queries is None else some & call.real_queries
    counted = some if counted is None else counted
    codes = None if counted is None else counted.int() - 1  # 0: counted, -1: not
    paid = received_of(call.scores, codes=codes)
    rows, kv_heads, keys, _ = call.key.shape
    return (paid.total / paid.viewers.clamp(min=1)).view(rows, kv_heads, -1, keys).mean(2)


def _mask_of(
    call: AttentionCall, positions: Int[Tensor, "batch kv_head kept"], *, prompt: int, span: range
) -> AnyMask | None:
    """The mask of the span's queries, cut to the entries that are there; None where it hides none of them."""
    mask = call.mask
    if mask is None:
        return None
    if mask.shape[2] > 1:
        mask = mask[:, :, span.start : span.stop]
    rows, kv_heads = positions.shape[:2]
    others = torch.arange(prompt, call.key.shape[2], device=positions.device).expand(rows, kv_heads, -1)
    columns = torch.cat([positions, others], dim=-1)[:, :, None].expand(-1, -1, mask.shape[2], -1)
    cut = mask.expand(rows, kv_heads, -1, -1).gather(3, columns)
    if bool(cut.all() if cut.dtype == torch.bool else (cut == 0).all()):
        return None
    return cut.repeat_interleave(call.scores.per_kv, dim=1)
