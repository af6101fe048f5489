"""`sinklens doctor`: what is installed, what works here, and what to install for the rest."""

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from sinklens.cli import options

if TYPE_CHECKING:
    from sinklens.cli.doctor_checks import Finding

FAILED = 1
STYLES = {"ok": "green", "absent": "yellow", "wrong": "bold red"}


def doctor(*, json: options.Json = False, debug: options.Debug = False) -> None:
    """Check this installation: versions, devices, kernels, extras, sandbox, embedded models, folders.

    Every kernel is run and compared with the definition, every file of an embedded model is hashed. `absent` is what
    only some commands need, with what to install. Exit code 1 when something is wrong.
    """
    from sinklens.cli.output import print_json

    findings = list(examine())
    wrong = [one for one in findings if one.state == "wrong"]
    if json:
        print_json({"ok": not wrong, "findings": [asdict(one) for one in findings]})
    else:
        _print(findings, wrong=len(wrong))
    if wrong:
        raise typer.Exit(FAILED)


def examine() -> "Iterator[Finding]":
    """Every check, in the order in which they are printed."""
    from sinklens.cli import doctor_checks as checks
    from sinklens.cli import doctor_packages as packages

    yield from checks.guarded("versions", "packages", packages.versions)
    yield from checks.guarded("devices", "torch", checks.devices)
    yield from checks.guarded("kernels", "torch", _kernels)
    yield from checks.guarded("models", "files", checks.models)
    yield from checks.guarded("models", "observed", checks.generation)
    yield from checks.guarded("extras", "packages", packages.extras)
    yield from checks.guarded("sandbox", "sandbox", checks.sandbox)
    yield from checks.guarded("folders", "folders", checks.folders)


def _kernels() -> "Iterator[Finding]":
    from sinklens.cli.doctor_kernels import kernels

    yield from kernels()


def _print(findings: "list[Finding]", *, wrong: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    name_width = max(len(one.name) for one in findings)
    part: str | None = None
    for one in findings:
        if one.part != part:
            console.print(Text(("\n" if part else "") + one.part, style="bold"))
            part = one.part
        behind = Text(f"  {one.state:<6}  ", style=STYLES[one.state]) + Text(f"{one.name:<{name_width}}  ", style="")
        for style, text in (("", one.says), ("bold", one.do or "")):
            for line in wrap(text, max(20, console.width - len(behind)), break_on_hyphens=False):
                console.print(behind + Text(line, style=style), soft_wrap=True)
                behind = Text(" " * len(behind))
    said = "all that sinklens relies on works" if not wrong else f"{wrong} wrong"
    console.print(Text(f"\n{said}", style=STYLES["wrong" if wrong else "ok"]))
