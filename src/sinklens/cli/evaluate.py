"""`sinklens evaluate`: how many problems of a task a model solves, with or without its sinks."""

import sys
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.experiments import run_watched
from sinklens.cli.folders import check_folder
from sinklens.cli.loading import load_model
from sinklens.errors import UsageError, choose

if TYPE_CHECKING:
    from sinklens.evaluation.answering import Answering

SCORES = "scores.json"
LENGTH, BLOCK = 64, 32  # tokens of an answer, and of a block of published tasks
LENGTHS = {"gsm8k": 256, "humaneval": 512}  # arXiv 2510.15731


def evaluate(
    model: options.Model,
    *,
    task: Annotated[
        str, typer.Option(metavar="LIST", help="word_problems, small_programs, passkey, gsm8k, humaneval.")
    ] = "word_problems",
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Files of gsm8k or humaneval; TASK=PATH where both are asked."),
    ] = None,
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="Problems of each task.")] = 100,
    split: Annotated[str, typer.Option(metavar="NAME", help="test, templates, numbers or train.")] = "test",
    shots: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Worked examples before a problem (gsm8k).", show_default="5")
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="What is done to attention, such as sinks:top=5 or random:top=5.",
            show_default="none",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Problems at a time.")] = 64,
    length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of an answer.", show_default="64; gsm8k 256, humaneval 512"),
    ] = None,
    steps: options.Steps = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Block length (LLaDA, MMaDA).", show_default="the length; gsm8k and humaneval 32"
        ),
    ] = None,
    stop_at_eos: options.StopAtEos = None,
    threshold: options.Threshold = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random controls.")] = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    graph: options.Graph = False,
    unsafe: options.Unsafe = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the rows.", show_default="a new one, runs/evaluate-NAME-N"),
    ] = None,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """How many problems of a task a model solves: greedy, with 95 % intervals, by every grader of the task.

    Every finished batch is written to the folder. After Ctrl-C or a kill the same command with the same --to goes on,
    and more --problems may be asked for. docs/evaluate.md says more, also on published settings and on speed.
    """
    check_folder(to, "experiment", resume=resume)
    from sinklens.evaluation.conditions import parse_condition

    conditions = [parse_condition(text) for text in mask or ["none"]]
    tasks = read_tasks(task)
    if shots is not None and "gsm8k" not in tasks:
        raise UsageError(f"--shots {shots} with --task {task}: only gsm8k takes worked examples; leave it out")
    from sinklens.cli.output import fresh_folder
    from sinklens.evaluation.answering import Answering
    from sinklens.evaluation.experiment import Experiment
    from sinklens.recording.identity import short_name

    answerings = [
        Answering(
            task=name,
            data=path,
            split=split,
            shots=shots if name == "gsm8k" else None,
            batch=batch,
            steps=steps,
            seed=seed,
            threshold=threshold,
            stop_at_eos=bool(stop_at_eos),
            graph=graph,
            unsafe=unsafe,
            length=length_of(name, length),
            block=block,
        )
        for name, path in find_data(data or [], tasks).items()
    ]
    loaded = load_model(model, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    name = short_name(model) or model
    experiment = Experiment(
        models={name: loaded},
        answerings=[settle_block(one, loaded) for one in answerings],
        cells={name: conditions},
        problems=problems,
        command=join(["sinklens", *sys.argv[1:]]),
    )
    folder = to or fresh_folder(f"evaluate-{name}")
    run_watched(experiment, folder)
    order = [(one.task, str(condition)) for one in answerings for condition in conditions]
    _report(folder, order, count=problems, as_json=json)


def read_tasks(text: str) -> list[str]:
    """The names of a list, each a task."""
    from sinklens.tasks import BENCHMARKS, TASKS

    names = [name.strip() for name in text.split(",") if name.strip()]
    return [choose("task", name, (*TASKS, *BENCHMARKS)) for name in names]


def read_data(given: list[str], tasks: list[str]) -> dict[str, str | None]:
    """The files of each task: TASK=PATH, or PATH where one task reads files; None for those that are made by rule."""
    from sinklens.tasks import BENCHMARKS

    reading = [name for name in tasks if name in BENCHMARKS]
    paths: dict[str, str] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (equals and name in BENCHMARKS):
            if len(reading) != 1:
                found = ", ".join(reading) or "none"
                raise UsageError(f"--data {one}: of the tasks asked, {found} read files; expected TASK=PATH for each")
            name, path = reading[0], one
        if name not in reading or name in paths:
            raise UsageError(f"--data {one}: {name} is no task asked for, or has its files already; leave it out")
        paths[name] = path
    return {name: paths.get(name) for name in tasks}


def find_data(given: list[str], tasks: list[str]) -> dict[str, str | None]:
    """The same, of files that are there: asked before a model is loaded."""
    from sinklens.tasks import BENCHMARKS, task
    from sinklens.tasks.files import data_path

    found = read_data(given, tasks)
    for name, path in found.items():
        if name in BENCHMARKS:
            data_path(path, task=name, how=task(name).HOW)
    return found


def length_of(task: str, asked: int | None) -> int:
    """Tokens of an answer: as asked, else by the task."""
    return LENGTHS.get(task, LENGTH) if asked is None else asked


def settle_block(answering: "Answering", model: Any) -> "Answering":
    """Where no block was asked for: LLaDA and MMaDA write published tasks in blocks."""
    from sinklens.evaluation.greedy import has_blocks
    from sinklens.tasks import BENCHMARKS

    left_open = answering.block is None and answering.task in BENCHMARKS and answering.length % BLOCK == 0
    return replace(answering, block=BLOCK) if left_open and has_blocks(model) else answering


def _report(folder: Path, order: list[tuple[str, str]], *, count: int, as_json: bool) -> None:
    """Of the first `count` problems: the folder may hold more. order: tasks and conditions as they were asked."""
    from sinklens.cli.output import print_json
    from sinklens.evaluation.scores import scores
    from sinklens.evaluation.store import Store
    from sinklens.files import write_json

    store = Store(folder)
    rows = [row for row in store.read("rows").to_pylist() if row["problem"] < count]
    found = scores(rows, store.read("timings").to_pylist())
    found.sort(key=lambda one: order.index((one["task"], one["condition"])))
    document = {"to": str(folder), "results": found}
    write_json(folder / SCORES, document)
    if as_json:
        print_json(document)
        return
    _print_table(found)
    print(f"rows and {SCORES} are in {folder}")


def _print_table(results: list[dict[str, Any]]) -> None:
    from sinklens.cli.output import terminal_width
    from sinklens.report.columns import columns

    header = ("task", "condition", "grader", "solved", "95 % interval", "problems", "dose", "steps", "s a problem")
    table = []
    for one in results:
        for grader, share in one["graders"].items():
            interval = f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"
            table.append((
                one["task"], one["condition"], grader, f"{100 * share['value']:.1f} %", interval, str(one["problems"]),
                _number(one["dose"], 2), _number(one["steps"], 1), _number(one["seconds"], 3),
            ))  # fmt: skip
    print("\n".join(columns(header, table, width=terminal_width())))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
