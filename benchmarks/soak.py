"""Does memory stay flat over hours of traced generations, and while a trace is read that is being written?

    python benchmarks/soak.py [--minutes 60] [--to DIR]

The three embedded models in turn each record a trace of 9 prompts, over and over. After every fourth prompt
`sinklens explore` makes its page anew, in the same process, of the trace that is being written. After every prompt the
resident memory of the process is read. At the end: the slope of that memory over time, without the first fifth, by
least squares, with a 95 % interval from residuals drawn anew in blocks (readings near each other are alike).
"""

import argparse
import gc
import json
import resource
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import sinklens as sl
from sinklens.cli import main as program
from sinklens.tasks import task

MIB = 2**20
PAGE = resource.getpagesize()
PROMPTS = 9  # of one trace: what each model needs for the first time is needed early
EXPLORED = 4  # prompts between two pages
DRAWS, BLOCKS = 2000, 20


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Of memory, in bytes a second."""

    value: float
    low: float
    high: float


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


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


def soak(minutes: float, folder: Path) -> list[dict[str, float]]:
    """Readings until the time is over: seconds, bytes resident, and whether a page was made."""
    samplers = {
        "tiny-llada": sl.LLaDASampler(steps=12, length=12, block=12),
        "tiny-dream": sl.DreamSampler(steps=12, length=12),
        "tiny-llama": sl.AutoregressiveSampler(length=12),
    }
    models = {name: sl.load(name, device="cpu") for name in samplers}
    prompts = [item.prompt for item in islice(task("word_problems").items("test"), PROMPTS)]
    readings: list[dict[str, float]] = []
    began = time.monotonic()

    def read(number: int, of: int, step: int) -> None:
        """At the first step of a prompt, when those before it are on the disk and its own file is open."""
        if step > 1 or number == 0:
            return
        paged = number % EXPLORED == 0
        if paged:
            explore(folder / "trace", folder / "page.html")
        gc.collect()
        spent = time.monotonic() - began
        readings.append({"seconds": spent, "bytes": resident(), "page": float(paged)})
        if len(readings) % 60 == 0:
            print(f"{spent / 60:.1f} min, {len(readings)} prompts, {resident() / MIB:.1f} MiB", file=sys.stderr)
        if spent > 60 * minutes:
            raise Over

    with suppress(Over):
        for name in cycle(samplers):
            sl.trace(models[name], prompts, samplers[name], to=folder / "trace", progress=read)
            shutil.rmtree(folder / "trace")
    return readings


def explore(trace: Path, page: Path) -> None:
    """The command, in this process: what it leaves behind would stay."""
    try:
        with redirect_stdout(StringIO()):
            program(["explore", str(trace), "--to", str(page), "--json"])
    except SystemExit as end:
        if end.code:
            sys.exit(f"explore ended with {end.code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--to", type=Path, help="keep the rounds here, as soak.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        readings = soak(chosen.minutes, Path(scratch))
    later = readings[len(readings) // 5 :]
    seconds, memory = ([one[name] for one in later] for name in ("seconds", "bytes"))
    found = slope(seconds, memory)
    pages = sum(int(one["page"]) for one in readings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{chosen.minutes:g} minutes: {len(readings)} traced generations, {pages} pages of a trace being written")
    print(
        f"resident: {memory[0] / MIB:.1f} MiB after a fifth, {memory[-1] / MIB:.1f} MiB at the end, "
        f"{peak / MIB:.1f} MiB at most"
    )
    hourly = [3600 * value / MIB for value in (found.value, found.low, found.high)]
    each = found.value * (seconds[-1] - seconds[0]) / max(1, len(later) - 1)
    print(
        f"slope: {hourly[0]:+.2f} MiB an hour [{hourly[1]:+.2f}, {hourly[2]:+.2f}], {each / 1024:+.2f} kiB a generation"
    )
    if chosen.to is not None:
        chosen.to.mkdir(parents=True, exist_ok=True)
        (chosen.to / "soak.json").write_text(json.dumps({"minutes": chosen.minutes, "readings": readings}))


if __name__ == "__main__":
    main()
