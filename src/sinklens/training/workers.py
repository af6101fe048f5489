"""Processes that only compute, for as long as the one that started them is there."""

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process
from threading import Thread


def worker_pool(count: int) -> ProcessPoolExecutor:
    """Ctrl-C reaches every process of a terminal, and the first one decides what becomes of it. Killed, it takes these
    processes with it: on their own they would wait for work for ever."""
    return ProcessPoolExecutor(count, initializer=_follow)


def _follow() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
