"""Print the peak extra memory (MiB) that attention received takes: `python peak.py IMPL S HEADS DIM`."""

import resource
import sys

import torch

from sinklens.kernels.received import attention_received


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


impl, length, heads, dim = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
query, key = torch.randn(1, heads, length, dim), torch.randn(1, heads, length, dim)
attention_received(query[:, :, :64], key[:, :, :64], impl=impl)  # what a first call loads once
before = peak_mib()
attention_received(query, key, is_causal=True, impl=impl)
print(peak_mib() - before)
