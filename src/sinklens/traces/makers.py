"""Who makes row groups while steps go on coming: threads, or forked processes.

Threads share one interpreter. A dozen of them hand it to each other thousands of times a second, and on some machines
each time takes a tenth of a millisecond in which nobody has it. So a process that has nothing else to do, and one
thread, forks: each child finds the steps in memory as they were, and is gone when its share is done.

Either way what was made is handed on in the order it was asked for.
"""

import json
import mmap
import os
import signal
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sinklens.errors import TraceError

CORES = os.cpu_count() or 1
THREADS = max(1, min(16, CORES - 1))
FORKS = max(1, min(12, CORES - 3))  # a core each for the run, for whoever sends its numbers, and for whoever forks
AT_A_TIME = 3  # that are handed on between two steps

Work = Callable[[], memoryview]
Then = Callable[[memoryview], None]


@runtime_checkable
class Makers(Protocol):
    """Whoever makes row groups."""

    def make(self, work: Work, then: Then, *, small: bool = False) -> None:
        """`then` with what `work` gives, after those that were asked for before. small: not worth a process."""
        ...

    def go(self) -> None:
        """Those asked for since the last time may begin."""
        ...

    def step(self) -> None:
        """Between two steps: hand on a little of what is ready, if nobody else does."""
        ...

    def settle(self) -> None:
        """Wait until everything that was asked for is handed on."""
        ...

    def close(self) -> None:
        """All is settled."""
        ...

    def abandon(self) -> None:
        """Whatever is under way is thrown away."""
        ...


class Threads:
    """They make; one thread more hands on."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sinklens-row-groups")
        self._joiner = ThreadPoolExecutor(1, thread_name_prefix="sinklens-joining")
        self._joining: deque[Future[None]] = deque()

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Work of any kind, done in the order it comes."""
        return self._threads.submit(work, *given)

    def make(self, work: Work, then: Then, *, small: bool = False) -> None:
        made = self._threads.submit(work)
        self._joining.append(self._joiner.submit(lambda: then(made.result())))

    def go(self) -> None:
        pass

    def step(self) -> None:
        pass

    def settle(self) -> None:
        while self._joining:
            self._joining[0].result()  # an interrupt in here loses nothing
            self._joining.popleft()

    def close(self) -> None:
        self._threads.shutdown()
        self._joiner.shutdown()

    def abandon(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._joiner.shutdown(cancel_futures=True)
        self._joining.clear()


@dataclass(kw_only=True, eq=False)
class _Child:
    """A process, and where it leaves what it makes."""

    process: int
    memory: int  # a file without a name
    made: list[memoryview] | None = None

    def ready(self, *, wait: bool) -> bool:
        if self.made is None:
            process, status = os.waitpid(self.process, 0 if wait else os.WNOHANG)
            if process == 0:
                return False
            self.process = 0
            self.made = _read(self.memory, status)
        return True

    def end(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            if self.process:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
        self.process = 0
        os.close(self.memory)


@dataclass(kw_only=True, eq=False)
class _Order:
    work: Work
    then: Then
    child: _Child | None = None  # None: to be made here
    place: int = 0  # among what the child makes


@dataclass(eq=False)
class Forks:
    """For a process with one thread, and Linux."""

    _asked: list[_Order] = field(default_factory=list)
    _small: list[bool] = field(default_factory=list)
    _orders: deque[_Order] = field(default_factory=deque)
    _children: list[_Child] = field(default_factory=list)

    def make(self, work: Work, then: Then, *, small: bool = False) -> None:
        self._asked.append(_Order(work=work, then=then))
        self._small.append(small)

    def go(self) -> None:
        large = [order for order, small in zip(self._asked, self._small, strict=True) if not small]
        for first in range(min(FORKS, len(large))):
            share = large[first::FORKS]
            child = _fork([order.work for order in share])
            self._children.append(child)
            for place, order in enumerate(share):
                order.child, order.place = child, place
        self._orders.extend(self._asked)
        self._asked, self._small = [], []

    def step(self) -> None:
        for _ in range(AT_A_TIME):
            if not self._orders or not self._next(wait=False):
                return

    def settle(self) -> None:
        while self._orders:
            self._next(wait=True)
        for child in self._children:
            child.end()
        self._children.clear()

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        for child in self._children:
            child.end()
        self._children.clear()
        self._orders.clear()
        self._asked, self._small = [], []

    def _next(self, *, wait: bool) -> bool:
        order = self._orders[0]
        if order.child is None:
            made = order.work()
        elif not order.child.ready(wait=wait):
            return False
        else:
            assert order.child.made is not None
            made = order.child.made[order.place]
        order.then(made)
        self._orders.popleft()
        return True


def _fork(share: Sequence[Work]) -> _Child:
    memory = os.memfd_create("row groups")
    process = os.fork()
    if process:
        return _Child(process=process, memory=memory)
    try:  # the child
        sizes = [_write(memory, work()) for work in share]
        _write(memory, json.dumps({"sizes": sizes}).encode(), size=True)
    except BaseException as error:
        told = {"error": f"{type(error).__name__}: {error}"}
        told |= {"errno": error.errno, "why": error.strerror} if isinstance(error, OSError) else {}
        with suppress(BaseException):
            os.ftruncate(memory, 0)
            os.lseek(memory, 0, os.SEEK_SET)
            _write(memory, json.dumps(told).encode(), size=True)
    finally:
        os._exit(0)


def _write(memory: int, data: Any, *, size: bool = False) -> int:
    """All of it. size: and behind it how much that was."""
    left = memoryview(bytes(data) + struct.pack("<Q", len(data)) if size else data)
    while left:
        left = left[os.write(memory, left) :]
    return len(data)


def _read(memory: int, status: int) -> list[memoryview]:
    """What a child made, in order."""
    whole = os.fstat(memory).st_size
    if status or whole == 0:
        raise TraceError(
            f"a process that makes row groups ended with status {os.waitstatus_to_exitcode(status)} (-9: killed, which "
            "a system does that is short of memory); finished samples are kept: resume"
        )
    data = memoryview(mmap.mmap(memory, whole, prot=mmap.PROT_READ))
    (length,) = struct.unpack("<Q", data[-8:])
    told = json.loads(bytes(data[-8 - length : -8]))
    if told.get("errno") is not None:
        raise OSError(told["errno"], told["why"])
    if "error" in told:
        raise TraceError(f"row groups cannot be made: {told['error']}")
    ends = [sum(told["sizes"][: i + 1]) for i in range(len(told["sizes"]))]
    return [data[end - size : end] for end, size in zip(ends, told["sizes"], strict=True)]


def may_fork() -> bool:
    """Where it can be done at all; that there is one thread is for the caller to know."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")
