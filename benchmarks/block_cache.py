"""What a cache makes of a diffusion sampler: time, memory, and answers, against the run without one:
`python benchmarks/block_cache.py [--problems 48] [--device cuda --batch 256] [--refresh 1,2,4,8,16] [--keep 32,16]
[--to rows.jsonl] [--seconds 60]`; `python benchmarks/block_cache.py --table rows.jsonl` prints the table of such rows.

    refresh n       the prompt and finished blocks are held, and the whole canvas is computed every n steps and where
                    a block begins; `block`: only there
    + suffix        the masks behind the block are held too
    keep k, order   of the prompt each kv head holds k entries, at the --evict-at refresh; random: --draws draws
    sampler         n blocks: LLaDASampler; whole: DreamSampler, all of the answer at once (models that predict p + 1)

Every way to cache is run for all models and tasks before the next one, so that a run that ends early (--seconds: no
further cell is begun) has the same ways everywhere.

Seconds are those of generating, a problem: of the processor on a CPU, where others may be at work too, else of the
clock, behind one short run to warm up. `held` is what the cache holds at the end of a run, a problem, and as a share of
the keys and values of the whole canvas. `solved` has Wilson's interval; `difference` is to the run without a cache on
the same problems, in points, with a bootstrap over problems; gained and lost are counts of problems (sums of shares
over draws).
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import sinklens as sl
from sinklens.evaluation.answering import by_length, graded
from sinklens.evaluation.outcomes import accuracy, percentile_interval, read_cells, resample
from sinklens.sampling.block_cache import BlockCache, CachedRun
from sinklens.tasks import task
from sinklens.tasks.item import Item

NONE = "none"
GRADERS = 4  # beside a GPU; each waits for a process of its own
LENGTHS = {"word_problems": 64, "small_programs": 32}  # tokens of an answer
COLUMNS = (
    "model", "task", "sampler", "cache", "ms a problem", "speed", "held", "peak", "solved, % (95 %)",
    "difference, points (95 %)", "gained / lost", "same text, %",
)  # fmt: skip


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """What all ways to cache are tried on."""

    name: str  # of the model
    model: Any
    items: Sequence[Item]
    blocks: int | None  # of an answer; None: DreamSampler

    @property
    def length(self) -> int:
        return LENGTHS[self.items[0].task]

    @property
    def sampler(self) -> str:
        return "whole" if self.blocks is None else f"{self.blocks} blocks"

    def sampler_with(self, cache: BlockCache | None, *, steps: int | None = None) -> Any:
        steps = steps or self.length
        if self.blocks is None:
            return sl.DreamSampler(steps=steps, length=self.length, alg="entropy", cache=cache)
        return sl.LLaDASampler(steps=steps, length=self.length, block=self.length // self.blocks, cache=cache)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one way gave."""

    texts: list[list[str]]  # by draw
    right: list[Future[list[bool]]]  # by draw
    seconds: float  # a problem and draw
    held: float  # bytes a problem
    share: float  # of the keys and values of a canvas
    peak: float | None  # bytes on the device, above what was there before; None: not known on a CPU


def ways(options: argparse.Namespace) -> Iterator[Way]:
    """Those that say most come first."""
    yield Way(name=NONE, cache=None)
    yield from refreshed(options.evict_at)
    for keep in options.keep:
        for order in options.orders:
            settings = {"refresh": options.evict_at, "prompt_keep": keep, "order": order}
            draws = options.draws if order == "random" else 1
            yield Way(name=f"refresh {options.evict_at or 'block'}, keep {keep} {order}", cache=settings, draws=draws)
    for refresh in options.refresh:
        if refresh != options.evict_at:
            yield from refreshed(refresh)


def refreshed(refresh: int | None) -> Iterator[Way]:
    yield Way(name=f"refresh {refresh or 'block'}", cache={"refresh": refresh})
    if refresh != 1:
        yield Way(name=f"refresh {refresh or 'block'} + suffix", cache={"refresh": refresh, "suffix": True})


def groups(options: argparse.Namespace) -> Iterator[Group]:
    for name in options.models:
        model = sl.load(name, device=options.device)
        for kind in options.tasks:
            items = list(islice(task(kind).items(options.split), options.problems))
            for blocks in [None] if model.spec.shift else options.blocks:
                yield Group(name=name, model=model, items=items, blocks=blocks)


def answer(group: Group, way: Way, options: argparse.Namespace, graders: Executor) -> Answers:
    """Texts are graded while the next ones are being written."""
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    items, model = group.items, group.model
    texts, seconds, held, share, peak = [[""] * len(items) for _ in range(way.draws)], 0.0, 0, 0.0, 0
    spec = model.spec
    for draw in range(way.draws):
        for some in by_length(items, options.batch):
            cache = None
            if way.cache is not None:
                cache = Watched(**way.cache, seed=tuple(items[number].index + 10_000 * draw for number in some))
            prompts = [items[number].prompt for number in some]
            before = start_memory(options.device)
            began = clock()
            made = sl.generate(model, prompts, group.sampler_with(cache))
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
    right = [graders.submit(graded, items[0].task, items, one, unsafe=options.unsafe) for one in texts]
    runs = way.draws * len(items)
    return Answers(
        texts=texts,
        right=right,
        seconds=seconds / runs,
        held=held / runs,
        share=share / runs,
        peak=None if options.device == "cpu" else peak,
    )


