"""Memory that a cut cache really gives back, at 32k cached tokens: python benchmarks/cache_memory.py [--device cuda].

A cache of random keys and values in the shape of a real model is handed to a decoder with the same attention and next
to nothing else; one token runs inside `compress`, which cuts all layers but 0 and 1. Measured: bytes of the cache's
tensors, and memory of the process: its resident set once the allocator has handed back what is free (malloc_trim), or
what torch has allocated on a GPU. Each row of the table is a process of its own.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

import sinklens as sl
from sinklens.cache.settings import parse_keep


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def cache_bytes(self, tokens: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize * tokens


@dataclass(frozen=True, kw_only=True)
class Measured:
    shape: str
    keep: str
    entries: int  # a head, in a compressed layer
    tensors_before: int
    tensors_after: int
    process_before: int
    process_after: int
    seconds: float  # one token and the cut


SHAPES = (
    Shape(name="SmolLM2-135M, float32", layers=30, kv_heads=3, head_dim=64, dtype=torch.float32),
    Shape(name="Llama-3-8B, bfloat16", layers=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16),
)


def decoder(shape: Shape, device: str) -> Any:
    config = LlamaConfig(
        vocab_size=8, hidden_size=24, intermediate_size=16, num_hidden_layers=shape.layers, head_dim=shape.head_dim,
        num_attention_heads=shape.kv_heads, num_key_value_heads=shape.kv_heads, max_position_embeddings=2**17,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device=device, dtype=shape.dtype).eval()


def filled(shape: Shape, tokens: int, device: str) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(shape.layers):
        size = (1, shape.kv_heads, tokens, shape.head_dim)
        keys, values = (torch.randn(size, device=device, dtype=shape.dtype) for _ in range(2))
        cache.update(keys, values, layer)
    return cache


def in_use(device: str) -> int:
    gc.collect()
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])
    return 0


def room(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return 0


def measure(shape: Shape, keep: str, tokens: int, device: str) -> Measured:
    model = decoder(shape, device)
    empty = in_use(device)
    cache = filled(shape, tokens, device)
    tensors = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    before = in_use(device) - empty
    count = parse_keep(keep, tokens)
    start = time.perf_counter()
    with torch.no_grad(), sl.compress(model, sl.Compression(order="low", keep=count)) as cut:
        model(torch.zeros((1, 1), dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
    seconds = time.perf_counter() - start
    return Measured(
        shape=shape.name, keep=keep, entries=max(cut.lengths[2:]), tensors_before=tensors, tensors_after=cut.bytes,
        process_before=before, process_after=in_use(device) - empty, seconds=seconds,
    )  # fmt: skip


def table(rows: list[Measured], tokens: int, device: str) -> str:
    what = "allocated" if device.startswith("cuda") else "resident"
    lines = [
        f"{tokens} cached tokens, order low, layers 0 and 1 whole, on {device}; MiB of tensors, and of {what} memory "
        "beyond that of the process without a cache",
        "",
        f"| shape | keep | entries | tensors before | after | {what} before | after | freed | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        sizes = (row.tensors_before, row.tensors_after, row.process_before, row.process_after)
        tensors, left, resident, remains = (f"{size / 2**20:,.0f}" for size in sizes)
        freed = 1 - row.process_after / row.process_before
        lines.append(
            f"| {row.shape} | {row.keep} | {row.entries} | {tensors} | {left} | {resident} | {remains} | "
            f"{freed:.0%} | {row.seconds:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", default="50%,10%")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # the number of a shape: measured in this process
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(asdict(measure(SHAPES[asked.one], asked.keep, asked.tokens, asked.device))))
        return
    rows = []
    for number, shape in enumerate(SHAPES):
        needed = shape.cache_bytes(asked.tokens) * 5 // 4
        if room(asked.device) < needed:
            print(f"{shape.name}: not measured, it needs {needed / 2**30:.1f} GiB and there is less")
            continue
        for keep in asked.keep.split(","):
            settings = ["--one", str(number), "--keep", keep, "--tokens", str(asked.tokens), "--device", asked.device]
            run = subprocess.run([sys.executable, __file__, *settings], stdout=subprocess.PIPE, text=True, check=True)
            rows.append(Measured(**json.loads(run.stdout)))
    print(json.dumps([asdict(row) for row in rows]) if asked.json else table(rows, asked.tokens, asked.device))


if __name__ == "__main__":
    main()
