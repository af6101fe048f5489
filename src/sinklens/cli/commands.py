"""What all commands have in common: plain help with examples, --quiet and --verbose, options by their old names."""

import inspect
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sinklens.cli import options
from sinklens.cli.examples import EXAMPLES

# By command: options that had another name once. They are taken, with a warning.
RENAMED = {
    "evaluate": {"--tasks": "--task"},
    "atlas": {"--prompts": "--problems"},
    "explore": {"--sample": "--samples"},
    "sinks": {"--top": "--tokens"},
}
COMPLETION = ("install_completion", "show_completion")  # typer's own options


class PlainGroup(TyperGroup):
    """The program, or a group in it: flags show no <bool>, and the help ends with examples."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)
        return [_without_value(one) if one.name in COMPLETION else one for one in found]

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        _print_examples(ctx)


class PlainCommand(TyperCommand):
    """A command whose usage line says MODEL, not {MODEL}, and whose help flows as wide as the terminal is."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def get_help_option(self, ctx: Any) -> Any:
        return _without_value(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        _print_examples(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = with_new_names(ctx.info_name, args)
        try:
            return super().parse_args(ctx, list(named))
        except typer.BadParameter as error:
            error.message = with_value(error.message, given_to(getattr(error.param, "opts", ()), named))
            raise


def given_to(option: Sequence[str], arguments: Sequence[str]) -> str | None:
    """What an option, by any of its names, was given last.

    >>> given_to(["--draws", "-n"], ["tiny-llama", "--draws", "0", "-n=x"])
    'x'
    """
    found = None
    for argument, after in zip_longest(arguments, arguments[1:]):
        name, equals, value = argument.partition("=")
        if name in option and name.startswith("-"):  # an argument goes by a bare name, which may be somebody's word
            found = value if equals else after
    return found


def with_value(message: str, value: str | None) -> str:
    """What is accepted, behind what came: typer 0.29 leaves that out.

    >>> with_value("Input should be greater than or equal to 1", "0")
    "'0': Input should be greater than or equal to 1"
    >>> with_value("0 is not in the range x>=1.", "0")
    '0 is not in the range x>=1.'
    """
    told = value is None or repr(value) in message or message.startswith(f"{value} ")
    return message if told else f"{value!r}: {message}"


def with_new_names(command: str, arguments: Sequence[str]) -> list[str]:
    """The arguments with options by the names they have now.

    >>> with_new_names("evaluate", ["tiny-llama", "--task=passkey"])
    ['tiny-llama', '--task=passkey']
    """
    found = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        new = RENAMED.get(command, {}).get(name)
        if new is not None:
            print(f"warning: {name} is now {new}", file=sys.stderr)
        found.append(argument if new is None else f"{new}{equals}{value}")
    return found


def takes_loudness(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --quiet and --verbose, which set `options.loudness` and are not passed on."""

    def run(**given: Any) -> None:
        del given["quiet"], given["verbose"]
        command(**given)

    plain = inspect.signature(command).parameters.values()
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in plain]
    for name, annotation in (("quiet", options.Quiet), ("verbose", options.Verbose)):
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def add_command(app: Any, command: Callable[..., None]) -> None:
    """A command of the usual kind."""
    app.command(cls=PlainCommand)(takes_loudness(command))


def _print_examples(ctx: Any) -> None:
    """As they are, without colours or frames: to be copied."""
    name = " ".join(ctx.command_path.split()[1:])
    if name in EXAMPLES:
        print("Examples:\n")
        for line in EXAMPLES[name]:
            print(f"  {line}")


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
