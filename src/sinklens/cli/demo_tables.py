"""What a demo prints for people. A quiet console prints nothing: with --json, all goes into the document."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sinklens.cli.live import CountDisplay
from sinklens.cli.sink_tables import shown_path
from sinklens.models.catalog import ZOO
from sinklens.tasks.item import Item

WIDTH = 100  # of output that goes to a file
WIDE = 97  # columns that the table of masks takes with every share and its interval in one line
LINES = 20  # of a problem or an answer
Row = Mapping[str, Any]


def heading(console: Console, text: str) -> None:
    console.print("", Text(text, style="bold"), sep="\n")


def print_problem(console: Console, item: Item) -> None:
    heading(console, f"{item.task.replace('_', ' ').capitalize()[:-1]}, not seen in training")
    _print_indented(console, item.prompt)


def print_answer(console: Console, row: Row) -> None:
    verdict = {True: ("right", "green"), False: ("wrong", "red"), None: ("not graded", "yellow")}[row["right"]]
    console.print(Text.assemble((row["model"], "bold"), "  ", verdict))
    _print_indented(console, row["text"].strip())
    if row["not_graded"]:
        console.print(Text(row["not_graded"], style="dim"))


def _print_indented(console: Console, text: str) -> None:
    """Wrapped between words; what a terminal would take for a command is a dot."""
    safe = "".join(one if one.isprintable() or one == "\n" else "·" for one in text)
    lines = [part for line in safe.split("\n") for part in wrap(line, console.width - 2, drop_whitespace=False) or [""]]
    shown = [*lines[:LINES], "…"] if len(lines) > LINES else lines
    console.print(Text("\n".join(f"  {line}".rstrip() for line in shown)), soft_wrap=True)


def print_summary(console: Console, rows: Sequence[Row]) -> None:
    count = rows[0]["prompts"]
    heading(console, f"Sinks while they answered {count} word problem{'s' * (count != 1)}")
    table = _table("model", "sinks", "moving", "by chance", "half live", "drift", "top sink tokens")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['sinks_per_head_and_step']:.2f}",
            _percent(row["moving"]),
            _percent(row["moving_null"]),
            _lifetime(row),
            "" if row["drift"] is None else f"{row['drift']:+.2f} ({row['drifting_tracks']})",
            Text(", ".join(f"{one['token']} {100 * one['share']:.0f}%" for one in row["top_tokens"])),
        )
    console.print(table)
    console.print(
        "sinks: in a head at a step; a token that receives three fair shares more than the others do on average. "
        "moving: share of followed sinks whose place changes; by chance: the same with their lives shifted in time. "
        "half live: steps that half of them last at most. drift: tokens a step of those that move (so many), + to the "
        "right. Top sink tokens: share of all sinks that lie on them.",
        style="dim",
    )
    for row in rows:
        if row["causal"]:
            console.print(
                f"{row['model']} writes from left to right: a step is one more token, and what a token received is "
                "summed over all queries so far, those of the cache included.",
                style="dim",
            )
        if not row["tracks"]:
            console.print(f"{row['model']} has no sink here: nothing to follow.", style="dim")


def _lifetime(row: Row) -> str:
    if not row["tracks"]:
        return ""
    return f"> {row['steps']:.0f}" if row["median_lifetime"] is None else f"{row['median_lifetime']:g}"


def print_figures(console: Console, rows: Sequence[Row]) -> None:
    drawn = [row["id"] for row in rows if row["files"]]
    heading(console, "Figures")
    console.print(f"drawn: {', '.join(drawn)}" if drawn else "none could be drawn")
    for row in rows:
        if not row["files"]:
            console.print(Text(f"{row['id']}: {row['note']}", style="dim"))


def masking_table(document: Row, *, width: int) -> Table:
    """A row a model, a column a mask; each interval under its share where the columns would not fit side by side."""
    gap = " " if width >= WIDE else "\n"
    cells = document["cells"]
    names = list(dict.fromkeys(cell["model"] for cell in cells))
    masks = list(dict.fromkeys((cell["keys"], cell["top"]) for cell in cells))
    table = _table("model", *(f"{keys} {top}" if top else "unmasked" for keys, top in masks))
    for name in names:
        table.add_row(name, *(_share(cell, gap) for cell in cells if cell["model"] == name))
    return table


def _share(cell: Row, gap: str) -> str:
    if cell["accuracy"] is None:
        return "-"
    return f"{100 * cell['accuracy']:.0f} %{gap}[{100 * cell['low']:.0f}, {100 * cell['high']:.0f}]"


def print_masking(console: Console, document: Row) -> None:
    count = document["problems"]
    heading(console, "Right answers with sinks masked, 95 % intervals")
    console.print(masking_table(document, width=console.width))
    console.print(
        "sinks k: at every step, layer and head, the k tokens that received most attention at the step before are "
        "hidden; random k: as many tokens drawn at random.",
        style="dim",
    )
    problems = "1 problem" if count == 1 else f"{count} problems, the same in every cell"
    console.print(
        f"{problems}, up to {document['length']} tokens in {document['steps']} denoising steps: a glimpse, as "
        "wide as its intervals. A model that fails unmasked says nothing here."
    )
    _print_published(console)
    failed = [cell["model"] for cell in document["cells"] if cell["keys"] == "none" and not cell["right"]]
    if failed:
        console.print(f"None right unmasked, so nothing to lose: {', '.join(failed)}.")


def _print_published(console: Console) -> None:
    """The same masks on more problems, measured once and shipped with the models."""
    found = json.loads((ZOO / "masking.json").read_text("utf-8"))
    heading(console, f"The same on {found['problems']} problems, every token a step of its own, as published")
    console.print(masking_table(found, width=console.width))
    console.print(
        "Controls of equal dose, other rules and the programs are in docs/results/masking.md. What falls with the top "
        "key of every head is not always a sink: the first token alone, hidden everywhere, costs far less.",
        style="dim",
    )


def print_ending(console: Console, document: Row) -> None:
    heading(console, f"Written in {document['seconds']:.0f} seconds" + (", interrupted" * document["interrupted"]))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for row in document["files"]:
        table.add_row(Text(shown_path(row["file"])), Text(row["what"]))
    console.print(table)
    for command in document["next"]:
        console.print(Text(f"next: {command}"), soft_wrap=True)


def program() -> str:
    """How this program is called from here."""
    if shutil.which("sinklens"):
        return "sinklens"
    beside = Path(sys.executable).with_name("sinklens")
    return shown_path(str(beside)) if beside.exists() else f"{shown_path(sys.executable)} -m sinklens.cli"


class MaskingView:
    """The table of accuracies while it fills: redrawn on a terminal, elsewhere a line now and then."""

    def __init__(self, console: Console, *, seconds: float) -> None:
        self._seconds, self._width = int(seconds), console.width
        self._count = CountDisplay(console, unit="second")
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def show(self, doing: str, document: Row, *, elapsed: float) -> None:
        done, now = document["problems"], int(elapsed)
        label = f"masking: {done} problem{'s' * (done != 1)} done, now {doing}; "
        if self._live is None:
            self._count.show([], step=now, steps=max(now, self._seconds), label=label)
            return
        line = Text(f"{label}second {now}/{max(now, self._seconds)}", style="dim")
        self._live.update(Group(line, masking_table(document, width=self._width)), refresh=True)

    def close(self) -> None:
        self._count.close()
        if self._live is not None:
            self._live.stop()


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        last = name == "top sink tokens"
        table.add_column(name, justify="left" if last or not number else "right", header_style="dim", no_wrap=not last)
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
