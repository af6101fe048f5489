"""What makes a diffusion model answer faster, and what it costs in accuracy:
`python benchmarks/faster_dlm.py [--models tiny-llada,tiny-dream] [--task word_problems] [--problems 64] [--device X]`.

    one at a time   no batch; timed on the first --alone problems only
    batch           problems of similar length together, padded on the left
    eos             the run ends when every row has an eos with no mask before it: the text is the same
    blocks of 16    one block after the other, in place of the whole answer at once (LLaDA); alone, and with eos
    threshold x     every position more confident than x commits, at least one a step and row (LLaDA)
    half the steps  two tokens a step

All but the first use the batch. Seconds are those of generating, a problem; speed is relative to `batch`, and, in the
last column, to one at a time, in the same run. `same text` counts answers that equal those of `batch`, word for word.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

import sinklens as sl
from sinklens.evaluation.answering import by_length, graded
from sinklens.evaluation.until import UntilStop
from sinklens.sinks.intervals import wilson
from sinklens.tasks import task
from sinklens.tasks.item import Item

THRESHOLDS = (0.95, 0.9, 0.7, 0.5)
BLOCK = 16
ALONE, BATCH = "one at a time", "batch"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one way of answering gave."""

    texts: list[str]
    right: list[bool]
    seconds: float  # a problem
    steps: float  # forwards a problem, those of a batch counted for each of its problems


def ways(model: Any, length: int) -> Iterator[tuple[str, Any]]:
    """The samplers to compare, by name."""
    if model.spec.shift:
        plain: Any = sl.DreamSampler(steps=length, length=length, alg="entropy")
        yield ALONE, plain
        yield BATCH, plain
        yield "eos", UntilStop(sampler=plain, stops=())
        yield "half the steps", sl.DreamSampler(steps=length // 2, length=length, alg="entropy")
        return
    blocks = {"length": length, "block": length}
    plain = sl.LLaDASampler(steps=length, **blocks)
    yield ALONE, plain
    yield BATCH, plain
    yield "eos", sl.LLaDASampler(steps=length, stop_at_eos=True, **blocks)
    yield "half the steps", sl.LLaDASampler(steps=length // 2, **blocks)
    for stop_at_eos in (False, True):
        blocked = sl.LLaDASampler(steps=length, length=length, block=BLOCK, stop_at_eos=stop_at_eos)
        yield f"blocks of {BLOCK}" + ", eos" * stop_at_eos, blocked
    for threshold in THRESHOLDS:
        yield f"threshold {threshold:g}", sl.LLaDASampler(steps=length, threshold=threshold, **blocks)
    yield (
        f"threshold {THRESHOLDS[1]:g}, eos",
        sl.LLaDASampler(steps=length, threshold=THRESHOLDS[1], stop_at_eos=True, **blocks),
    )


def answer(model: Any, items: Sequence[Item], sampler: Any, *, batch: int, unsafe: bool) -> Answers:
    texts, seconds, steps = [""] * len(items), 0.0, 0
    for some in by_length(items, batch):
        began = time.perf_counter()
        made = sl.generate(model, [items[number].prompt for number in some], sampler)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - began
        steps += made.steps * len(some)
        assert made.text is not None
        for number, text in zip(some, made.text, strict=True):
            texts[number] = text
    right = graded(items[0].task, items, texts, unsafe=unsafe)
    return Answers(texts=texts, right=right, seconds=seconds / len(items), steps=steps / len(items))


def compare(model: Any, items: Sequence[Item], options: argparse.Namespace) -> dict[str, Answers]:
    found = {}
    for name, sampler in ways(model, options.length):
        answer(model, items[: options.batch], sampler, batch=options.batch, unsafe=options.unsafe)  # warm
        some = items[: options.alone] if name == ALONE else items
        batch = 1 if name == ALONE else options.batch
        found[name] = answer(model, some, sampler, batch=batch, unsafe=options.unsafe)
    return found


def show(model: str, found: dict[str, Answers]) -> None:
    batched, alone = found[BATCH], found[ALONE]
    for name, one in found.items():
        share = wilson(sum(one.right), len(one.right))
        assert share.value is not None and share.low is not None and share.high is not None
        same = sum(text == other for text, other in zip(one.texts, batched.texts, strict=False))
        cells = [
            model,
            name,
            f"{1e3 * one.seconds:.1f}",
            f"{one.steps:.1f}",
            f"{batched.seconds / one.seconds:.2f}",
            f"{alone.seconds / one.seconds:.2f}",
            f"{100 * share.value:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})",
            f"{same} of {len(one.texts)}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny-llada,tiny-dream")
    parser.add_argument("--task", default="word_problems")
    parser.add_argument("--split", default="test")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--alone", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unsafe", action="store_true", help="run programs that a model wrote without a sandbox")
    options = parser.parse_args()
    items = list(islice(task(options.task).items(options.split), options.problems))
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"{options.task}, {len(items)} problems, {options.length} tokens, batch {options.batch}, {where}\n")
    print("| model | way | ms a problem | steps | speed | against one at a time | solved, % (95 %) | same text |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        model = sl.load(name, device=options.device)
        show(name, compare(model, items, options))


if __name__ == "__main__":
    main()
