"""Every error that sinklens raises on purpose.

    SinklensError
    ├── UsageError (ValueError)         an argument that cannot be meant: what came, what is accepted
    ├── ModelError (ValueError)         a checkpoint, config or tokenizer that cannot be loaded as asked
    ├── ObservationError (RuntimeError) attention that cannot be seen, or was not
    ├── KernelError (RuntimeError)      an attention kernel that cannot run what was asked, here
    ├── TraceError (RuntimeError)       a trace that cannot be read or written as asked
    ├── SandboxError (RuntimeError)     a program that cannot be run safely here (in tasks/sandbox.py)
    └── VerificationError (RuntimeError) a reference that disagrees, or could not be run

A message holds three things: what came, what is accepted, what to do.
"""

from reprlib import repr as shortened
from typing import Any


class SinklensError(Exception):
    """Root of the tree: `except SinklensError` catches what sinklens refuses, and no bug."""


class UsageError(SinklensError, ValueError):
    """An argument that cannot be meant."""


class ModelError(SinklensError, ValueError):
    """A checkpoint, config or tokenizer that cannot be loaded as asked."""


class ObservationError(SinklensError, RuntimeError):
    """Attention that cannot be seen, or was not."""


class KernelError(SinklensError, RuntimeError):
    """An attention kernel that cannot run what was asked, here."""


class TraceError(SinklensError, RuntimeError):
    """A trace that cannot be read or written as asked."""


class VerificationError(SinklensError, RuntimeError):
    """A reference implementation that disagrees, or that could not be run."""


def choose(what: str, value: Any, accepted: tuple[str, ...]) -> str:
    """`value` if it is one of `accepted`, else a UsageError that lists them.

    >>> choose("impl", "chunked", ("reference", "chunked"))
    'chunked'
    """
    if not isinstance(value, str) or value not in accepted:
        names = ", ".join(repr(name) for name in accepted)
        came = repr(value) if isinstance(value, str) else shortened(value)  # from a file, it may be anything
        raise UsageError(f"unknown {what} {came}; expected one of {names}")
    return value
