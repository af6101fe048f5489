"""Ctrl-C in a command: it says `interrupted` and what is kept, and leaves with 130."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sinklens.interrupts import interrupts_deferred, interrupts_named

INTERRUPTED = 130


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


def import_for(located: Any) -> Any:
    """What a checkpoint needs, the models of transformers only where it is of no family of ours; and its config."""
    import_heavy(models=located.gguf is not None)  # whose config transformers reads
    from sinklens.models.gguf import read_fields
    from sinklens.models.load import native_family

    fields = read_fields(located)
    if native_family(fields) is None:
        import_heavy(models=True)
    return fields


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
