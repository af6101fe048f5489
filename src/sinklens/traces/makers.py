"""Threads that make row groups while steps go on coming. What they make is handed on in the order it was asked for.

pyarrow lets go of the interpreter while it encodes, so a dozen threads keep a dozen cores busy, if they leave each
other alone before and after: when many want the interpreter, handing it on takes a tenth of a millisecond each time,
and every small operation on an array hands it on. So where a process does nothing else, whoever has something to do in
Python takes its turn and keeps it.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from threading import Barrier
from typing import Any

THREADS = max(1, min(16, (os.cpu_count() or 1) - 1))

Turn = AbstractContextManager[Any]


class Makers:
    """Threads, and one more that hands on."""

    def __init__(self, turn: Turn | None = None) -> None:
        """turn: a lock, where nothing but this goes on in the process."""
        self.turn: Turn = nullcontext() if turn is None else turn
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sinklens-row-groups")
        self._joiner = ThreadPoolExecutor(1, thread_name_prefix="sinklens-joining")
        self._joining: deque[tuple[Future[memoryview], Future[None]]] = deque()  # made, and handed on

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Work of any kind, done in the order it comes."""
        return self._threads.submit(work, *given)

    def make(self, work: Callable[[Turn], memoryview], then: Callable[[memoryview, Turn], None]) -> None:
        """`then` with what `work` gives, after those that were asked for before. Each takes its turn."""
        made = self._threads.submit(work, self.turn)
        self._joining.append((made, self._joiner.submit(lambda: then(made.result(), self.turn))))

    def each(self, work: Callable[[], None]) -> None:
        """Once in every thread."""
        together = Barrier(THREADS)

        def run() -> None:
            together.wait()
            work()

        try:
            begun = [self._threads.submit(run) for _ in range(THREADS)]
        except BaseException:
            together.abort()  # nobody waits for a thread that could not be started
            raise
        for one in begun:
            one.result()

    def settle(self) -> None:
        """Wait until everything that was asked for is handed on."""
        while self._joining:
            self._joining[0][1].result()  # an interrupt in here loses nothing
            self._joining.popleft()

    def close(self) -> None:
        """All is settled."""
        self._threads.shutdown()
        self._joiner.shutdown()

    def drop(self) -> None:
        """Throw away whatever is under way, and wait for those who are at it.

        Nothing is taken off a queue, as an executor that is shut down does: an interrupt in there would leave somebody
        waiting for it for ever.
        """
        futures: list[Future[Any]] = [future for pair in self._joining for future in reversed(pair)]
        for future in futures:
            future.cancel()
        wait(futures)
        self._joining.clear()
