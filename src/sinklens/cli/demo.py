"""`sinklens demo`: three small models answer, are traced, summarised and drawn, then lose their sinks.

Four parts take what they take; the last one, masking, takes what is left of the time.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import INTERRUPTED, import_heavy
from sinklens.interrupts import interrupts_deferred, interrupts_named

MODELS = ("tiny-llama", "tiny-llada", "tiny-dream")
FOLDER = Path("runs") / "demo"
# As a shell takes it: problems end in a line that only says Answer.
PROBLEM = (
    r"$'Question: Mia has 12 apples. She finds 5 more apples. Tom has twice as many apples as Mia. "
    r"How many apples does Tom have?\nAnswer:'"
)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much is done of everything."""

    seconds: float  # in all, about: another round of masking begins only if it would fit
    traced: int  # word problems in each trace
    length: int  # tokens of an answer
    steps: int  # denoising steps while watched and traced
    masked_steps: int  # and while masked
    batch: int  # problems in a round of masking
    workers: int  # processes that share them; starting them takes seconds
    tasks: tuple[str, ...]  # of which each model answers one problem


FULL = Pace(
    seconds=200.0,
    traced=6,
    length=64,
    steps=64,
    masked_steps=16,
    batch=2,
    workers=2,
    tasks=("word_problems", "small_programs"),
)
QUICK = Pace(
    seconds=45.0,
    traced=2,
    length=64,
    steps=32,
    masked_steps=16,
    batch=1,
    workers=1,
    tasks=("word_problems",),
)


def demo(
    *,
    quick: Annotated[bool, typer.Option("--quick", metavar="", help="Less of everything, in under a minute.")] = False,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the files go; an earlier demo there is replaced.")
    ] = FOLDER,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Three small models answer problems while their attention is traced, then answer with their sinks masked.

    Shows the answers, the sinks of each model, and accuracy with the top sinks masked beside random tokens, on as many
    problems as fit into three minutes. Needs no GPU. Ctrl-C ends it with what is finished, and code 130.
    """
    from sinklens.cli.output import note

    began = time.monotonic()
    pace = QUICK if quick else FULL
    document = _begin(to, quick=quick)
    note(f"about {pace.seconds:.0f} seconds on two cores; Ctrl-C ends it with what is finished")
    import_heavy(models=True)
    with interrupts_deferred():
        from sinklens.cli import demo_masking, demo_parts, demo_tables, demo_workers
        from sinklens.cli.output import print_json, stdout_console

        del demo_masking, demo_parts  # loaded here, where Ctrl-C does not disturb it
    console = stdout_console(quiet=json, width=demo_tables.WIDTH)
    try:
        with interrupts_named(), demo_workers.one_thread():
            _show_and_trace(document, pace, to=to, console=console)
            _save(document, to)  # the longest part comes, and a kill leaves no time for it
            _mask(document, pace, to=to, began=began)
        document["complete"] = True
    except KeyboardInterrupt:
        document["interrupted"] = True
    _end(document, to, seconds=time.monotonic() - began)
    if document["masking"] is not None:
        demo_tables.print_masking(console, document["masking"])
    demo_tables.print_ending(console, document)
    if json:
        print_json(document)
    if document["interrupted"]:
        print(f"interrupted: what is finished is in {to}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _begin(to: Path, *, quick: bool) -> dict[str, Any]:
    """Take the folder, before anything is computed for it."""
    from sinklens import __version__
    from sinklens.cli.demo_folder import PROGRAM, claim_folder

    marker = {"version": __version__, "quick": quick, "models": list(MODELS)}
    claim_folder(to, traces=MODELS, marker=marker)
    head = {"program": PROGRAM, "complete": False, "interrupted": False, **marker, "to": str(to)}
    return head | {"seconds": 0.0, "answers": [], "summary": [], "figures": [], "masking": None}


def _show_and_trace(document: dict[str, Any], pace: Pace, *, to: Path, console: Any) -> None:
    from sinklens.cli import demo_parts as parts
    from sinklens.cli.demo_tables import print_answer, print_figures, print_problem, print_summary
    from sinklens.cli.demo_workers import loaded, problems

    models = {name: loaded(name) for name in MODELS}
    for task in pace.tasks:
        (item,) = problems(task, 1)
        print_problem(console, item)
        for row in parts.answer(models, item, length=pace.length, steps=pace.steps):
            document["answers"].append(row)
            print_answer(console, row)
    traces = parts.trace_models(models, to, count=pace.traced, length=pace.length, steps=pace.steps)
    document["summary"] = parts.summarise(traces, to)
    print_summary(console, document["summary"])
    document["figures"] = parts.draw(traces, to)
    parts.make_page(traces, to)
    print_figures(console, document["figures"])


def _mask(document: dict[str, Any], pace: Pace, *, to: Path, began: float) -> None:
    from sinklens.cli.demo_folder import MASKING
    from sinklens.cli.demo_masking import Tally, mask_rounds
    from sinklens.cli.demo_tables import MaskingView
    from sinklens.cli.demo_workers import Effort, workers
    from sinklens.cli.output import stderr_console

    started, deadline = time.monotonic(), began + pace.seconds
    view = MaskingView(stderr_console(), seconds=deadline - started)
    effort = Effort(length=pace.length, steps=pace.masked_steps, batch=pace.batch)
    try:
        with workers(min(pace.workers, os.cpu_count() or 1)) as answer:
            rounds = mask_rounds(
                Tally(models=MODELS, effort=effort),
                to / MASKING,
                answer=answer,
                deadline=deadline,
                tell=lambda doing, so_far: view.show(doing, so_far, elapsed=time.monotonic() - started),
            )
            for found in rounds:
                document["masking"] = found
    finally:
        view.close()


def _end(document: dict[str, Any], to: Path, *, seconds: float) -> None:
    """The files that are there, where to go from them, and all of it on disk."""
    from sinklens.cli.demo_folder import TRACES, written_files
    from sinklens.cli.demo_tables import program

    commands = [f"{program()} generate tiny-dream --length 64 --prompt {PROBLEM}"]
    if document["summary"]:
        commands.insert(0, f"{program()} sinks {quote(str(to / TRACES / 'tiny-llada'))} --parts all")
    document |= {"seconds": round(seconds, 1), "files": written_files(to), "next": commands}
    _save(document, to)


def _save(document: dict[str, Any], to: Path) -> None:
    from sinklens.cli.demo_folder import RESULT
    from sinklens.files import write_json

    with interrupts_deferred():
        write_json(to / RESULT, document)
