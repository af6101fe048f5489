"""What a cache makes of a diffusion sampler: time, memory, and answers, against the run without one:
`python benchmarks/block_cache.py [--models tiny-llada,tiny-dream] [--tasks word_problems,small_programs]
[--problems 48] [--blocks 16,32] [--refresh 1,2,4,8,16] [--keep 32,16] [--device X] [--json]`.

    refresh n       the prompt and finished blocks are held, and the whole canvas is computed every n steps and where
                    a block begins; `block`: only there
    + suffix        the masks behind the block are held too
    keep k, order   of the prompt each kv head holds k entries, at the --evict-at refresh; random: --draws draws
    sampler         block b: LLaDASampler, on any model; whole: DreamSampler, all of the answer at once (Dream only)

Seconds are those of generating, a problem: of the processor on a CPU, where others may be at work too, else of the
clock. `held` is what the cache holds at the end of a run, a problem, and as a share of the keys and values of the whole
canvas. `solved` has Wilson's interval; `difference` is to the run without a cache on the same problems, in points, with
a bootstrap over problems; gained and lost are counts of problems (sums of shares over draws).
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

import sinklens as sl
from sinklens.evaluation.answering import by_length, graded
from sinklens.evaluation.outcomes import accuracy, percentile_interval, read_cells, resample
from sinklens.sampling.block_cache import BlockCache, CachedRun
from sinklens.tasks import task
from sinklens.tasks.item import Item

NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Watched(BlockCache):
    """A cache whose runs can be looked at afterwards."""

    def start(self, model: Any, *, prompt: int, mask_id: int) -> CachedRun:
        RUNS[:] = [super().start(model, prompt=prompt, mask_id=mask_id)]
        return RUNS[0]


RUNS: list[CachedRun] = []  # the latest


@dataclass(frozen=True, kw_only=True)
class Way:
    """One setting of the cache; None: no cache."""

    name: str
    cache: dict[str, Any] | None
    draws: int = 1


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one way gave."""

    texts: list[list[str]]  # by draw
    right: list[list[bool]]  # by draw
    seconds: float  # a problem and draw
    held: float  # bytes a problem
    share: float  # of the keys and values of a canvas
    peak: float | None  # bytes on the device, above what was there before; None: not known on a CPU


def ways(options: argparse.Namespace, *, blocks: bool) -> Iterator[Way]:
    yield Way(name=NONE, cache=None)
    for refresh in options.refresh:
        yield Way(name=f"refresh {refresh or 'block'}", cache={"refresh": refresh})
    if blocks:
        for refresh in options.refresh[1:]:
            yield Way(name=f"refresh {refresh or 'block'} + suffix", cache={"refresh": refresh, "suffix": True})
    for keep in options.keep:
        for order in options.orders:
            settings = {"refresh": options.evict_at, "prompt_keep": keep, "order": order}
            draws = options.draws if order == "random" else 1
            yield Way(name=f"refresh {options.evict_at or 'block'}, keep {keep} {order}", cache=settings, draws=draws)


