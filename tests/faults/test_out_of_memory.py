"""Memory that really runs out: the kernel refuses it, torch says so, and the batch is halved until it fits."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from faults.commands import KILLS
from faults.nursery import Nursery

ROOM = 192 * 2**20  # bytes beyond what the process has when it begins


@pytest.mark.skipif(KILLS <= 3, reason="run by `make test-faults`")
def test_a_batch_that_does_not_fit_is_halved(nursery: Nursery, tmp_path: Path) -> None:
    sizes = ["--problems", 64, "--batch", 64, "--length", 4, "--steps", 1, "--device", "cpu"]
    ended = nursery.run(["evaluate", "tiny-llada", *sizes, "--to", tmp_path / "a"], cwd=tmp_path, memory=ROOM)
    assert ended.code == 0, ended.stderr
    assert "warning: out of memory with 64 problems at a time (" in ended.stderr
    (timing,) = pq.read_table(tmp_path / "a" / "timings").to_pylist()
    assert timing["problems"] == 64 and f"; going on with {timing['batch']}\n" in ended.stderr
    assert pq.read_table(tmp_path / "a" / "rows", columns=["problem"])["problem"].to_pylist() == list(range(64))


@pytest.mark.skipif(KILLS <= 3, reason="run by `make test-faults`")
def test_one_that_does_not_fit_ends_with_advice(nursery: Nursery, tmp_path: Path) -> None:
    sizes = ["--problems", 2, "--batch", 1, "--length", 2048, "--steps", 1, "--device", "cpu"]
    ended = nursery.run(["evaluate", "tiny-llada", *sizes, "--to", tmp_path / "a"], cwd=tmp_path, memory=ROOM // 2)
    assert ended.code == 1, ended.stderr
    assert "error: out of memory (" in ended.stderr and "ask for less at a time" in ended.stderr
    assert "Traceback" not in ended.stderr