def warm_up(group: Group, options: argparse.Namespace) -> None:
    """Libraries and kernels are loaded at their first use, which is nobody's time."""
    if options.device != "cpu":
        prompts = [item.prompt for item in group.items[: options.batch]]
        for cache in (None, BlockCache(refresh=2, prompt_keep=options.keep[0] if options.keep else None)):
            sl.generate(group.model, prompts, group.sampler_with(cache, steps=4))
        torch.cuda.synchronize()


def start_memory(device: str) -> int:
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def compare(one: Answers, base: Answers) -> dict[str, Any]:
    """Accuracy with its interval, and the paired difference to the run without a cache."""
    by_problem, plain = (list(zip(*(draw.result() for draw in way.right), strict=True)) for way in (one, base))
    cells = read_cells(way=by_problem, none=plain)
    solved, n = accuracy(by_problem), cells[0].n
    shares = [sum(row) / len(row) - first for row, (first, *_) in zip(by_problem, plain, strict=True)]
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


def cells_of(row: dict[str, Any]) -> list[str]:
    solved, difference = ([100 * value for value in row[name]] for name in ("solved", "difference"))
    held = "" if not row["held_bytes"] else f"{row['held_bytes'] / 2**10:.0f} KiB ({100 * row['held_share']:.0f} %)"
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f} MiB"
    return [
        row["model"],
        row["task"],
        row["sampler"],
        row["way"],
        f"{1e3 * row['seconds']:.{1 if row['seconds'] < 0.1 else 0}f}",
        f"{row['speed']:.2f}",
        held,
        peak,
        f"{solved[0]:.1f} ({solved[1]:.1f} to {solved[2]:.1f})",
        f"{difference[0]:+.1f} ({difference[1]:+.1f} to {difference[2]:+.1f})",
        f"{row['gained']:g} / {row['lost']:g}",
        f"{100 * row['same_text']:.0f}",
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """As a Markdown table, what belongs together side by side; a column that is empty everywhere is left out."""
    order = list(dict.fromkeys((row["model"], row["task"], row["sampler"]) for row in rows))
    table = [cells_of(row) for place in order for row in rows if (row["model"], row["task"], row["sampler"]) == place]
    kept = [column for column in range(len(COLUMNS)) if any(cells[column] for cells in table)]
    print("| " + " | ".join(COLUMNS[column] for column in kept) + " |")
    print("|" + "---|" * len(kept))
    for cells in table:
        print("| " + " | ".join(cells[column] for column in kept) + " |")


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    began = time.perf_counter()
    found = list(groups(options))
    for group in found:
        warm_up(group, options)
    bases: dict[int, Answers] = {}
    asked = [(way, number) for way in ways(options) for number in range(len(found)) if fits(way, found[number])]
    waiting: list[tuple[dict[str, str], Answers, Answers]] = []
    with ThreadPoolExecutor(1 if options.device == "cpu" else GRADERS) as graders:
        for way, number in asked:
            if options.seconds is not None and time.perf_counter() - began > options.seconds:
                break
            group = found[number]
            one = answer(group, way, options, graders)
            place = {"model": group.name, "task": group.items[0].task, "sampler": group.sampler, "way": way.name}
            waiting.append((place, one, bases.setdefault(number, one)))
            while waiting and all(draw.done() for draw in waiting[0][1].right):
                yield waiting[0][0] | compare(*waiting.pop(0)[1:])
        for place, one, base in waiting:
            yield place | compare(one, base)


def fits(way: Way, group: Group) -> bool:
    """DreamSampler has no blocks, and so nothing behind them."""
    return group.blocks is not None or way.cache is None or "suffix" not in way.cache


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def refreshes(text: str) -> list[int | None]:
    return [None if part == "block" else int(part) for part in text.split(",") if part]


def words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=words, default="tiny-llada,tiny-dream")
    parser.add_argument("--tasks", type=words, default="word_problems,small_programs")
    parser.add_argument("--split", default="test")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--blocks", type=numbers, default="2", help="of an answer")
    parser.add_argument("--refresh", type=refreshes, default="1,2,4,8,16", help="steps, or 'block'")
    parser.add_argument("--keep", type=numbers, default="32,16", help="entries of the prompt a kv head; '' for none")
    parser.add_argument("--orders", type=words, default="masked,low,random,high")
    parser.add_argument("--evict-at", type=lambda text: refreshes(text)[0], default="16", help="refresh of evictions")
    parser.add_argument("--draws", type=int, default=3, help="of random evictions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, help="begin no further cell after so many")
    parser.add_argument("--to", type=Path, help="rows as JSON lines, each written when it is there")
    parser.add_argument("--table", type=Path, help="run nothing: the table of these rows")
    parser.add_argument("--unsafe", action="store_true", help="run programs that a model wrote without a sandbox")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    if options.table is not None:
        show([row for row in map(json.loads, options.table.read_text("utf-8").splitlines()) if "way" in row])
        return
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{torch.get_num_threads()} threads"
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    head = {"torch": torch.__version__, "device": where, "settings": settings}
    print(f"{options.problems} problems of a task, batch {options.batch}, {where}\n", flush=True)
    if options.to is not None:
        options.to.write_text(json.dumps(head) + "\n", "utf-8")
    rows = []
    for row in run(options):
        rows.append(row)
        if options.to is not None:
            with options.to.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
