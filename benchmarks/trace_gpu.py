"""What tracing costs on a GPU: a LLaDA-8B of random bf16 weights, a prompt of 64 tokens, 128 to generate.

    PYTHONPATH=src python3 benchmarks/trace_gpu.py [--layers 32] [--steps 128] [--modes graph,eager] [--repeats 5]
        [--prompts 1]

Whole calls: `sl.generate` against the same run observed as a full trace does and forgotten, and `sl.trace`, from its
first line to its last file on the disk. All ways in turn, `--repeats` times; the median of the ratios to the plain run
of the same turn, with the lowest and highest. With several prompts a trace is one call, in which the end of one sample
is written while the next one runs; the others are calls one after the other.

Hashing the weights for the manifest, once a call whatever the number of prompts, is timed by itself and left out of the
calls. The process that writes starts while they are hashed, and subtracting the hash would hide that: here it starts
beside the first steps, and what it costs them is in the ratios.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from observe_gpu import random_model

import sinklens as sl
from sinklens.recording import identity
from sinklens.sampling.generate import steps

TRACES: dict[str, dict[str, Any]] = {
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
    parser.add_argument("--traces", default=";".join(TRACES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=1)
    chosen = parser.parse_args()
    model = random_model("llada", chosen.layers)
    turns = f"{chosen.repeats} turns of {chosen.prompts} prompt{'s' * (chosen.prompts > 1)}"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {turns}")
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(model, Path(scratch), steps=chosen.steps, prompts=chosen.prompts)
        hashing = bench.hash_before(repeats=chosen.repeats)
        for mode in chosen.modes.split(","):
            bench.run(mode, chosen.traces.split(";"), repeats=chosen.repeats)
        print(f"hashing the weights: {hashing:.2f} s a call")
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


class Bench:
    def __init__(self, model: Any, folder: Path, *, steps: int, prompts: int) -> None:
        self.model, self.folder, self.steps = model, folder, steps
        self.prompts = torch.randint(0, 126000, (prompts, 64), generator=torch.Generator().manual_seed(0)).tolist()
        self.sampler = sl.LLaDASampler(steps=steps, length=128, block=32)
        self.sizes: dict[str, float] = {}
        self.calls = 0

    def hash_before(self, *, repeats: int) -> float:
        """Seconds, the median; traces find it done."""
        took = [self.timed(lambda: identity.hash_weights(self.model)) for _ in range(repeats)]
        known = identity.hash_weights(self.model)
        identity.hash_weights = lambda _: known
        return statistics.median(took)

    def run(self, mode: str, names: list[str], *, repeats: int) -> None:
        graph = mode == "graph"
        ways: dict[str, Callable[[], object]] = {
            "plain": lambda: self.plain(graph=graph),
            "observed": lambda: self.observed(graph=graph),
            **{name: lambda name=name: self.trace(name, graph=graph) for name in names},
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, way in ways.items():
                took = self.timed(way)
                if turn:  # the first is to warm up
                    times[name].append(took)
        for name, seconds in times.items():
            ratios = [mine / plain for mine, plain in zip(seconds, times["plain"], strict=True)]
            shown = f"{1000 * statistics.median(seconds) / self.steps / len(self.prompts):.1f} ms a step"
            if name != "plain":
                shown += f", {statistics.median(ratios):.3f} x plain ({min(ratios):.3f} to {max(ratios):.3f})"
            size = f", {self.sizes[name]:.1f} MB" if name in self.sizes else ""
            print(f"{mode}, {name}: {shown}{size}", flush=True)

    def timed(self, way: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        way()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def plain(self, *, graph: bool) -> None:
        for prompt in self.prompts:
            sl.generate(self.model, [prompt], self.sampler, graph=graph)

    def trace(self, name: str, *, graph: bool) -> None:
        self.calls += 1
        folder = self.folder / str(self.calls)
        sl.trace(self.model, self.prompts, self.sampler, to=folder, graph=graph, **TRACES[name])
        self.sizes[name] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6

    def observed(self, *, graph: bool) -> None:
        """What a full trace measures, forgotten step by step."""
        groups = {"masked": lambda step: step.masked, "unmasked": lambda step: ~step.masked}
        for prompt in self.prompts:
            with sl.observe(self.model, groups=groups, hidden_norms=True, ranks=True) as found:
                for _ in steps(self.model, [prompt], self.sampler, graph=graph):
                    del found.steps[:-1]


if __name__ == "__main__":
    main()
