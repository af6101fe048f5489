"""The `sinklens` program: its commands, and what an exception means to the shell."""

import os
import sys
import time
import traceback
import warnings
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from sinklens.cli.atlas import atlas
from sinklens.cli.card import card
from sinklens.cli.commands import PlainGroup, add_command
from sinklens.cli.compress import compress
from sinklens.cli.demo import demo
from sinklens.cli.doctor import doctor
from sinklens.cli.evaluate import evaluate
from sinklens.cli.explore import explore
from sinklens.cli.figures import figures
from sinklens.cli.generate import generate
from sinklens.cli.interrupts import INTERRUPTED, was_interrupted
from sinklens.cli.lm_eval import PASS_THROUGH, HarnessCommand, lm_eval
from sinklens.cli.mask import mask
from sinklens.cli.models import models
from sinklens.cli.options import Debug, Quiet, Verbose, debug_wanted, loudness
from sinklens.cli.select import select_commands
from sinklens.cli.sinks import sinks
from sinklens.cli.sweep import sweep
from sinklens.cli.trace import trace
from sinklens.cli.train import train
from sinklens.cli.verify import verify
from sinklens.errors import SinklensError, UsageError
from sinklens.interrupts import interrupts_named

FAILED, MISUSED = 1, 2


app = typer.Typer(
    name="sinklens",
    cls=PlainGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, doctor, models, generate, trace, sinks, figures, explore, mask, compress, atlas):
    add_command(app, command)
app.add_typer(select_commands(), name="select")
add_command(app, evaluate)
app.command("lm-eval", cls=HarnessCommand, context_settings=PASS_THROUGH)(lm_eval)
for command in (card, sweep, train, verify):
    add_command(app, command)


def _print_version(wanted: bool) -> bool:
    if wanted:
        from sinklens import __version__

        print(f"sinklens {__version__}")
        raise typer.Exit
    return wanted  # becomes the value of the option


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Debug = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """See, follow and remove attention sinks in diffusion and autoregressive language models."""


def run(arguments: list[str] | None = None) -> None:
    """Run the program and leave with its exit code; Ctrl-C that no command made something of goes on."""
    debug_wanted.set(False)
    loudness.set(0)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                with interrupts_named():
                    app(arguments, prog_name="sinklens")
            finally:
                _tell_cost(time.monotonic() - began)
                sys.stdout.flush()  # here, where a reader that has gone is understood, and not at exit
    except SystemExit as end:
        if end.code == INTERRUPTED and was_interrupted(end):
            raise KeyboardInterrupt from None
        raise
    except UsageError as error:
        _leave(error, MISUSED)
    except SinklensError as error:
        _leave(error, FAILED)
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to tell, and flushing at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:
        _leave(_told(error), FAILED)


def _told(error: Exception) -> Exception:
    """Memory that does not suffice is no bug: what to do about it is said."""
    from sinklens.evaluation.memory import is_out_of_memory

    if not is_out_of_memory(error):
        return error
    why = str(error).partition("\n")[0] or type(error).__name__
    told = SinklensError(
        f"out of memory ({why}); what was finished is kept: ask for less at a time (--batch, --length), a smaller "
        "--dtype such as bfloat16, or another --device"
    )
    told.__cause__ = error
    return told


def _tell_cost(seconds: float) -> None:
    """With --verbose, on stderr."""
    from sinklens.cli.output import detail

    used = ""
    if find_spec("resource") is not None:
        from resource import RUSAGE_SELF, getrusage

        unit = 1e6 if sys.platform == "darwin" else 1e3
        used = f", {getrusage(RUSAGE_SELF).ru_maxrss / unit:,.0f} MB of memory at most"
    detail(f"took {seconds:.1f} s{used}")


def _show_warning(message: Warning | str, category: Any, filename: str, lineno: int, *_: Any, **__: Any) -> None:
    """In place of a path and a line of source, which mean nothing on a command line."""
    print(f"warning: {message}", file=sys.stderr)


def _leave(error: Exception, code: int) -> None:
    """One message on stderr, then out. What sinklens refuses explains itself; a bug names its type."""
    if debug_wanted.get():
        traceback.print_exception(error)
    if isinstance(error, SinklensError):
        print(f"error: {error}", file=sys.stderr)
    else:
        hint = "" if debug_wanted.get() else "\n`--debug` shows where"
        print(f"unexpected error: {type(error).__name__}: {error}{hint}", file=sys.stderr)
    sys.exit(code)
