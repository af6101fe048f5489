"""What observing costs on a CPU: `python benchmarks/observe_cpu.py [--lengths 64,256,1024] [--models tiny-llada]`.

A Llama of 4 layers and 8 heads of 32, random weights, float32. Columns are ratios to a plain forward of the same model
in the same run (medians, interleaved): sinklens observing, and eager attention with output_attentions=True, summed over
queries. The last column is what the eager maps take.

Then embedded diffusion models: 64 tokens in 64 steps behind a word problem, observed against plain, in turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import transformers

import sinklens as sl

PROMPT = "Question: Mia has 12 apples. She finds 5 more. How many apples does Mia have?\nAnswer:"


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="64,256,1024,2048")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", default="tiny-llada,tiny-dream")
    chosen = parser.parse_args()
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, head_dim=32, max_position_embeddings=8192,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    eager = transformers.LlamaForCausalLM(deepcopy(config)).eval()  # a model keeps its config, and writes into it
    eager.load_state_dict(model.state_dict())
    eager.set_attn_implementation("eager")
    assert (model.config._attn_implementation, eager.config._attn_implementation) == ("sdpa", "eager")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chosen.repeats} repeats")
    print("    S   plain ms   observed   + norms   eager maps   maps MiB")
    for length in map(int, chosen.lengths.split(",")):
        ids = torch.randint(0, 512, (1, length))

        def observed(norms: bool, ids: torch.Tensor = ids) -> None:
            with sl.observe(model, norms=norms) as seen:
                model(ids)
            assert seen.received.shape[0] == 4

        def maps(ids: torch.Tensor = ids) -> None:
            attentions = eager(ids, output_attentions=True).attentions
            torch.stack([weights.sum(-2) for weights in attentions])

        runs: dict[str, Callable[[], Any]] = {
            "plain": lambda ids=ids: model(ids),
            "observed": lambda: observed(False),
            "norms": lambda: observed(True),
            "maps": maps,
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        with torch.no_grad():
            for run in runs.values():
                run()
            for _ in range(chosen.repeats):
                for name, run in runs.items():
                    times[name].append(seconds(run))
        plain = statistics.median(times["plain"])
        ratio = {name: statistics.median(values) / plain for name, values in times.items()}
        print(
            f"{length:5d} {plain * 1e3:10.1f} {ratio['observed']:10.2f} {ratio['norms']:9.2f} {ratio['maps']:12.2f}"
            f" {4 * 8 * length * length * 4 / 2**20:10.1f}",
            flush=True,
        )
    print("\ngenerating    plain s   observed (low-high)   + norms")
    for name in chosen.models.split(","):
        generations(name, chosen.repeats)


def generations(name: str, repeats: int) -> None:
    model = sl.load(name)
    sampler = (
        sl.DreamSampler(steps=64, length=64, alg="entropy")
        if model.spec.shift
        else sl.LLaDASampler(steps=64, length=64, block=64)
    )

    def observed(norms: bool) -> None:
        with sl.observe(model, norms=norms):
            sl.generate(model, PROMPT, sampler)

    runs: list[Callable[[], Any]] = [
        lambda: sl.generate(model, PROMPT, sampler),
        lambda: observed(False),
        lambda: observed(True),
    ]
    times = [[seconds(run) for run in runs] for _ in range(repeats + 1)][1:]
    ratios, norms = [seen / plain for plain, seen, _ in times], [full / plain for plain, _, full in times]
    plain, middle = statistics.median(plain for plain, _, _ in times), statistics.median(ratios)
    spread = f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print(f"{name:12} {plain:8.2f}   {spread:19}   {statistics.median(norms):.2f}", flush=True)


if __name__ == "__main__":
    main()
