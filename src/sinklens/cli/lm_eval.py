"""`sinklens lm-eval`: lm-evaluation-harness with sinklens as a model, through its own command line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from sinklens.cli.commands import PlainCommand
from sinklens.errors import SinklensError

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
PARTS = ("run", "ls", "validate")  # lm-eval's own commands; without one, it runs
HELP = ("-h", "--help")
NAMING = ("--model", "-M", "--config", "-C")  # who uses one of these says which model is meant


class HarnessCommand(PlainCommand):
    """Ours is the help that is asked for first, or by saying nothing; what comes behind a word is the harness's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        said = [word for word in args if word != "--"]
        if not ctx.resilient_parsing and (not said or said[0] in HELP):
            print(ctx.get_help(), end="")
            ctx.exit()
        return super().parse_args(ctx, args)


def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="What lm-eval takes."),
    ] = None,
) -> None:
    """Run lm-evaluation-harness on a model of sinklens, with its sinks or without.

    Ours are `--model sinklens`, which is meant unless a model or a config file is named, and what stands in
    `--model_args`: pretrained=NAME (a folder, a hub id, or a name from `sinklens models`), mask_top=1 or
    mask=sinks:top=1 (the keys that `sinklens mask` removes), preset=MODEL/TASK (published settings), dtype, revision,
    seed, and steps, block and the other settings of the samplers. docs/evaluate.md lists them all.

    Everything else is lm-eval's, and handed to it as it stands: `sinklens lm-eval run --help` prints its help, and its
    commands `ls` and `validate` work too. `--quiet`, `--verbose` and `--debug` stand before `lm-eval`. Needs the extra
    `eval`.
    """
    if find_spec("lm_eval") is None:
        raise SinklensError("lm-evaluation-harness is not installed; install it with the extra: pip install '.[eval]'")
    from sinklens.cli.interrupts import import_heavy
    from sinklens.interrupts import interrupts_deferred

    import_heavy(models=True)
    with interrupts_deferred():
        from lm_eval._cli import HarnessCLI
        from lm_eval.utils import setup_logging

        import_module("sinklens.evaluation.lm_eval_model")  # registers it
    setup_logging()
    with _command_line(complete(list(arguments or []))):
        harness = HarnessCLI()
        try:
            harness.execute(harness.parse_args())
        except (ValueError, KeyError, FileNotFoundError) as error:
            if isinstance(error, SinklensError):
                raise
            told = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise SinklensError(f"lm-eval says: {told}") from error


def complete(arguments: list[str]) -> list[str]:
    """The arguments for lm-eval: its command, and our model where none is named.

    >>> complete(["--tasks", "gsm8k"])
    ['run', '--tasks', 'gsm8k', '--model', 'sinklens']
    """
    whole = arguments if arguments[0] in PARTS else ["run", *arguments]
    named = any(part.split("=", 1)[0] in NAMING for part in whole)
    asks = any(part in HELP for part in whole)
    return whole if named or asks or whole[0] != "run" else [*whole, "--model", "sinklens"]


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """lm-eval reads sys.argv, and only that."""
    before = sys.argv
    sys.argv = ["lm-eval", *arguments]
    try:
        yield
    finally:
        sys.argv = before
