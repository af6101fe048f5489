"""What the number of threads changes: four commands with 1 and with 2 threads, file by file and column by column.

    python benchmarks/threads.py [--threads 2]

Each command runs in a process of its own, twice with one thread (which must give the same bytes) and once with more. Of
the Parquet files that differ: the columns that do, and the largest difference of their numbers beside the largest
number.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

PROMPT = "Question: Mia has 12 apples. She finds 5 more apples. How many apples does Mia have now?\nAnswer:"
COMMANDS = {
    "trace": ["trace", "tiny-llada", "--prompt", PROMPT, "--length", "32", "--steps", "32", "--block", "32"],
    "mask": ["mask", "tiny-llama", "--top", "0,1", "--draws", "1", "--problems", "4", "--length", "16", "--rows-only"],
    "evaluate": ["evaluate", "tiny-dream", "--problems", "4", "--length", "16", "--mask", "sinks:top=1"],
    "compress": ["compress", "tiny-llama", "--lengths", "256", "--problems", "2", "--draws", "1", "--rows-only"],
}


def run(arguments: list[str], to: Path, *, threads: int) -> Path:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "sinklens.cli", *arguments, "--device", "cpu", "--to", str(to)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return to


def tables(folder: Path) -> dict[str, Path]:
    """The Parquet files by name, timings left out."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.parquet"))}
    return {name: path for name, path in found.items() if "timing" not in name}


def compare(one: Path, other: Path) -> tuple[int, int, dict[str, str]]:
    """Files, how many of them differ in a byte, and for every column that differs by how much."""
    first, second = tables(one), tables(other)
    assert first.keys() == second.keys(), first.keys() ^ second.keys()
    differing = [name for name in first if first[name].read_bytes() != second[name].read_bytes()]
    columns: dict[str, tuple[float, float] | None] = {}
    for name in differing:
        a, b = pq.read_table(first[name], partitioning=None), pq.read_table(second[name], partitioning=None)
        for column in a.column_names:
            if not a[column].equals(b[column]):
                columns[column] = _most(columns.get(column, (0.0, 0.0)), _numbers(a[column]), _numbers(b[column]))
    told = {
        column: "not numbers" if most is None else f"{most[0]:.2g} of {most[1]:.3g}" for column, most in columns.items()
    }
    return len(first), len(differing), told


def _numbers(column: Any) -> Any:
    values = column.combine_chunks()
    while hasattr(values, "flatten") and "list" in str(values.type):
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False)


def _most(so_far: tuple[float, float] | None, one: Any, other: Any) -> tuple[float, float] | None:
    if so_far is None or one.dtype.kind != "f" or len(one) != len(other):
        return None
    return max(so_far[0], float(np.nanmax(np.abs(one - other)))), max(so_far[1], float(np.nanmax(np.abs(one))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, arguments in COMMANDS.items():
            one, again, more = (
                run(arguments, Path(scratch) / f"{name}-{turn}", threads=threads)
                for turn, threads in enumerate((1, 1, chosen.threads))
            )
            files, differing, _ = compare(one, again)
            print(f"{name}: 1 and 1 threads: {differing} of {files} files differ")
            files, differing, columns = compare(one, more)
            print(f"{name}: 1 and {chosen.threads} threads: {differing} of {files} files differ", flush=True)
            for column, most in columns.items():
                print(f"  {column}: {most}")


if __name__ == "__main__":
    main()
