"""Work behind a run: done in its order, in a thread, while the run goes on."""

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from types import TracebackType

ROOM = 8  # pieces that may wait; then the run waits
TURN = 0.0005  # seconds


class _Turns:
    """How long a thread may keep the interpreter, which is one number for the whole process."""

    def __init__(self) -> None:
        self._lock, self._open, self._usual = Lock(), 0, 0.0

    def shorten(self) -> None:
        with self._lock:
            if self._open == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN, self._usual))
            self._open += 1

    def restore(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._usual)


_turns = _Turns()


class Behind:
    """A context: at its end all is done. The first error of a piece ends the run, as if it had happened there.

    Inside, threads take turns ten times as often as usual: a run that waits for its card should not wait here as well.

    with Behind() as behind:
        for step in run:
            behind.do(lambda: write(step))
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sinklens-behind")
        self._waiting: deque[Future[None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """`work` will be done after what was handed over before it."""
        while len(self._waiting) > ROOM or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(work))

    def __enter__(self) -> "Behind":
        _turns.shorten()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._waiting and error is None:
                self._waiting.popleft().result()
        finally:  # after an error, what is under way is waited for, and the rest is not begun
            try:
                self._thread.shutdown(cancel_futures=True)
            finally:
                _turns.restore()