def samplers(model: Any, options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    if model.spec.shift:
        yield "whole", False
    for block in options.blocks:
        yield f"block {block}", True


def make_sampler(name: str, length: int, cache: BlockCache | None) -> Any:
    if name == "whole":
        return sl.DreamSampler(steps=length, length=length, alg="entropy", cache=cache)
    return sl.LLaDASampler(steps=length, length=length, block=int(name.split()[1]), cache=cache)


def answer(model: Any, items: Sequence[Item], sampler: str, way: Way, options: argparse.Namespace) -> Answers:
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    texts, seconds, held, share, peak = [[""] * len(items) for _ in range(way.draws)], 0.0, 0, 0.0, 0
    spec = model.spec
    for draw in range(way.draws):
        for some in by_length(items, options.batch):
            cache = None
            if way.cache is not None:
                cache = Watched(**way.cache, seed=tuple(items[number].index + 10_000 * draw for number in some))
            before = start_memory(options.device)
            began = clock()
            made = sl.generate(
                model, [items[number].prompt for number in some], make_sampler(sampler, options.length, cache)
            )
            if options.device != "cpu":
                torch.cuda.synchronize()
                peak = max(peak, torch.cuda.max_memory_allocated() - before)
            seconds += clock() - began
            if cache is not None:
                held += RUNS[0].cache.bytes
                entry = 2 * spec.layers * spec.kv_heads * spec.head_dim * model.embed.weight.element_size()
                share += len(some) * RUNS[0].cache.bytes / (entry * made.ids.numel())
            for number, text in zip(some, made.text or [], strict=True):
                texts[draw][number] = text
    right = [graded(items[0].task, items, one, unsafe=options.unsafe) for one in texts]
    runs = way.draws * len(items)
    return Answers(
        texts=texts,
        right=right,
        seconds=seconds / runs,
        held=held / runs,
        share=share / runs,
        peak=None if options.device == "cpu" else peak,
    )


def start_memory(device: str) -> int:
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def compare(one: Answers, base: Answers) -> dict[str, Any]:
    """Accuracy with its interval, and the paired difference to the run without a cache."""
    by_problem = list(zip(*one.right, strict=True))
    cells = read_cells(way=by_problem, none=list(zip(*base.right, strict=True)))
    solved, n = accuracy(by_problem), cells[0].n
    shares = [sum(row) / len(row) - first for row, first in zip(by_problem, base.right[0], strict=True)]
    drawn = resample(cells)
    difference = percentile_interval(
        cells[0].share - cells[1].share, drawn[:, 0] / (n * cells[0].draws) - drawn[:, 1] / n, n=n
    )
    same = sum(text == other for texts in one.texts for text, other in zip(texts, base.texts[0], strict=True))
    return {
        "problems": n,
        "draws": cells[0].draws,
        "solved": [solved.value, solved.low, solved.high],
        "difference": [difference.value, difference.low, difference.high],
        "gained": sum(share for share in shares if share > 0),
        "lost": -sum(share for share in shares if share < 0),
        "same_text": same / (n * cells[0].draws),
        "seconds": one.seconds,
        "speed": base.seconds / one.seconds,
        "held_bytes": one.held,
        "held_share": one.share,
        "peak_bytes": one.peak,
    }


def show(row: dict[str, Any]) -> None:
    solved, difference = ([100 * value for value in row[name]] for name in ("solved", "difference"))
    held = "" if not row["held_bytes"] else f"{row['held_bytes'] / 2**10:.0f} KiB ({100 * row['held_share']:.0f} %)"
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f} MiB"
    cells = [
        row["model"],
        row["task"],
        row["sampler"],
        row["way"],
        f"{1e3 * row['seconds']:.0f}",
        f"{row['speed']:.2f}",
        held,
        peak,
        f"{solved[0]:.1f} ({solved[1]:.1f} to {solved[2]:.1f})",
        f"{difference[0]:+.1f} ({difference[1]:+.1f} to {difference[2]:+.1f})",
        f"{row['gained']:g} / {row['lost']:g}",
        f"{100 * row['same_text']:.0f}",
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in options.models:
        model = sl.load(name, device=options.device)
        for kind in options.tasks:
            items = list(islice(task(kind).items(options.split), options.problems))
            for sampler, blocks in samplers(model, options):
                base = None
                for way in ways(options, blocks=blocks):
                    one = answer(model, items, sampler, way, options)
                    base = one if base is None else base
                    rows.append(
                        {"model": name, "task": kind, "sampler": sampler, "way": way.name, **compare(one, base)}
                    )
                    if not options.json:
                        show(rows[-1])
    return rows


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def refreshes(text: str) -> list[int | None]:
    return [None if part == "block" else int(part) for part in text.split(",") if part]


def words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=words, default="tiny-llada,tiny-dream")
    parser.add_argument("--tasks", type=words, default="word_problems,small_programs")
    parser.add_argument("--split", default="test")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--blocks", type=numbers, default="16,32")
    parser.add_argument("--refresh", type=refreshes, default="1,2,4,8,16", help="steps, or 'block'")
    parser.add_argument("--keep", type=numbers, default="32,16", help="entries of the prompt a kv head; '' for none")
    parser.add_argument("--orders", type=words, default="low,high,random,masked")
    parser.add_argument("--evict-at", type=lambda text: refreshes(text)[0], default="16", help="refresh of evictions")
    parser.add_argument("--draws", type=int, default=3, help="of random evictions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the table")
    parser.add_argument("--unsafe", action="store_true", help="run programs that a model wrote without a sandbox")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{torch.get_num_threads()} threads"
    if not options.json:
        print(f"{options.problems} problems of a task, {options.length} tokens, batch {options.batch}, {where}\n")
        print(
            "| model | task | sampler | cache | ms a problem | speed | held | peak | solved, % (95 %) | "
            "difference, points (95 %) | gained / lost | same text, % |"
        )
        print("|" + "---|" * 12)
    rows = run(options)
    if options.json:
        print(json.dumps({"torch": torch.__version__, "device": where, "settings": vars(options), "rows": rows}))


if __name__ == "__main__":
    main()
