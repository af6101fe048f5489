"""What observing and masking cost on a GPU: one denoising step of a model of an 8B shape, random bf16 weights.

    PYTHONPATH=src python3 benchmarks/observe_gpu.py [--shape llada|dream] [--lengths 192,512,...] [--batch 1]
        [--variants received,groups,norms,mask,drop] [--json FILE]

For each sequence length and variant: the time of a plain step and of the other one, in turn in the same run, the median
of five ratios with the lowest and highest, and the peak memory that is added. Eight steps are timed at once (long ones
two), until the last copy has arrived. "eager": both sides are launched by the host. "graph": both are captured in a
CUDA graph (sampling/graphs.py), copies to the host included.

    received   attention received by every key
    groups     the same, told apart by masked and unmasked queries; relative to `received`
    norms      with norms of keys, values and outputs; relative to `received`
    mask K     the top K keys of every head hidden (MaskSinks); relative to `received`
    drop K     the same keys dropped from the call
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch

import sinklens as sl
from sinklens.attention.clock import StepNumber, at_step
from sinklens.models.diffusion_transformer import DiffusionTransformer
from sinklens.models.layers import TransformerShape
from sinklens.models.llada import header_chat
from sinklens.sampling.graphs import WARM, CapturedModel
from sinklens.types import ModelSpec

SHAPES: dict[str, dict[str, Any]] = {
    "llada": {"layers": 32, "heads": 32, "kv_heads": 32, "width": 4096, "mlp_width": 12288, "rows": 126464},
    "dream": {"layers": 28, "heads": 28, "kv_heads": 4, "width": 3584, "mlp_width": 18944, "rows": 152064},
}
BLOCKS, STEPS, LONG_MS = 5, 8, 120  # a step that takes longer is timed two at a time
Enter = Callable[[], AbstractContextManager[Any]]


def random_model(shape: str, layers: int | None = None) -> DiffusionTransformer:
    """The shape of LLaDA-8B or Dream-7B with random weights, made on the GPU."""
    sizes = SHAPES[shape] | ({} if layers is None else {"layers": layers})
    spec = ModelSpec(
        family="llada", layers=sizes["layers"], heads=sizes["heads"], kv_heads=sizes["kv_heads"],
        head_dim=sizes["width"] // sizes["heads"], width=sizes["width"], vocab_size=sizes["rows"], causal=False,
        mask_id=sizes["rows"] - 128,
    )  # fmt: skip
    with torch.device("meta"):
        built = TransformerShape(**sizes, norm_eps=1e-5, rope_theta=500000.0)
        model = DiffusionTransformer(built, spec, chat_format=header_chat("\n\n"))
    model = model.to(torch.bfloat16).to_empty(device="cuda").eval()
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.02)
    return model


class Side:
    """One way of running a step. Captured, its graph is made once and kept; launched, it enters its context anew."""

    def __init__(self, model: DiffusionTransformer, ids: torch.Tensor, enter: Enter, *, graph: bool) -> None:
        self.model, self.ids, self.enter = model, ids, enter
        self._masked = ids == model.spec.mask_id
        self._numbers = count()
        self._graph: Any = None
        gc.collect()  # graphs of the length before
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with self.enter() as self.seen:
            run = CapturedModel(model) if graph else model
            for _ in range(WARM + 1):
                self.step(run)
        if graph:
            self._graph = next(iter(run._graphs.values()))
        torch.cuda.synchronize()
        self.peak = torch.cuda.max_memory_allocated() - before

    def step(self, run: Callable[[torch.Tensor], Any]) -> None:
        with at_step(StepNumber(next(self._numbers), canvas=self.ids, masked=self._masked)):
            run(self.ids)
        if hasattr(self.seen, "steps"):
            self.seen.steps.clear()

    def milliseconds(self, steps: int = STEPS) -> float:
        """Of a step, among others."""
        with nullcontext(self.seen) if self._graph is not None else self.enter() as self.seen:
            run = self.model if self._graph is None else self._graph.run
            self.step(run)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                self.step(run)
            torch.cuda.synchronize()
            return 1000 * (time.perf_counter() - began) / steps


def variants(model: DiffusionTransformer, names: list[str]) -> dict[str, tuple[Enter, str]]:
    """How each is entered, and what it is relative to."""
    groups = {"masked": lambda step: step.masked, "unmasked": lambda step: ~step.masked}
    known: dict[str, tuple[Enter, str]] = {
        "received": (lambda: sl.observe(model, norms=False), "plain"),
        "groups": (lambda: sl.observe(model, norms=False, groups=groups), "received"),
        "norms": (lambda: sl.observe(model), "received"),
    }
    for top in (1, 5, 10):
        known[f"mask {top}"] = (lambda top=top: sl.intervene(model, sl.MaskSinks(top=top)), "received")
        known[f"drop {top}"] = (lambda top=top: sl.intervene(model, sl.MaskSinks(top=top, drop=True)), "received")
    wanted = [name for name in known if name.split()[0] in names]
    return {name: known[name] for name in known if name in wanted or name == "received"}


def measure(
    model: DiffusionTransformer, length: int, batch: int, chosen: dict[str, tuple[Enter, str]], *, graph: bool
) -> list[dict[str, Any]]:
    ids = torch.randint(0, 126000, (batch, length), device="cuda")
    ids[:, length // 3 :: 2] = model.spec.mask_id  # half-written behind a prompt
    enters = {"plain": nullcontext, **{name: enter for name, (enter, _) in chosen.items()}}
    Side(model, ids, nullcontext, graph=graph)  # workspaces that any first forward makes
    sides = {name: Side(model, ids, enter, graph=graph) for name, enter in enters.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    steps = STEPS if sides["plain"].milliseconds(1) < LONG_MS else 2
    for _ in range(BLOCKS):
        for name, side in sides.items():
            times[name].append(side.milliseconds(steps))
    rows = []
    for name, (_, base) in chosen.items():
        ratios = [ours / theirs for ours, theirs in zip(times[name], times[base], strict=True)]
        rows.append(
            {
                "mode": "graph" if graph else "eager",
                "variant": name,
                "to": base,
                "length": length,
                "batch": batch,
                "base_ms": statistics.median(times[base]),
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "extra_mib": (sides[name].peak - sides["plain"].peak) / 2**20,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llada", choices=tuple(SHAPES))
    parser.add_argument("--lengths", default="192,512,1024,2048,4096,8192,16384")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--variants", default="received,groups,norms")
    parser.add_argument("--modes", default="graph,eager")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    model = random_model(chosen.shape, chosen.layers)
    rows = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {chosen.shape}, batch {chosen.batch}")
    print("mode   variant       S     base ms  ratio (low-high)       to         extra MiB")
    with torch.no_grad():
        for mode in chosen.modes.split(","):
            for length in map(int, chosen.lengths.split(",")):
                ways = variants(model, chosen.variants.split(","))
                for row in measure(model, length, chosen.batch, ways, graph=mode == "graph"):
                    rows.append({"shape": chosen.shape} | row)
                    print(
                        f"{mode:6} {row['variant']:9} {length:6d} {row['base_ms']:9.2f}   {row['ratio']:.3f} "
                        f"({row['ratio_low']:.3f}-{row['ratio_high']:.3f})   {row['to']:9} {row['extra_mib']:9.1f}",
                        flush=True,
                    )
                if chosen.json:
                    chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
