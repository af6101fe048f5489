"""`sinklens select`: vision transformers that drop tokens, at a budget of the user's choice."""

import typer

from sinklens.cli.commands import PlainGroup, add_command
from sinklens.cli.select_evaluate import evaluate
from sinklens.cli.select_show import show
from sinklens.cli.select_train import train


def select_commands() -> typer.Typer:
    """The commands of `select`."""
    said = "Vision transformers that drop tokens at a budget: train, evaluate, show."
    app = typer.Typer(cls=PlainGroup, no_args_is_help=True, help=said)
    for command in (train, evaluate, show):
        add_command(app, command)
    return app
