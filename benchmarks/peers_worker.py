"""One way of getting incoming attention, measured in a process of its own; `benchmarks/peers.py` starts it.

    python benchmarks/peers_worker.py METHOD --model FOLDER --out FOLDER --lengths 256,512 [--device cuda] [--repeats 5]
    python benchmarks/peers_worker.py METHOD --model FOLDER --once 4096
    python benchmarks/peers_worker.py METHOD --model FOLDER --climb 131072 --device cuda --limit 24

The first form writes METHOD-S.json and METHOD-S.npy (the column sums) for every length S; the second runs one observed
forward and nothing else, so that the longest one can be found; the third finds it on a GPU, where a process that asks
for too much can go on, and says it in its last line. FOLDER holds a checkpoint and prompt.json. Only the method's own
packages are imported: this file runs in the environment of each peer. Every forward computes the logits of the last
token only; those of all tokens would hide what attention takes.
"""

import argparse
import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

START = 1024  # tokens: the first length tried inside a memory limit
MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD
Run = Callable[[], Any]


class Method:
    """A model and a way of looking into it. `observed` gives column sums, [layer, head, key], float32."""

    packages: tuple[str, ...] = ("transformers",)

    def __init__(self, folder: Path, *, device: str) -> None:
        self.folder, self.device = folder, device

    @cached_property
    def model(self) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(str(self.folder), dtype="auto", attn_implementation="sdpa")
        return model.to(self.device).eval()

    def use(self, implementation: str) -> None:
        if self.model.config._attn_implementation != implementation:
            self.model.set_attn_implementation(implementation)

    def plain(self, ids: torch.Tensor) -> None:
        self.use("sdpa")
        self.model(ids, logits_to_keep=1)

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Sinklens(Method):
    packages = ("sinklens", "transformers")

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        import sinklens as sl

        self.use("sdpa")
        with sl.observe(self.model, norms=False) as seen:
            self.model(ids, logits_to_keep=1)
        return seen.received[:, 0]


class Maps(Method):
    """Eager attention, all maps returned, then summed over queries."""

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        self.use("eager")
        maps = self.model(ids, logits_to_keep=1, output_attentions=True).attentions
        return torch.stack([column_sums(one) for one in maps])


class Hooks(Method):
    """Eager attention, a forward hook on each attention module: one layer's map at a time."""

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        self.use("eager")
        sums: list[torch.Tensor] = []
        handles = [
            layer.self_attn.register_forward_hook(lambda _module, _given, output: sums.append(column_sums(output[1])))
            for layer in self.model.model.layers
        ]
        try:
            self.model(ids, logits_to_keep=1)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack(sums)


class TransformerLens(Method):
    """A hook on every `hook_pattern` that keeps the column sums alone."""

    packages = ("transformer-lens", "transformers")

    @cached_property
    def bridge(self) -> Any:
        from transformer_lens.model_bridge import TransformerBridge

        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config(self.folder)["dtype"]]
        return TransformerBridge.boot_transformers(str(self.folder), device=self.device, dtype=dtype)

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        sums: list[torch.Tensor] = []

        def keep(pattern: torch.Tensor, hook: Any) -> None:
            sums.append(column_sums(pattern))

        hooks = [(lambda name: name.endswith("attn.hook_pattern"), keep)]
        self.bridge.run_with_hooks(ids, return_type=None, logits_to_keep=1, fwd_hooks=hooks)
        return torch.stack(sums)


class NNsight(Method):
    """A trace that sums each layer's attention weights inside the graph and saves the sums alone."""

    packages = ("nnsight", "transformers")

    @cached_property
    def traced(self) -> Any:
        from nnsight import TransformersModel

        return TransformersModel(
            str(self.folder), task="text-generation", attn_implementation="eager", dispatch=True, dtype="auto",
            device_map=self.device,
        )  # fmt: skip

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        traced = self.traced
        with traced.trace({"input_ids": ids}, logits_to_keep=1):
            sums = [].save()  # type: ignore[attr-defined]  # nnsight gives every object a `save` inside a trace
            for layer in traced.model.layers:
                sums.append(layer.self_attn.output[1][0].sum(-2, dtype=torch.float32))
        return torch.stack(sums)


class KVPress(Method):
    """The scores of ObservedAttentionPress, nothing evicted: averages over queries and over the heads of a kv head."""

    packages = ("kvpress", "transformers")

    def observed(self, ids: torch.Tensor) -> torch.Tensor:
        from kvpress import ObservedAttentionPress

        scores: list[torch.Tensor] = []

        class Watching(ObservedAttentionPress):
            def compress(self, module: Any, hidden_states: Any, keys: Any, *rest: Any) -> Any:
                scores.append(self.score(module, hidden_states, keys, *rest)[0])
                return keys, rest[0]

        self.use("eager")
        with Watching()(self.model):
            self.model(ids, logits_to_keep=1)
        viewers = torch.arange(ids.shape[1], 0, -1, device=ids.device)
        return torch.stack(scores).float() * viewers


