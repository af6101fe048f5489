"""Short calls of several layers, summed as one: on a CPU a pass over few tokens is mostly overhead, which is had once.

Calls wait until their forward ends, somebody reads, or as many logits wait as a slab of the pass holds. Only unchanged
calls of our own models do: nobody there writes into queries, keys and values that attention has seen, while an
intervention may use one buffer for all layers.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Seen
from sinklens.kernels.received import Received
from sinklens.kernels.scores import Scores
from sinklens.kernels.sums import Sums
from sinklens.kernels.uniform import Uniform


def may_wait(seen: Seen, owner: nn.Module) -> bool:
    """Whether a call is one that can be summed with others, later."""
    call, after = seen.incoming, seen.effective
    if not type(owner).__module__.startswith("sinklens.models.") or call.query.device.type != "cpu":
        return False
    plain = after.mask is None and call.mask is None and after.sink_logits is None and call.sink_logits is None
    return plain and all(getattr(after, name) is getattr(call, name) for name in ("query", "key", "value"))


def logits_of(call: AttentionCall) -> int:
    return prod(call.scores.shape)


def alike(calls: Sequence[AttentionCall], shared: Sequence[tuple[Tensor, Uniform]]) -> bool:
    """Whether calls can be one: the same uniform attention, which means the same shape and query groups, and logits."""
    if any(expected is not shared[0][1] for _, expected in shared):
        return False
    return len({(call.query.dtype, call.scale, call.softcap, call.key.shape[1]) for call in calls}) == 1


def joined(calls: Sequence[AttentionCall]) -> Scores:
    """The calls as one, of as many times the rows."""
    return Scores(
        query=torch.cat([call.query for call in calls]),
        key=torch.cat([call.key for call in calls]),
        is_causal=calls[0].is_causal,
        scale=calls[0].scale,
        softcap=calls[0].softcap,
    )


def apart(result: Received, calls: int) -> list[Received]:
    """What was received in each of so many calls."""
    sums = result.sums
    by_call = sums.by_group.chunk(calls, dim=1)
    entropy = [None] * calls if sums.entropy is None else sums.entropy.chunk(calls)
    return [
        Received(
            sums=Sums(by_group=by_call[i], null_mass=None, entropy=entropy[i]), uniform=result.uniform, impl=result.impl
        )
        for i in range(calls)
    ]
