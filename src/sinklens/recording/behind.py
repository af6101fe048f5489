"""Work behind a run: done in its order, in a thread, while the run goes on."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

ROOM = 4  # pieces that may wait; then the run waits


class Behind:
    """A context: at its end all is done. The first error of a piece ends the run, as if it had happened there.

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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._waiting and error is None:
                self._waiting.popleft().result()
        finally:  # after an error, what is under way is waited for, and the rest is not begun
            self._thread.shutdown(cancel_futures=True)
