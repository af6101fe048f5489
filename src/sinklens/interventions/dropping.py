"""Keys dropped from a call instead of masked: the same result, and a kernel without a mask.

Every head loses other keys, so kv heads that are shared are gathered apart, and the keys of a dropped call no longer
stand at common positions: nothing but attention itself may read it.
"""

from dataclasses import replace

import torch

from sinklens.attention.call import AttentionCall
from sinklens.attention.capture import capturing
from sinklens.interventions.ranking import Denial


def drop(call: AttentionCall, denial: Denial) -> AttentionCall | None:
    """The call without the listed keys; None where heads lose different numbers, or a mask stays in any case."""
    if call.mask is not None or call.is_causal or denial.spared is not None:
        return None
    batch, heads, _, keys = call.scores.shape
    lost = _lost(denial)
    if lost is None:
        return None
    kept = denial.listed.to(torch.int8).sort(dim=-1, stable=True).indices[..., : keys - lost]
    rows = torch.arange(batch, device=kept.device)[:, None, None]
    kv_head = (torch.arange(heads, device=kept.device) // call.scores.per_kv)[None, :, None]
    return replace(
        call,
        key=call.key[rows, kv_head, kept],
        value=call.value[rows, kv_head, kept],
        key_positions=call.where_keys()[: keys - lost],  # of none of the heads, but as many
        query_positions=call.where_queries(),
        real_keys=None,
    )


def _lost(denial: Denial) -> int | None:
    """How many keys every head loses; None where that differs, or cannot be asked."""
    if capturing():
        return denial.each
    fewest, most = (int(count) for count in denial.listed.sum(-1).aminmax())
    return fewest if fewest == most else None
