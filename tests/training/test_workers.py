"""Processes that make training problems do not outlive the one that asked for them."""

import subprocess
import sys
import time
from pathlib import Path

CODE = """
import os, time
from sinklens.training.workers import worker_pool

def work(turn):
    time.sleep(0.2)
    return os.getpid()

with worker_pool(2) as pool:
    print(*{*pool.map(work, range(4))}, flush=True)
    list(pool.map(work, range(10_000)))
"""


def test_workers_end_with_the_process_that_started_them() -> None:
    """They would wait for work for ever."""
    parent = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        workers = [int(number) for number in parent.stdout.readline().split()]
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 30
    while any(map(_alive, workers)):
        assert time.monotonic() < deadline, f"still there: {workers}"
        time.sleep(0.05)
    assert 1 <= len(workers) <= 2


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # of whoever adopted it
