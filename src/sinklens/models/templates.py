"""Chat templates of transformers' tokenizers, rendered under a limit.

A template is a program of whoever made the checkpoint, in jinja's sandbox: it reaches nothing, and a range in it is
short, but loops in loops may go on for ever. So it gets some seconds of the processor's time, which a signal ends
(SIGVTALRM, as nobody else's alarm is that). Signals come to the main thread alone: elsewhere there is no limit.
"""

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sinklens.errors import ModelError

SECONDS = 5.0  # of the processor; a template takes some milliseconds
SHORTEST = 0.01  # seconds that a timer is set to


def render_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, source: str, add_generation_prompt: bool = True
) -> str:
    """The text of a conversation; without a generation prompt, its last message is left open."""
    settings = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": not add_generation_prompt,
    }
    try:
        with _limited(SECONDS):
            return str(
                tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False, **settings)
            )
    except Exception as error:  # whatever goes wrong inside a template
        raise ModelError(f"the chat template of {source} fails ({error}); give ids, or text without chat") from error


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """TimeoutError inside once it has taken so long; what the signal and its timer were before, they are again."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    began = time.thread_time()

    def late(*_: object) -> None:
        if (rest := seconds - (time.thread_time() - began)) > 0:  # the clock runs for all threads
            signal.setitimer(signal.ITIMER_VIRTUAL, max(rest, SHORTEST))
            return
        raise TimeoutError(f"not done after {seconds:g} seconds")

    handler = signal.signal(signal.SIGVTALRM, late)
    left, again = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, left, again)
        signal.signal(signal.SIGVTALRM, handler)
