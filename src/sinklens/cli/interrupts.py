"""Ctrl-C, wherever it comes: the program says `interrupted` and leaves with 130.

Python raises KeyboardInterrupt between any two instructions. Inside the import of a large library that exception
may be swallowed, or taken for a reason to try something else; so imports are finished first. Compiled code may make
another error of it (torch: "could not determine the shape of object"); so an error behind a Ctrl-C is that Ctrl-C.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130


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
    """An error that follows a Ctrl-C inside is a KeyboardInterrupt, whatever a library made of it."""
    handler = _handler()
    if handler is None:
        yield
        return
    pressed: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_end(tell: Callable[[], str]) -> Iterator[None]:
    """A Ctrl-C inside ends the program with its exit code, after `tell` has said on stderr what is kept."""
    import typer

    try:
        with interrupts_named():
            yield
        return
    except KeyboardInterrupt:
        pass
    print(tell(), file=sys.stderr)
    raise typer.Exit(INTERRUPTED) from None  # it has been told


def _handler() -> Callable[[int, FrameType | None], Any] | None:
    """What answers Ctrl-C here; None: in other threads, and where it is ignored, as in the background of a shell."""
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    return None if isinstance(handler, signal.Handlers | int) else handler


def import_heavy(*, models: bool = False) -> None:
    """Everything large that a command is about to need, in one go that Ctrl-C does not disturb.

    models: those of transformers too, which take three seconds.
    """
    with interrupts_deferred():
        import safetensors.torch
        import transformers
        from transformers import PreTrainedTokenizerFast

        import sinklens.models.load
        import sinklens.run
        import sinklens.sampling.diffusion
        import sinklens.sampling.generate

        if models:
            from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
            from transformers.models.auto import modeling_auto

            del AutoConfig, AutoTokenizer, PreTrainedModel, modeling_auto
        del safetensors, transformers, PreTrainedTokenizerFast, sinklens


def import_for(fields: Any) -> None:
    """The models of transformers, for a config that is of no family of ours."""
    from sinklens.models.load import native_family

    if native_family(fields) is None:
        import_heavy(models=True)


def was_interrupted(error: BaseException) -> bool:
    """Whether a Ctrl-C that nobody has told of led to `error`: typer turns it into an exit."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False
