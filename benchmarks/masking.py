"""What masking keys costs in attention itself: `python benchmarks/masking.py [--lengths 256,1024] [--device cuda]`.

One attention call of the shape of LLaDA-8B (32 heads of 128) and of Dream-7B (28 heads over 4 kv heads), random inputs.
Columns are ratios to plain SDPA of the same call in the same run (medians, interleaved): 5 keys of every head at minus
infinity through a mask; the same keys dropped; their values set to 0. In brackets: the kernel alone, with the call made
before. The last column is the largest difference between the outputs of mask and drop.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sinklens.attention.call import AttentionCall
from sinklens.interventions.dropping import drop
from sinklens.interventions.ranking import deny
from sinklens.interventions.values import zero
from sinklens.interventions.views import hide
from sinklens.kernels.forward import run_attention

SHAPES = {"32/32": (32, 32), "28/4": (28, 4)}
TOP, DIM = 5, 128


def seconds(run: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def attend(call: AttentionCall | None) -> torch.Tensor:
    assert call is not None
    return run_attention(call.scores, call.value).output


def make_and_attend(make: Callable[[], AttentionCall | None]) -> torch.Tensor:
    return attend(make())


def medians(runs: dict[str, Callable[[], Any]], repeats: int, device: str) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run, device))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="256,1024,2048")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    chosen = parser.parse_args()
    dtype = torch.bfloat16 if chosen.device == "cuda" else torch.float32
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {chosen.device}, {dtype}, {torch.get_num_threads()} threads, top {TOP}")
    print("heads      S   plain ms   mask (kernel)   drop (kernel)   zero (kernel)   drop / mask   difference")
    for name, (heads, kv_heads) in SHAPES.items():
        for length in map(int, chosen.lengths.split(",")):
            options: dict[str, Any] = {"dtype": dtype, "device": chosen.device}
            query = torch.randn(1, heads, length, DIM, **options)
            key, value = torch.randn(2, 1, kv_heads, length, DIM, **options)
            call = AttentionCall(query=query, key=key, value=value)
            targets = torch.rand(1, heads, length, device=chosen.device).argsort(-1)[..., :TOP]
            denial = deny(call, targets)
            paths: dict[str, Callable[[], AttentionCall | None]] = {
                "mask": partial(hide, call, denial.hidden),
                "drop": partial(drop, call, denial),
                "zero": partial(zero, call, denial.listed),
            }
            runs: dict[str, Callable[[], Any]] = {"plain": partial(attend, call)}
            for path, make in paths.items():
                runs[path] = partial(make_and_attend, make)
                runs[f"{path} kernel"] = partial(attend, make())
            with torch.no_grad():
                took = medians(runs, chosen.repeats, chosen.device)
                apart = (runs["mask"]() - runs["drop"]()).abs().max()
            plain = took["plain"]
            ratios = "".join(f"   {took[p] / plain:5.2f} ({took[f'{p} kernel'] / plain:5.2f})" for p in paths)
            print(
                f"{name:5s} {length:6d} {plain * 1e3:10.2f}{ratios} {took['drop'] / took['mask']:13.2f} "
                f"{float(apart):12.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