METHODS: dict[str, type[Method]] = {
    "sinklens": Sinklens, "output_attentions": Maps, "hooks": Hooks, "transformer-lens": TransformerLens,
    "nnsight": NNsight, "kvpress": KVPress,
}  # fmt: skip


def column_sums(maps: torch.Tensor) -> torch.Tensor:
    """Of [1, head, query, key], in float32 whatever the model computes in."""
    return maps[0].sum(-2, dtype=torch.float32)


def config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def prompt(folder: Path, length: int, *, device: str) -> torch.Tensor:
    """The first tokens of the stored prompt, which starts again where it is too short."""
    ids = json.loads((folder / "prompt.json").read_text())
    return torch.tensor([(ids * -(-length // len(ids)))[:length]], device=device)


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def seconds(run: Run, *, device: str, clock: str) -> float:
    """`processor` counts what this process was given, all threads together: for a machine shared with others."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = CLOCKS[clock]()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return CLOCKS[clock]() - start


def status_mib(field: str) -> float:
    """VmRSS or VmHWM of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))


def peak_mib(run: Run, *, device: str) -> float:
    """How far memory rises above its level before the run: resident memory on a CPU, allocated tensors on a GPU.

    On a CPU this slows down every later allocation of the process: take times first.
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Memory freed earlier would hide what this run asks for: give it back, and let every tensor come from the system.
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(MMAP_THRESHOLD, 64 * 1024)
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    level = status_mib("VmRSS")
    run()
    return status_mib("VmHWM") - level


def compare_times(plain: Run, observed: Run, *, device: str, repeats: int, clock: str) -> dict[str, Any]:
    """Medians of both, run in turn, warm; and the ratio of every turn."""
    times: dict[str, list[float]] = {"plain": [], "observed": []}
    for turn in range(repeats + 1):
        for name, run in (("plain", plain), ("observed", observed)):
            took = seconds(run, device=device, clock=clock)
            if turn:
                times[name].append(took)
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "plain_s": middle["plain"], "observed_s": middle["observed"], "ratio": middle["observed"] / middle["plain"],
        "ratios": [b / a for a, b in zip(times["plain"], times["observed"], strict=True)], "times": times,
    }  # fmt: skip


def compare_peaks(plain: Run, observed: Run, *, device: str) -> dict[str, float]:
    plain_mib, observed_mib = peak_mib(plain, device=device), peak_mib(observed, device=device)
    return {"plain_mib": plain_mib, "observed_mib": observed_mib, "extra_mib": observed_mib - plain_mib}


def measure(name: str, chosen: argparse.Namespace) -> None:
    method = METHODS[name](chosen.model, device=chosen.device)
    prompts = {n: prompt(chosen.model, n, device=chosen.device) for n in map(int, chosen.lengths.split(","))}
    sides = {n: (partial(method.plain, ids), partial(method.observed, ids)) for n, ids in prompts.items()}
    asked = {"device": chosen.device, "repeats": chosen.repeats, "clock": chosen.clock}
    times = {n: compare_times(*both, **asked) for n, both in sides.items()}
    versions = {package: version_of(package) for package in ("torch", *method.packages)}
    for length, both in sides.items():
        found = times[length] | compare_peaks(*both, device=chosen.device)
        found |= {"method": name, "length": length, "versions": versions}
        found |= {"threads": torch.get_num_threads(), "clock": chosen.clock}
        np.save(chosen.out / f"{name}-{length}.npy", both[1]().cpu().numpy())
        (chosen.out / f"{name}-{length}.json").write_text(json.dumps(found))


def once(name: str, chosen: argparse.Namespace) -> None:
    ids = prompt(chosen.model, chosen.once, device=chosen.device)
    METHODS[name](chosen.model, device=chosen.device).observed(ids)


def climb(name: str, chosen: argparse.Namespace) -> None:
    """Says the longest prompt that fits."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, chosen.limit * 2**30 / total))
    method, length, fitted = METHODS[name](chosen.model, device=chosen.device), START, 0
    while length <= chosen.climb:
        try:
            method.observed(prompt(chosen.model, length, device=chosen.device))
        except torch.OutOfMemoryError:
            print(fitted or f"under {length}")
            return
        gc.collect()
        torch.cuda.empty_cache()
        fitted, length = length, 2 * length
    print(f"at least {fitted}")


def version_of(package: str) -> str:
    """As installed; of a package that runs from its sources, as it says itself."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(import_module(package).__version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lengths", default="256")
    parser.add_argument("--once", type=int)
    parser.add_argument("--climb", type=int, help="tokens to try at most, on a GPU")
    parser.add_argument("--limit", type=float, default=24.0, help="GiB on the GPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    chosen = parser.parse_args()
    with torch.no_grad():
        if chosen.once is not None:
            once(chosen.method, chosen)
        elif chosen.climb is not None:
            climb(chosen.method, chosen)
        else:
            measure(chosen.method, chosen)


if __name__ == "__main__":
    main()
