"""How large a trace will be, before it is recorded."""

from math import ceil

from sinklens.errors import UsageError, choose
from sinklens.traces.manifest import DETAILS

BUFFER_BYTES = 32 * 2**20  # gathered before row groups are made of it
GROUP_BYTES = 256 * 2**10  # of a row group; a layer that has less shares one with the next

# Bytes a value on disk: benchmarks/trace_sizes.py, zstd 3, split (docs/traces.md has the table).
RECEIVED_BYTES, EXACT_RECEIVED_BYTES = 1.9, 3.3
NORM_BYTES, EXACT_NORM_BYTES = 1.4, 3.2
KEPT_BYTES = 0.5  # more for a value in a short list
POSITION_BYTES = 1.1
SCALAR_BYTES = 3.8  # a float32 that is not rounded
# Share of the keys that detail "sinks" keeps, on synthetic attention with one sink a head. A guess for real models:
# causal rows keep more, because the last keys have few viewers and their share is noisy.
KEPT_SHARE, KEPT_SHARE_CAUSAL = 0.06, 0.2
SAMPLE_BYTES = 16_000  # the small tables and the headers of all
CHUNK_BYTES = 200  # a column in a row group: its header and its entry in the footer


def estimate_bytes(
    *,
    samples: int,
    steps: int,
    layers: int,
    heads: int,
    kv_heads: int,
    keys: int,
    detail: str = "full",
    every: int = 1,
    groups: bool = True,
    norms: bool = True,
    causal: bool = False,
    exact: bool = False,
) -> int:
    """Bytes on disk, full maps left out. `keys`: of the last step; a causal canvas grows up to it, one key a step."""
    sparse = choose("detail", detail, DETAILS) == "sinks"
    sizes = {"samples": samples, "steps": steps, "layers": layers, "heads": heads, "keys": keys, "every": every}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name} is {size}; expected 1 or more")
    stored = ceil(steps / every) * layers
    length = keys - (min(steps, keys) - 1) / 2 if causal else keys
    readings = (2 if causal else 3) if groups else 1
    listed = length * ((KEPT_SHARE_CAUSAL if causal else KEPT_SHARE) if sparse else 1)
    spread = length * min(1.0, 4 * listed / length) if sparse else length  # positions that any of several heads kept

    more = KEPT_BYTES if sparse else 0
    received = (EXACT_RECEIVED_BYTES if exact else RECEIVED_BYTES) + more
    norm = (EXACT_NORM_BYTES if exact else NORM_BYTES) + more
    row = 1.5 + readings * listed * received + norms * (listed * norm + 2 * SCALAR_BYTES)
    side = 2 * spread * norm * kv_heads + spread * norm
    if sparse:
        row += listed * POSITION_BYTES + (readings + norms) * SCALAR_BYTES
        side += spread * POSITION_BYTES * (kv_heads + 1)
    values = stored * (heads * row + norms * side)

    held = 4 * stored * (heads * listed * (readings + norms) + norms * spread * (2 * kv_heads + 1))
    flushes = ceil(held / BUFFER_BYTES)
    row_groups = min(flushes * layers, ceil(held / GROUP_BYTES))  # small layers share a row group
    columns = 8 + readings + (5 + readings if sparse else 0) + norms * (16 if sparse else 11)
    uniform = steps / every * length * (5.0 if causal else 0.1)
    return ceil(samples * (SAMPLE_BYTES + row_groups * columns * CHUNK_BYTES + values + uniform + steps * keys))
