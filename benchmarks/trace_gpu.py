"""What tracing costs on a GPU: a LLaDA-8B of random bf16 weights, a prompt of 64 tokens, 128 to generate.

    PYTHONPATH=src python3 benchmarks/trace_gpu.py [--layers 32] [--steps 128] [--modes graph,eager]

Milliseconds a step of plain generation and of tracing in the same run, the ratio of whole runs, and the size on disk;
with steps launched by the host, and as a CUDA graph on both sides. A traced run counts from its first step to its last
file. Hashing the weights for the manifest happens once and is told apart.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from observe_gpu import random_model

import sinklens as sl
from sinklens.recording import identity
from sinklens.sampling.generate import steps

VARIANTS = {
    "full": {},
    "full, no norms": {"norms": False},
    "sinks": {"detail": "sinks"},
    "sinks, every 4th step": {"detail": "sinks", "every": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--modes", default="graph,eager")
    parser.add_argument("--skip-hash", action="store_true", help="do not time the hash of the weights")
    chosen = parser.parse_args()
    model = random_model("llada", chosen.layers)
    prompt = torch.randint(0, 126000, (1, 64), generator=torch.Generator().manual_seed(0)).tolist()
    sampler = sl.LLaDASampler(steps=chosen.steps, length=128, block=32)
    short = sl.LLaDASampler(steps=8, length=128, block=32)
    if not chosen.skip_hash:
        print(f"hashing the weights: {timed(lambda: identity.hash_weights(model)):.1f} s", flush=True)
    identity.hash_weights = lambda _: "timed apart"
    with tempfile.TemporaryDirectory() as scratch:
        for graph in (mode == "graph" for mode in chosen.modes.split(",")):
            sl.generate(model, prompt, short, graph=graph)  # warm
            sl.trace(model, prompt, short, to=Path(scratch) / f"warm-{graph}", graph=graph)
            plain = timed(lambda graph=graph: sl.generate(model, prompt, sampler, graph=graph))
            print(f"{'graph' if graph else 'eager'}, plain: {1000 * plain / chosen.steps:.1f} ms a step", flush=True)
            seen = timed(lambda graph=graph: observed(model, prompt, sampler, graph=graph))
            print(f"  observed, not written: {1000 * seen / chosen.steps:.1f} ms a step, {seen / plain:.2f} x plain")
            for name, options in VARIANTS.items():
                folder = Path(scratch) / f"{graph}-{name}".replace(" ", "-").replace(",", "")
                times: list[float] = []
                note = lambda *_, times=times: times.append(time.perf_counter())  # noqa: E731
                sl.trace(model, prompt, sampler, to=folder, progress=note, graph=graph, **options)
                step = (time.perf_counter() - times[0]) / (chosen.steps - 1)
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                shown = f"{1000 * step:.1f} ms a step, {step * chosen.steps / plain:.2f} x plain, {size / 1e6:.1f} MB"
                print(f"  {name}: {shown}", flush=True)
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


def observed(model, prompt, sampler, *, graph: bool) -> None:
    """What a full trace measures, forgotten step by step."""
    groups = {"masked": lambda step: step.masked, "unmasked": lambda step: ~step.masked}
    with sl.observe(model, groups=groups, hidden_norms=True, ranks=True) as found:
        for _ in steps(model, prompt, sampler, graph=graph):
            del found.steps[:-1]


def timed(run) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
