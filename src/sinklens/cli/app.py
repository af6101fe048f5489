"""The `sinklens` program: its commands, and what an exception means to the shell."""

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sinklens.cli.atlas import atlas
from sinklens.cli.card import card
from sinklens.cli.compress import compress
from sinklens.cli.demo import demo
from sinklens.cli.evaluate import evaluate
from sinklens.cli.explore import explore
from sinklens.cli.figures import figures
from sinklens.cli.generate import generate
from sinklens.cli.interrupts import INTERRUPTED, was_interrupted
from sinklens.cli.lm_eval import PASS_THROUGH, lm_eval
from sinklens.cli.mask import mask
from sinklens.cli.models import models
from sinklens.cli.options import Debug, debug_wanted
from sinklens.cli.select import select_commands
from sinklens.cli.sinks import sinks
from sinklens.cli.sweep import sweep
from sinklens.cli.trace import trace
from sinklens.cli.train import train
from sinklens.cli.verify import verify
from sinklens.errors import SinklensError, UsageError

FAILED, MISUSED = 1, 2


class PlainCommand(TyperCommand):
    """A command whose usage line says MODEL, not {MODEL}, and whose --help takes no <bool>."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))


class PlainGroup(TyperGroup):
    """The same for the program itself."""

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


app = typer.Typer(
    name="sinklens",
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=PlainCommand)(demo)
app.command(cls=PlainCommand)(models)
app.command(cls=PlainCommand)(generate)
app.command(cls=PlainCommand)(trace)
app.command(cls=PlainCommand)(sinks)
app.command(cls=PlainCommand)(figures)
app.command(cls=PlainCommand)(explore)
app.command(cls=PlainCommand)(mask)
app.command(cls=PlainCommand)(compress)
app.command(cls=PlainCommand)(atlas)
app.add_typer(select_commands(PlainGroup, PlainCommand), name="select")
app.command(cls=PlainCommand)(evaluate)
app.command("lm-eval", cls=PlainCommand, context_settings=PASS_THROUGH)(lm_eval)
app.command(cls=PlainCommand)(card)
app.command(cls=PlainCommand)(sweep)
app.command(cls=PlainCommand)(train)
app.command(cls=PlainCommand)(verify)


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
) -> None:
    """See, follow and remove attention sinks in diffusion and autoregressive language models."""


def run(arguments: list[str] | None = None) -> None:
    """Run the program and leave with its exit code; Ctrl-C that no command made something of goes on."""
    debug_wanted.set(False)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                app(arguments, prog_name="sinklens")
            finally:
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
        _leave(error, FAILED)


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
