"""Random scores that depend on their place alone: seed, row, event, layer, position and head.

A prompt has the same draws in any batch, behind any padding and on every device.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.cache.entries import Entries
from sinklens.kernels.hashing import mix, row_keys, unit


def noise(
    entries: Entries, *, seed: int | tuple[int, ...], event: "int | Int[Tensor, ' batch']"
) -> Float[Tensor, "batch kv_head entry"]:
    """Uniform in [0, 1), one for every entry of every head; `event` tells the cuts of one run apart."""
    rows, heads, _ = entries.positions.shape
    device = entries.positions.device
    events = torch.as_tensor(event, dtype=torch.int64, device=device)
    state = mix(row_keys(seed, rows, device) + events)
    state = mix(state + entries.layer)[:, None, None]
    state = mix(state + since_first(entries))
    state = mix(state + torch.arange(heads, device=device)[:, None])
    return unit(state, bits=24)  # what a float32 holds exactly


def since_first(entries: Entries) -> Int[Tensor, "batch kv_head entry"]:
    """Positions counted from the first real entry that a row still holds in any head."""
    positions = entries.positions.long()
    far = torch.where(entries.real, positions, torch.iinfo(torch.int64).max)
    first = far.amin(dim=(1, 2), keepdim=True)
    return torch.where(entries.real, positions - first, 0)
