"""The `sinklens` program: its commands, and what an exception means to the shell."""

import os
import sys
import traceback
from contextvars import ContextVar
from typing import Annotated

import typer

from sinklens.cli.generate import generate
from sinklens.cli.models import models
from sinklens.cli.verify import verify
from sinklens.errors import SinklensError, UsageError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="sinklens",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(models)
app.command()(generate)
app.command()(verify)


_debug: ContextVar[bool] = ContextVar("sinklens_debug", default=False)  # what the root options of this run say


def _print_version(wanted: bool) -> bool:
    if wanted:
        from sinklens import __version__

        print(f"sinklens {__version__}")
        raise typer.Exit
    return wanted  # becomes the value of the option


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """See, follow and remove attention sinks in diffusion and autoregressive language models."""
    _debug.set(debug)


def main(arguments: list[str] | None = None) -> None:
    """Run the program and leave with its exit code."""
    _debug.set(False)
    try:
        try:
            app(arguments, prog_name="sinklens")
        finally:
            sys.stdout.flush()  # here, where a reader that has gone is understood, and not at exit
    except UsageError as error:
        _leave(error, MISUSED)
    except SinklensError as error:
        _leave(error, FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to tell, and flushing at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:
        _leave(error, FAILED)


def _leave(error: Exception, code: int) -> None:
    """One message on stderr, then out. What sinklens refuses explains itself; a bug names its type."""
    if _debug.get():
        traceback.print_exception(error)
    if isinstance(error, SinklensError):
        print(f"error: {error}", file=sys.stderr)
    else:
        hint = "" if _debug.get() else "\n`sinklens --debug ...` shows where"
        print(f"unexpected error: {type(error).__name__}: {error}{hint}", file=sys.stderr)
    sys.exit(code)
