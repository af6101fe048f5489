"""What observing costs on a GPU: one denoising step of a model of LLaDA-8B's shape, random bf16 weights.

    PYTHONPATH=src python3 benchmarks/observe_gpu.py [--lengths 192,512,...] [--batch 1] [--json FILE]

For each sequence length: the median time of a plain step and of an observed one, interleaved in the same run, their
ratio with the spread of the medians of five blocks, and the peak memory that observing adds.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import sinklens as sl
from sinklens.models.diffusion_transformer import DiffusionTransformer
from sinklens.models.layers import TransformerShape
from sinklens.models.llada import header_chat
from sinklens.types import ModelSpec

VARIANTS: dict[str, dict[str, Any]] = {"received": {"norms": False}, "received + norms": {"norms": True}}


def llada_8b(layers: int) -> DiffusionTransformer:
    """LLaDA-8B's shape with random weights, made on the GPU."""
    shape = TransformerShape(
        layers=layers, heads=32, kv_heads=32, width=4096, mlp_width=12288, rows=126464, norm_eps=1e-5,
        rope_theta=500000.0,
    )  # fmt: skip
    spec = ModelSpec(
        family="llada", layers=layers, heads=32, kv_heads=32, head_dim=128, width=4096, vocab_size=126464,
        causal=False, mask_id=126336,
    )  # fmt: skip
    with torch.device("meta"):
        model = DiffusionTransformer(shape, spec, chat_format=header_chat("\n\n"))
    model = model.to(torch.bfloat16).to_empty(device="cuda").eval()
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.02)
    return model


def milliseconds(run: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(model: DiffusionTransformer, length: int, batch: int, options: dict[str, Any]) -> dict[str, Any]:
    ids = torch.randint(0, 126000, (batch, length), device="cuda")

    def step(observed: bool) -> Any:
        with sl.observe(model, **options) if observed else nullcontext() as seen:
            model(ids)
        return seen

    peaks = []
    for observed in (False, True):
        step(observed)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        seen = step(observed)
        peaks.append(torch.cuda.max_memory_allocated())
    ratios, plain_times = [], []
    with sl.observe(model, **options) as watching:  # entering the context is not a step
        for _ in range(3):
            model(ids)
    for _ in range(5):
        plain = [milliseconds(lambda: model(ids)) for _ in range(8)]
        with sl.observe(model, **options) as watching:
            watched = []
            for _ in range(8):
                watched.append(milliseconds(lambda: model(ids)))
                watching.steps.clear()
            model(ids)
        plain_times.append(statistics.median(plain))
        ratios.append(statistics.median(watched) / statistics.median(plain))
    record = seen.calls[0]
    return {
        "length": length,
        "batch": batch,
        "plain_ms": statistics.median(plain_times),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "extra_mib": (peaks[1] - peaks[0]) / 2**20,
        "kernel": record.kernel,
        "impl": record.impl,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="192,512,1024,2048,4096")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    model = llada_8b(chosen.layers)
    rows = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {chosen.layers} layers, batch {chosen.batch}")
    print("variant            S     plain ms  ratio (low-high)       extra MiB  kernel       impl")
    with torch.no_grad():
        for name, options in VARIANTS.items():
            for length in map(int, chosen.lengths.split(",")):
                row = {"variant": name} | measure(model, length, chosen.batch, options)
                rows.append(row)
                print(
                    f"{name:17} {length:5d} {row['plain_ms']:9.2f}   {row['ratio']:.3f} ({row['ratio_low']:.3f}-"
                    f"{row['ratio_high']:.3f})   {row['extra_mib']:9.1f}  {row['kernel']:12} {row['impl']}",
                    flush=True,
                )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
