"""Which tiles the column kernel runs best with: `PYTHONPATH=src python3 benchmarks/tiles_gpu.py [--lengths 1024,4096]`.

For every choice of tiles, warps and stages: microseconds of the kernel alone on 32 heads of 128 in bf16, and the share
of 650 TFLOP/s that its products make up.
"""

import argparse
from functools import partial
from itertools import product

import torch
import triton

from sinklens.kernels import triton as kernels
from sinklens.kernels.scores import Scores

TILES = [(128, 128), (128, 64), (64, 128), (64, 64), (256, 64), (128, 256), (256, 128)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="192,1024,4096,16384")
    parser.add_argument("--groups", type=int, default=1)
    chosen = parser.parse_args()
    for length in map(int, chosen.lengths.split(",")):
        query, key = torch.randn(2, 1, length, 32, 128, device="cuda", dtype=torch.bfloat16).transpose(2, 3)
        lse = (query.float() @ key.float().transpose(-1, -2) / 128**0.5).logsumexp(-1) if length < 8192 else None
        lse = torch.full((1, 32, length), 12.0, device="cuda") if lse is None else lse
        codes = torch.randint(0, chosen.groups, (1, length), device="cuda", dtype=torch.int32)
        scores = Scores(query=query, key=key)
        found = []
        for (keys, queries), warps, stages in product(TILES, (4, 8), (2, 3)):
            tiles = {
                "BLOCK_Q": queries, "BLOCK_K": keys, "BLOCK_D": 128, "UPCAST": False,
                "num_warps": warps, "num_stages": stages,
            }  # fmt: skip
            kernels._column_blocks = lambda *_, tiles=tiles: tiles
            try:
                run = partial(kernels.received, scores, codes=codes, groups=chosen.groups, lse=lse)
                run()
                time = 1000 * triton.testing.do_bench_cudagraph(run, rep=20)
            except Exception as error:  # tiles that do not fit are no choice
                print(f"{length:6d}  {keys:4d} x {queries:4d}, {warps} warps, {stages} stages: {str(error)[:60]!r}")
                continue
            found.append((time, keys, queries, warps, stages))
        for time, keys, queries, warps, stages in sorted(found)[:6]:
            rate = 2 * 32 * 128 * length**2 / (time * 1e-6) / 650e12
            print(f"{length:6d}  {keys:4d} x {queries:4d}, {warps} warps, {stages} stages: {time:9.1f} us, {rate:.0%}")


if __name__ == "__main__":
    main()
