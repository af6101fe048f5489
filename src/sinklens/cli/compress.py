"""`sinklens compress`: what a model still finds, and how well it reads, when its cache keeps few entries."""

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.folders import check_folder
from sinklens.cli.interrupts import import_heavy, interrupts_end
from sinklens.cli.numbers import parse_numbers
from sinklens.errors import UsageError, choose

if TYPE_CHECKING:
    from sinklens.evaluation.compress_experiment import CompressExperiment, Progress

RESULT, TABLE = "result.json", "table.md"
TASKS = ("lm", "passkey", "needle", "longbench")
LENGTHS = (256, 512, 1024, 2048)
ROOM = 64  # tokens of an answer that must fit behind a prompt of the default lengths


def compress(
    model: options.Model,
    *,
    task: Annotated[str, typer.Option(metavar="LIST", help="lm, passkey, needle, longbench.")] = "passkey",
    keep: Annotated[
        str, typer.Option(metavar="LIST", help="Entries a head keeps: a number, or a share of the prompt.")
    ] = "50%,10%",
    order: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What is kept: low, high (key norm), random, recent, streaming, fastgen, keydiff, expected, "
            "received, value, key_value.",
        ),
    ] = "low,random,high",
    lengths: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Tokens of a prompt; lm reads the longest.", show_default="256 to 2048"),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="How much of the text comes before what is asked for, in percent.",
            show_default="needle 0,25,50,75,100; passkey drawn",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Layers that stay whole: 0,1 or 0,1,m (m: the middle one) or none; may be given several times.",
            show_default="0,1",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="once: after the prompt; cap: at every step; saw: to 98 % whenever --keep is reached.",
            show_default="once; lm cap",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", metavar="", help="once: cut before the first token of the answer is chosen.")
    ] = False,
    first: Annotated[int, typer.Option(min=0, metavar="N", help="Oldest entries that are always kept.")] = 0,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Newest entries that are always kept.")] = 0,
    problems: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Prompts of each length (needle: and depth), or chunks; may grow in a rerun."
        ),
    ] = 20,
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Draws of the order random.")] = 5,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text of lm and of the haystack: plain with form feeds between documents, or .jsonl with `text`.",
            show_default="46 kB of technical documentation",
        ),
    ] = None,
    stride: Annotated[
        int, typer.Option(min=1, metavar="N", help="lm: tokens read between two cuts; 1 is the published method.")
    ] = 1,
    wording: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="passkey: own, as the embedded models know it, or paper.",
            show_default="own for these, else paper",
        ),
    ] = None,
    paper_grid: Annotated[
        bool, typer.Option("--paper-grid", metavar="", help="passkey, needle: the published lengths, depths, wording.")
    ] = False,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Files of longbench (docs/compress.md).")] = None,
    sets: Annotated[
        str | None, typer.Option(metavar="LIST", help="Sets of longbench.", show_default="all five")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Problems at a time.")] = 8,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of problems and draws.")] = 0,
    rows_only: Annotated[
        bool, typer.Option("--rows-only", metavar="", help="Run, and leave the report to a rerun elsewhere.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the experiment.", show_default="a new one, runs/compress-N"),
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Read and answer with a cache that keeps few of its keys and values, beside the whole one.

    Every batch is written when it is whole: after Ctrl-C or a kill the same command goes on, and tasks, lengths,
    budgets and orders may be added to a folder later. docs/compress.md says what is measured.
    """
    check_folder(to, "experiment", resume=resume)
    from sinklens.evaluation.compress_cells import cross
    from sinklens.tasks.haystack import read_documents

    tasks = [choose("task", name, TASKS) for name in _names("--task", task)]
    if "lm" in tasks and schedule == "once":
        raise UsageError("--schedule once with task lm, which has no prompt; choose cap or saw, or leave it out")
    crossed: dict[str, Any] = {
        "orders": _names("--order", order), "keeps": _names("--keep", keep), "skips": skip or ["0,1"],
        "first": first, "last": last, "draws": draws,
    }  # fmt: skip
    cells = {
        name: cross(**crossed, schedule=schedule or "cap")
        if name == "lm"
        else cross(**crossed, schedule=schedule or "once", strict=strict)
        for name in tasks
    }
    asked = parse_numbers("--lengths", lengths)
    places = _percents(depths)
    documents, digest = read_documents(text)
    import_heavy()
    from sinklens.cli.loading import load_model
    from sinklens.cli.output import fresh_folder
    from sinklens.evaluation.compress_experiment import CompressExperiment
    from sinklens.evaluation.compress_problems import Asking
    from sinklens.models.catalog import EMBEDDED
    from sinklens.recording.identity import short_name
    from sinklens.tasks.longbench import SETS

    asking = Asking(
        lengths=LENGTHS if asked is None else tuple(asked),
        depths=places,
        wording=wording or ("own" if model in EMBEDDED else "paper"),
        paper_grid=paper_grid,
        documents=documents,
        data=None if data is None else str(data),
        sets=SETS if sets is None else tuple(_names("--sets", sets)),
        seed=seed,
    )
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    if asked is None:
        asking = replace(asking, lengths=_fitting(loaded.spec.max_length))
    experiment = CompressExperiment(
        model=loaded,
        name=short_name(model) or model,
        cells=cells,
        asking=asking,
        text=digest,
        problems=problems,
        batch=batch,
        stride=stride,
        command=join(["sinklens", *sys.argv[1:]]),
    )
    folder = to or fresh_folder("compress")
    _watch(experiment, folder)
    _report(folder, rows_only=rows_only, as_json=json)


def _names(option: str, text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UsageError(f"{option} {text!r} names nothing; give at least one")
    return found


def _percents(text: str | None) -> tuple[float, ...] | None:
    """`0,50,100` or `0%,50%`: shares."""
    if text is None:
        return None
    try:
        found = tuple(float(part.strip().removesuffix("%")) / 100 for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= one <= 1 for one in found):
        raise UsageError(f"--depths {text!r} is no list of percents; expected e.g. 0,50,100")
    return found


def _fitting(longest: int | None) -> tuple[int, ...]:
    """The default lengths that the model was made for."""
    found = tuple(length for length in LENGTHS if longest is None or length + ROOM <= longest)
    if not found:
        raise UsageError(f"this model was made for {longest} tokens, fewer than any default; give --lengths")
    return found


def _watch(experiment: "CompressExperiment", folder: Path) -> None:
    """Run what is not there yet, with a count on stderr; leaves with the exit code of an interrupt after Ctrl-C."""
    from sinklens.cli.experiments import Kept, batches_kept, duration
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.evaluation.compress_experiment import run
    from sinklens.evaluation.compress_store import CompressStore

    kept = Kept(folder, CompressStore(folder).batches())
    display = CountDisplay(stderr_console(), unit="answer")

    def show(now: "Progress") -> None:
        kept.tell()
        left = "" if now.seconds_left is None else f", about {duration(now.seconds_left)} left"
        display.show([], step=now.done, steps=now.total, label=f"{now.doing}{left}: ")

    with interrupts_end(lambda: batches_kept(folder, CompressStore(folder).batches())), closing(display):
        run(experiment, folder, progress=show)


def _report(folder: Path, *, rows_only: bool, as_json: bool) -> None:
    from sinklens.cli.output import print_json, terminal_width
    from sinklens.evaluation.compress_store import CompressStore
    from sinklens.files import write_json

    batches = CompressStore(folder).batches()
    head = {"to": str(folder), "batches": batches}
    if rows_only:
        text = f"{batches} batches in {folder}; the same command without --rows-only makes the report"
        print_json(head | {"result": None}) if as_json else print(text)
        return
    from sinklens.evaluation.compress_result import summarise
    from sinklens.report.compress import draw, table_text

    result = summarise(folder)
    write_json(folder / RESULT, result)
    draw(result, folder)
    if as_json:
        print_json(head | {"result": result})
        return
    print(table_text(result, width=terminal_width()))
    print(f"\n{batches} batches; rows, {RESULT}, {TABLE} and figures are in {folder}")
