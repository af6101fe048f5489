"""Ctrl-C, wherever it comes.

Python raises KeyboardInterrupt between any two instructions. Inside the import of a large library that exception may be
swallowed, or taken for a reason to try something else; so imports are finished first. Compiled code may make another
error of it (torch: "could not determine the shape of object"); so an error behind a Ctrl-C is that Ctrl-C.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_unanswered: list[int] = []  # Ctrl-C that no KeyboardInterrupt has come of yet


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """A Ctrl-C inside is delivered at the end. Where the program does not decide on it, nothing changes."""
    handler = _handler()
    if handler is None:
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(signal.SIGINT, None)


@contextmanager
def interrupts_named() -> Iterator[None]:
    """An error that follows a Ctrl-C inside is a KeyboardInterrupt, whatever a library made of it.

    Once it has come out as that, whoever deals with it may have errors of their own.
    """
    handler = _handler()
    if handler is None:
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        _unanswered.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    except Exception as error:
        if _unanswered:
            raise KeyboardInterrupt from error
        raise
    finally:
        _unanswered.clear()
        signal.signal(signal.SIGINT, handler)


def _handler() -> Callable[[int, FrameType | None], Any] | None:
    """What answers Ctrl-C here; None: in other threads, and where it is ignored, as in the background of a shell."""
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    return None if isinstance(handler, signal.Handlers | int) else handler
