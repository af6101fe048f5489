"""`sinklens select`: vision transformers that drop tokens, at a budget of the user's choice."""

from typing import Any

import typer

from sinklens.cli.select_evaluate import evaluate
from sinklens.cli.select_show import show
from sinklens.cli.select_train import train


def select_commands(group: Any, command: Any) -> typer.Typer:
    """The commands of `select`; group and command are the classes that the program's others are of."""
    app = typer.Typer(
        cls=group, no_args_is_help=True, help="Vision transformers that drop tokens at a budget: train, evaluate, show."
    )
    for made in (train, evaluate, show):
        app.command(cls=command)(made)
    return app
