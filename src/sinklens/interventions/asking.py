"""Whose queries are denied keys, and where the model is writing: what the sampler's clock tells of a step."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import current_step
from sinklens.errors import UsageError
from sinklens.interventions.memory import Memory


def denied_queries(call: AttentionCall, memory: Memory) -> Bool[Tensor, "batch query"] | None:
    """Which queries of a call are denied keys; None: all of them."""
    queries, where = memory.plan.queries, call.where_queries()
    if queries in ("all", "last"):
        return None
    if memory.plan.causal:  # "generated"
        return (where >= memory.prompt_end).expand(call.query.shape[0], -1)
    step = current_step()
    masked = None if step is None else step.masked
    if queries == "block":
        block = None if step is None else step.block
        if block is None:
            raise UsageError("queries='block' needs a sampler with blocks, such as LLaDASampler; use 'masked' or 'all'")
        return ((where >= block.start) & (where < block.stop)).expand(call.query.shape[0], -1)
    if masked is None or memory.masked_at_first is None:
        raise UsageError(
            f"queries={queries!r} needs a sampler that says which positions are masked (LLaDASampler, DreamSampler); "
            "a model called by itself has only queries='all'"
        )
    at = {"generated": memory.masked_at_first, "masked": masked, "unmasked": ~masked}[queries]
    return at.to(where.device)[:, where]


def fills_cache(memory: Memory) -> bool:
    """Whether this forward fills a block cache whose entries are to be the model's own: it is denied nothing."""
    if memory.plan.keys != "block_cached":
        return False
    step = current_step()
    if step is None or step.computed is None:
        raise UsageError(
            "keys='block_cached' denies keys that a block cache holds, but this run has none; give the sampler one "
            "(cache=BlockCache(refresh=16)), or use keys='cached', which needs none"
        )
    return len(step.computed) == memory.span.keys


def anchor_of(call: AttentionCall, causal: bool) -> Int[Tensor, " batch"]:
    """The first position of the block, else of the masks of each row, else the newest query."""
    rows, where, step = call.query.shape[0], call.where_queries(), current_step()
    if step is not None and step.block is not None:
        return torch.full((rows,), step.block.start, device=where.device)
    if causal or step is None or step.masked is None:
        return where[-1:].expand(rows)
    masked = step.masked.to(where.device)
    first = masked.int().argmax(-1)
    return torch.where(masked.any(-1), first, masked.shape[1])


def mask_state(call: AttentionCall) -> Bool[Tensor, "batch key"] | None:
    """Which keys are masked positions, as far as a sampler says so."""
    step = current_step()
    if step is None or step.masked is None:
        return None
    return step.masked.to(call.key.device)[:, call.where_keys()]
