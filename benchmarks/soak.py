"""Does memory stay flat over hours of traced generations, and while a trace is read that is being written?

    python benchmarks/soak.py [--minutes 60] [--elsewhere] [--to DIR]

The three embedded models in turn each record a trace of 9 prompts, over and over. After every fourth prompt
`sl.explore` makes its page anew, in the same process, of the trace that is being written. After every prompt the
resident memory of the process is read. At the end: the slope of that memory over time, without the first fifth, by
least squares, with a 95 % interval from residuals drawn anew in blocks (readings near each other are alike).

Resident memory goes up and down with what allocators keep for later, by more than a small leak. So what is in use is
read too, and its slope told beside: bytes that malloc (torch, numpy; glibc only) and pyarrow have handed out, and
Python's objects in blocks.
"""

import argparse
import ctypes
import gc
import json
import resource
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sinklens as sl
from sinklens import run
from sinklens.tasks import task

MIB = 2**20
PAGE = resource.getpagesize()
PROMPTS = 9  # of one trace: what each model needs for the first time is needed early
EXPLORED = 4  # prompts between two pages
DRAWS, BLOCKS = 2000, 20
READ = ("seconds", "paged", "resident", "used", "blocks")
MOST = 10  # prompts a second


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Of a reading, a second."""

    value: float
    low: float
    high: float


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class MallInfo(ctypes.Structure):
    """What glibc says of its heaps (mallinfo2)."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def in_use() -> int:
    """Bytes that are handed out by malloc and pyarrow now."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return int(pa.total_allocated_bytes())
    ask.restype = MallInfo
    told = ask()
    return int(told.uordblks + told.hblkhd + pa.total_allocated_bytes())


def slope(seconds: Any, memory: Any, *, seed: int = 0) -> Slope:
    """By least squares. The interval: of residuals in blocks, drawn anew around the line."""
    x, y = np.asarray(seconds, float), np.asarray(memory, float)
    centred = x - x.mean()

    def fit(values: Any) -> float:
        return float(centred @ (values - values.mean()) / (centred @ centred))

    value = fit(y)
    left = y - y.mean() - value * centred
    size = max(1, len(y) // BLOCKS)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        starts = rng.integers(0, len(y) - size + 1, -(-len(y) // size))
        found.append(value + fit(np.concatenate([left[start : start + size] for start in starts])[: len(y)]))
    low, high = np.percentile(found, [2.5, 97.5])
    return Slope(value=value, low=float(low), high=float(high))


class Over(Exception):  # noqa: N818
    """The time is."""


def soak(minutes: float, folder: Path) -> dict[str, np.ndarray]:
    """Readings until the time is over, by name; in memory that is there from the beginning, so as to add nothing."""
    samplers = {
        "tiny-llada": sl.LLaDASampler(steps=12, length=12, block=12),
        "tiny-dream": sl.DreamSampler(steps=12, length=12),
        "tiny-llama": sl.AutoregressiveSampler(length=12),
    }
    models = {name: sl.load(name, device="cpu") for name in samplers}
    prompts = [item.prompt for item in islice(task("word_problems").items("test"), PROMPTS)]
    readings = {name: np.full(int(60 * MOST * minutes) + 1, np.nan) for name in READ}
    count = 0
    began = time.monotonic()

    def read(number: int, of: int, step: int) -> None:
        """At the first step of a prompt, when those before it are on the disk and its own file is open."""
        nonlocal count
        if step > 1:
            return
        paged = number > 0 and number % EXPLORED == 0
        if paged:
            sl.explore(folder / "trace", to=folder / "page.html")
        gc.collect()
        spent = time.monotonic() - began
        for name, value in zip(READ, (spent, paged, resident(), in_use(), sys.getallocatedblocks()), strict=True):
            readings[name][count] = value
        count += 1
        if count % 60 == 0:
            print(f"{spent / 60:.1f} min, {count} prompts, {resident() / MIB:.1f} MiB", file=sys.stderr)
        if spent > 60 * minutes or count == len(readings["seconds"]):
            raise Over

    with suppress(Over):
        for name in cycle(samplers):
            sl.trace(models[name], prompts, samplers[name], to=folder / "trace", progress=read)
            shutil.rmtree(folder / "trace")
    return {name: values[:count] for name, values in readings.items()}


def told(found: Slope, unit: float) -> str:
    return f"{unit * found.value:+.3g} [{unit * found.low:+.3g}, {unit * found.high:+.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--elsewhere", action="store_true", help="another process writes, as for large models on a GPU")
    parser.add_argument("--to", type=Path, help="keep the readings here, as soak.json")
    chosen = parser.parse_args()
    if chosen.elsewhere:
        run.wants_scribe = lambda _: True
    with tempfile.TemporaryDirectory() as scratch:
        readings = soak(chosen.minutes, Path(scratch))
    count = len(readings["seconds"])
    seconds, _, memory, used, blocks = (readings[name][count // 5 :] for name in READ)
    pages = int(readings["paged"].sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{seconds[-1] / 60:.0f} minutes: {count} traced generations, {pages} pages of a trace being written")
    print(
        f"resident: {memory[0] / MIB:.1f} MiB after a fifth, {memory[-1] / MIB:.1f} MiB at the end, "
        f"{peak / MIB:.1f} MiB at most"
    )
    each = (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1)  # generation
    print(f"slope of resident memory: {told(slope(seconds, memory), 3600 / MIB)} MiB an hour")
    print(f"slope of bytes in use:    {told(slope(seconds, used), each / 1024)} kiB a generation")
    print(f"slope of Python's blocks: {told(slope(seconds, blocks), each)} a generation")
    if chosen.to is not None:
        chosen.to.mkdir(parents=True, exist_ok=True)
        (chosen.to / "soak.json").write_text(json.dumps({name: values.tolist() for name, values in readings.items()}))


if __name__ == "__main__":
    main()
