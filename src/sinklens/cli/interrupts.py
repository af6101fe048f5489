"""Ctrl-C, wherever it comes: the program says `interrupted` and leaves with 130.

Python raises KeyboardInterrupt between any two instructions. Inside the import of a large library that exception
may be swallowed, or taken for a reason to try something else; so imports are finished first.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """A Ctrl-C inside is delivered at the end. Where the program does not decide on it, nothing changes."""
    inside = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if inside else None
    if handler is None or isinstance(handler, signal.Handlers | int):  # ignored, as in the background of a shell
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


def import_heavy() -> None:
    """Everything large that a command is about to need, in one go that Ctrl-C does not disturb."""
    with interrupts_deferred():
        import safetensors.torch
        import transformers
        from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
        from transformers.models.auto import modeling_auto

        import sinklens.models.load
        import sinklens.run
        import sinklens.sampling.diffusion
        import sinklens.sampling.generate

        del safetensors, transformers, AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
        del modeling_auto, sinklens


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is what led to `error`: typer turns it into an exit."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False
