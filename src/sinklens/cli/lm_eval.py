"""`sinklens lm-eval`: lm-evaluation-harness with sinklens as a model, through its own command line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from sinklens.errors import SinklensError

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
PARTS = ("run", "ls", "validate")  # lm-eval's own commands; without one, it runs
NAMING = ("--model", "-M", "--config", "-C")  # who uses one of these says which model is meant


def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="What lm-eval takes; `sinklens lm-eval run --help` lists it."),
    ] = None,
) -> None:
    """Run lm-evaluation-harness on a model of sinklens: `--model_args pretrained=NAME,mask_top=1 --tasks gsm8k`.

    Everything is handed to lm-eval as it stands, with `--model sinklens` unless a model or a config file is named.
    docs/evaluate.md lists the model arguments. Needs the extra: pip install '.[eval]'.
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
    if not arguments or arguments[0] in ("-h", "--help"):
        return arguments
    whole = arguments if arguments[0] in PARTS else ["run", *arguments]
    named = any(part.split("=", 1)[0] in NAMING for part in whole)
    asks = any(part in ("-h", "--help") for part in whole)
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
