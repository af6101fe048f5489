"""The mask of a cut layer, made from the one transformers makes for the whole sequence.

transformers builds one mask for all layers, over every token that has come by. A cut layer holds some of them, others
in each head: its mask is that one, read at the true positions of its entries.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.cache.layer import CutLayer
from sinklens.errors import UsageError
from sinklens.kernels.mask import may_see

Mask = Bool[Tensor, "_ _ query _"] | Float[Tensor, "_ _ query _"]  # rows, heads and keys before and after differ


def real_tokens(mask: Tensor | None) -> Bool[Tensor, "rows key"] | None:
    """What the newest query may see of the whole sequence: everything but padding. None: all of it."""
    return None if mask is None else may_see(mask[:, 0, -1])


def check_mask(mask: Tensor | None, length: int) -> None:
    if mask is not None and mask.shape[-1] != length:
        raise UsageError(
            f"the attention mask covers {mask.shape[-1]} positions, but {length} tokens have come by; pass a mask over "
            "cached and new tokens, whatever was evicted"
        )


def mask_of(
    layer: CutLayer,
    mask: Mask | None,
    *,
    queries: int,
    groups: int,
    additive: torch.dtype | None,
) -> Mask | None:
    """What the next `queries` tokens may see of a layer that was cut, themselves included; None: all of it.

    groups: query heads that share a kv head.
    additive: the dtype of a mask that is added to logits, where `mask` does not tell; None: a boolean one.
    """
    length = layer.seen + queries
    arriving, on_canvas = layer.arriving, layer.arriving.on_canvas
    if mask is None and queries == 1 and layer.whole and arriving.real is None and not on_canvas:
        return None
    positions, alive = _entries(layer, queries)
    rows, kv_heads, entries = positions.shape
    if mask is None:
        newest = torch.arange(layer.seen, length, device=positions.device)
        mask = (torch.arange(length, device=positions.device) <= newest[:, None])[None, None]
        if additive is not None:
            mask = torch.zeros(mask.shape, dtype=additive, device=mask.device).masked_fill(
                ~mask, torch.finfo(additive).min
            )
    if on_canvas:
        alive = torch.zeros((rows, kv_heads, length), dtype=torch.bool, device=alive.device).scatter(
            -1, positions, alive
        )
    by_head = mask.shape[1] > 1
    if by_head:  # one mask a query head
        positions, alive = (column.repeat_interleave(groups, dim=1) for column in (positions, alive))
    wide = mask.to(positions.device).expand(rows, positions.shape[1], queries, length)
    if not on_canvas:
        wide = wide.gather(-1, positions[:, :, None].expand(-1, -1, queries, entries))
    seen = alive[:, :, None]
    wide = wide & seen if wide.dtype == torch.bool else wide.masked_fill(~seen, torch.finfo(wide.dtype).min)
    return wide if by_head else wide.repeat_interleave(groups, dim=1)


def _entries(layer: CutLayer, queries: int) -> tuple[Tensor, Tensor]:
    """Positions of the entries that are held and of those to come, and which of them may be seen at all."""
    held, real = layer.columns["position"].long(), layer.columns["real"]
    rows, kv_heads, _ = held.shape
    new = torch.arange(layer.seen, layer.seen + queries, device=held.device).expand(rows, kv_heads, queries)
    arriving = layer.arriving.real
    alive = (
        torch.ones_like(new, dtype=torch.bool)
        if arriving is None
        else arriving.to(new.device)[:, None].expand(new.shape)
    )
    return torch.cat([held, new], dim=-1), torch.cat([real, alive], dim=-1)
