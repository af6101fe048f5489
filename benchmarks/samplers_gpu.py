"""Our samplers against the published loops, written out plainly, on the same weights:
`PYTHONPATH=src python3 benchmarks/samplers_gpu.py [--models tiny-llada,random] [--length 128] [--repeats 5]`.

    loop        the released sampler's loop as it stands, one forward after the other, on our model
    ours        sl.generate, launched by the host
    graph       sl.generate(graph=True)
    threshold   every position more confident than 0.9 commits; graph too
    + eos       and the run ends with the last row's eos

Seconds of a run (median), the ratio to the loop in the same run with its lowest and highest, forwards, and how many of
the generated tokens are those of the loop. "random": LLaDA-8B's shape with random weights, which no eos ends.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from observe_gpu import random_model

import sinklens as sl


def llada_loop(model: Any, prompt: torch.Tensor, *, steps: int, length: int, block: int) -> torch.Tensor:
    """Low-confidence remasking at temperature 0, as released."""
    mask_id = model.spec.mask_id
    x = torch.full((prompt.shape[0], prompt.shape[1] + length), mask_id, dtype=torch.long, device=prompt.device)
    x[:, : prompt.shape[1]] = prompt
    per_block = steps * block // length
    for start in range(prompt.shape[1], x.shape[1], block):
        masked = x[:, start : start + block] == mask_id
        count = masked.sum(dim=1, keepdim=True)
        transfer = (count // per_block).expand(-1, per_block).clone()
        for row in range(len(x)):
            transfer[row, : int(count[row]) % per_block] += 1
        for step in range(per_block):
            where = x == mask_id
            logits = model(x)
            x0 = logits.argmax(dim=-1)
            confidence = logits.softmax(dim=-1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)
            confidence[:, start + block :] = -torch.inf
            x0 = torch.where(where, x0, x)
            confidence = torch.where(where, confidence, -torch.inf)
            chosen = torch.zeros_like(x0, dtype=torch.bool)
            for row in range(len(x)):
                chosen[row, confidence[row].topk(int(transfer[row, step])).indices] = True
            x[chosen] = x0[chosen]
    return x


def dream_loop(model: Any, prompt: torch.Tensor, *, steps: int, length: int, eps: float = 1e-3) -> torch.Tensor:
    """alg="entropy" at temperature 0, as released."""
    mask_id = model.spec.mask_id
    x = torch.nn.functional.pad(prompt, (0, length), value=mask_id)
    times = torch.linspace(1, eps, steps + 1, device=x.device)
    for step in range(steps):
        where = x == mask_id
        logits = model(x)
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[where]
        probabilities = logits.softmax(dim=-1)
        x0 = probabilities.max(dim=-1).indices
        confidence = (probabilities * torch.log(probabilities + 1e-10)).sum(dim=-1)
        left = where.sum() / len(x)
        last = step == steps - 1
        count = int(left) if last else int(left * (1 - times[step + 1] / times[step]))
        full = torch.full(x.shape, -torch.inf, device=x.device, dtype=logits.dtype)
        full[where] = confidence
        if count > 0:
            places = full.topk(count).indices
            proposal = torch.full_like(x, mask_id)
            proposal[where] = x0
            rows = torch.arange(len(x), device=x.device).unsqueeze(1).expand_as(places)
            x[rows, places] = proposal[rows, places]
    return x


def ways(model: Any, prompt: torch.Tensor, length: int) -> dict[str, Callable[[], tuple[torch.Tensor, int]]]:
    def ours(sampler: Any, *, graph: bool) -> Callable[[], tuple[torch.Tensor, int]]:
        def run() -> tuple[torch.Tensor, int]:
            made = sl.generate(model, prompt, sampler, graph=graph)
            return made.ids, made.steps

        return run

    if model.spec.shift:
        plain = sl.DreamSampler(steps=length, length=length, alg="entropy")
        loop = lambda: (dream_loop(model, prompt, steps=length, length=length), length)  # noqa: E731
        return {"loop": loop, "ours": ours(plain, graph=False), "graph": ours(plain, graph=True)}
    block = min(32, length)
    settings = {"steps": length, "length": length, "block": block}
    eos = {"stop_at_eos": model.spec.eos_id is not None}
    return {
        "loop": lambda: (llada_loop(model, prompt, **settings), length),
        "ours": ours(sl.LLaDASampler(**settings), graph=False),
        "graph": ours(sl.LLaDASampler(**settings), graph=True),
        "threshold": ours(sl.LLaDASampler(**settings, threshold=0.9), graph=True),
        "+ eos": ours(sl.LLaDASampler(**settings, threshold=0.9, **eos), graph=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny-llada,tiny-dream,random")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prompt {chosen.prompt}, length {chosen.length}")
    print("model        way          seconds  ratio (low-high)       forwards  same tokens")
    for name in chosen.models.split(","):
        model = random_model("llada") if name == "random" else sl.load(name, device="cuda", dtype="bfloat16")
        drawn = torch.randint(4, 4000, (1, chosen.prompt), generator=torch.Generator().manual_seed(0))
        prompt = drawn.cuda()
        times: dict[str, list[float]] = {}
        made: dict[str, tuple[torch.Tensor, int]] = {}
        with torch.no_grad():
            for _ in range(chosen.repeats + 1):
                for way, run in ways(model, prompt, chosen.length).items():
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    made[way] = run()
                    torch.cuda.synchronize()
                    times.setdefault(way, []).append(time.perf_counter() - began)
        for way, seconds in times.items():
            ratios = [ours / loop for ours, loop in zip(seconds[1:], times["loop"][1:], strict=True)]
            ids, forwards = made[way]
            same = int((ids == made["loop"][0])[:, chosen.prompt :].sum())
            print(
                f"{name:12} {way:10} {statistics.median(seconds[1:]):9.3f}   {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f}-{max(ratios):.3f})   {forwards:6d}  {same} of {chosen.length}",
                flush=True,
            )


if __name__ == "__main__":
    main()
