"""docs/cli.md, made from the commands themselves: `python -m sinklens.cli.reference > docs/cli.md`.

It reads the same objects that `--help` reads, but lays them out as Markdown of its own, so that the page
depends neither on the width of a terminal nor on its colours.
"""

from collections.abc import Iterator
from typing import Any

import typer

from sinklens.cli.app import app
from sinklens.cli.examples import EXAMPLES

HEADER = """\
# The command line

<!-- Made by `python -m sinklens.cli.reference > docs/cli.md`; change the commands, not this page. -->

After `make demo` or `make test` the program is `.venv/bin/sinklens`; `. .venv/bin/activate` puts it on the path.

Results go to stdout, progress, warnings and errors to stderr. `--json` prints exactly one JSON document on stdout, and
nothing there when the command fails. `--to DIR` says where files go. `--quiet` leaves nothing but warnings and errors
on stderr; `--verbose` says what is used and how long it took; `--debug` shows the traceback of an error. All three may
stand before or behind the command (of `lm-eval` before it). Colours are for a terminal, and off with `NO_COLOR`; tables
fit into `COLUMNS`.

`sinklens --install-completion` makes the shell complete commands, options and names of models.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: a broken checkpoint, no network, a reference that disagrees, ... |
| 2 | misused: an unknown option, model name or setting, a prompt file or model folder that is not there, ... |
| 130 | interrupted by Ctrl-C; `generate` prints what is there, with `--json` a document whose `interrupted` is true |

In the document of `generate`, `finished` is false for a row that was interrupted, or in which masks are left
(`mask_id`); a warning on stderr tells of these. `trace`, interrupted or killed, keeps every finished prompt, and
`--resume` goes on; its folder is described in [traces.md](traces.md), the document of `sinks` in
[statistics.md](statistics.md).
"""


def render() -> str:
    """The whole page."""
    program = typer.main.get_command(app)
    return "\n".join([HEADER, *_sections("sinklens", program), _index(program)])


def _index(program: Any) -> str:
    """Every option, and who takes it."""
    takers: dict[tuple[str, str], list[str]] = {}
    everywhere = {"--debug", "--quiet", "--verbose", "--version", "--install-completion", "--show-completion"}
    for title, command in _commands("", program):
        for one in command.params:
            if one.param_type_name == "option" and one.opts[0] not in everywhere:
                takers.setdefault((one.opts[0], "" if one.is_flag else str(one.metavar)), []).append(title)
    rows = [f"| `{name}` | {value} | {', '.join(titles)} |" for (name, value), titles in sorted(takers.items())]
    return "\n".join(["## Options by name", "", "| option | value | commands |", "|---|---|---|", *rows]) + "\n"


def _commands(title: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Those that do something, by their names."""
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield title, command
    for name, one in inner.items():
        yield from _commands(f"{title} {name}".strip(), one)


def _sections(title: str, command: Any) -> Iterator[str]:
    """Of a command, then of those in it, by name."""
    yield _section(title, command)
    commands: dict[str, Any] = getattr(command, "commands", {})
    for name, inner in sorted(commands.items()):
        yield from _sections(f"{title} {name}", inner)


def _section(title: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    what = ["COMMAND"] if hasattr(command, "commands") else [_usage_of(argument) for argument in arguments]
    usage = " ".join([title, *what, "[OPTIONS]"] if arguments else [title, "[OPTIONS]", *what])
    lines = [f"## {title}", "", (command.help or "").strip(), "", f"    {usage}", ""]
    lines += ["| option | value | default | meaning |", "|---|---|---|---|"]
    lines += [_row(parameter) for parameter in [*arguments, *options]]
    lines += ["", "```", *EXAMPLES[title.partition(" ")[2]], "```"]
    return "\n".join(lines) + "\n"


def _usage_of(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + "..." * (argument.nargs == -1)
    return name if argument.required else f"[{name}]"


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    if is_argument:
        names, value = [str(parameter.metavar)], ""
    else:
        names = [*sorted(parameter.opts, reverse=True), *parameter.secondary_opts]
        value = "" if parameter.is_flag else str(parameter.metavar)
        value += ", repeatable" if parameter.multiple else ""
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.required:
        default = None if is_argument else "required"
    silent = default is None or default is False or default == []
    shown = [
        ", ".join(f"`{name}`" for name in names),
        value,
        "" if silent else str(default),
        parameter.help or "",
    ]
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in shown) + " |"


if __name__ == "__main__":
    print(render(), end="")
