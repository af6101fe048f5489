"""`sinklens mask`: problems answered with sinks removed, beside controls."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.evaluate import find_data, length_of, read_tasks, settle_block
from sinklens.cli.experiments import run_watched
from sinklens.cli.folders import check_folder
from sinklens.cli.interrupts import import_heavy
from sinklens.cli.numbers import parse_numbers
from sinklens.errors import UsageError

if TYPE_CHECKING:
    from sinklens.evaluation.conditions import Condition
    from sinklens.evaluation.experiment import Experiment, Ran

RESULT, TABLE = "result.json", "table.md"


def mask(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Folders, hub ids, or names from `sinklens models`.",
            autocompletion=options.known_models,
        ),
    ],
    *,
    task: Annotated[
        str, typer.Option(metavar="LIST", help="word_problems, small_programs, passkey, gsm8k, humaneval.")
    ] = "word_problems",
    top: Annotated[
        str | None, typer.Option(metavar="LIST", help="Sinks to remove from every head.", show_default="0,1,5,10")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="As many other keys: random, next, mass, position, other_head, stale, first.",
            show_default="random",
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="cached, recomputed, block_cached (diffusion models): whether keys and values are computed under the "
            "mask; with the random control.",
            show_default="the family's own",
        ),
    ] = None,
    act: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="mask, zero, mean: the logit, or the value alone.", show_default="mask"),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="head, layer, model: what is ranked together.", show_default="head"),
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(metavar="LIST", help="Also all sinks above these thresholds: 1,2,3,5,10.")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draws of every random control.", show_default="5")
    ] = None,
    cells: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Exactly these cells, one a line, such as sinks:top=5,keys=cached."),
    ] = None,
    problems: Annotated[
        int, typer.Option(min=1, metavar="N", help="Problems of each task; may grow in a rerun.")
    ] = 100,
    length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of an answer.", show_default="64; gsm8k 256, humaneval 512"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Denoising steps (diffusion models).", show_default="as the length"),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Block length (LLaDA, MMaDA).", show_default="the length; published tasks 32"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Problems at a time.")] = 64,
    split: Annotated[str, typer.Option(metavar="NAME", help="Which problems.")] = "test",
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Files of gsm8k or humaneval; TASK=PATH where both are asked."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random controls.")] = 0,
    stop_early: Annotated[
        bool,
        typer.Option("--stop-early", metavar="", help="Stop once sinks - random is decided for every model and task."),
    ] = False,
    rows_only: Annotated[
        bool, typer.Option("--rows-only", metavar="", help="Answer, and leave the report to a rerun elsewhere.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the experiment.", show_default="a new one, runs/mask-N"),
    ] = None,
    graph: options.Graph = False,
    unsafe: options.Unsafe = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Answer problems with sinks removed, beside controls of the same number of keys, all on the same problems.

    Every cell differs from the plain removal of k sinks in one thing: the keys, or one of --keys, --act, --scope. Every
    batch is written when it is whole: after Ctrl-C or a kill the same command goes on, and with all rows there it only
    makes the report anew. docs/interventions.md says what each cell does.
    """
    check_folder(to, "experiment", resume=resume)
    from sinklens.evaluation.grid import DRAWS, Grid

    crossed = {"top": top, "control": control, "keys": keys, "act": act, "scope": scope, "epsilon": epsilon}
    if cells is not None:
        _refuse_both(crossed | {"draws": draws})
    grid = Grid(
        tops=tuple(parse_numbers("--top", top) or (0, 1, 5, 10)),
        controls=_names(control) if control is not None else ("random",),
        keys=_names(keys),
        acts=_names(act),
        scopes=_names(scope),
        epsilons=_thresholds(epsilon),
        draws=DRAWS if draws is None else draws,
    )
    listed = None if cells is None else _read_cells(cells)
    import_heavy()
    from sinklens.cli.output import fresh_folder
    from sinklens.evaluation.answering import Answering
    from sinklens.evaluation.experiment import Experiment
    from sinklens.evaluation.greedy import has_blocks

    answerings = [
        Answering(
            task=name,
            split=split,
            data=path,
            steps=steps,
            batch=batch,
            seed=seed,
            graph=graph,
            unsafe=unsafe,
            length=length_of(name, length),
            block=block,
        )
        for name, path in find_data(data or [], read_tasks(task)).items()
    ]
    loaded = _load(models, device=device, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code)
    sized = next((model for model in loaded.values() if has_blocks(model)), next(iter(loaded.values())))
    experiment = Experiment(
        models=loaded,
        answerings=[settle_block(one, sized) for one in answerings],
        cells={name: listed or grid.cells(causal=model.spec.causal) for name, model in loaded.items()},
        problems=problems,
        stop_early=stop_early,
        command=join(["sinklens", *sys.argv[1:]]),
    )
    folder = to or fresh_folder("mask")
    _announce(experiment, folder)
    ran = run_watched(experiment, folder)
    _report(folder, ran, rows_only=rows_only, as_json=json)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _thresholds(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(name) for name in _names(text))
    except ValueError:
        raise UsageError(f"--epsilon {text!r} is no list of numbers; expected e.g. 1,2,3,5,10") from None


def _refuse_both(given: Mapping[str, Any]) -> None:
    said = [f"--{name}" for name, value in given.items() if value is not None]
    if said:
        raise UsageError(f"--cells gives the exact list of cells; leave out {', '.join(said)}")


def _read_cells(path: Path) -> "list[Condition]":
    """One condition a line; empty lines, and what follows a #, are skipped."""
    from sinklens.evaluation.conditions import parse_condition

    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read --cells {path} ({error}); give a text file, one condition a line") from None
    found = [parse_condition(text) for line in lines if (text := line.partition("#")[0].strip())]
    if not found:
        raise UsageError(f"--cells {path} holds no condition; expected one a line, such as none or sinks:top=5")
    return found


def _load(
    models: Sequence[str], *, device: str | None, dtype: str | None, revision: str | None, trust_remote_code: bool
) -> dict[str, Any]:
    """Every model by a short name, or by its whole one where two would share it."""
    from sinklens.cli.loading import find_model
    from sinklens.cli.samplers import SamplerOptions
    from sinklens.recording.identity import short_name

    if len(set(models)) < len(models):
        raise UsageError(f"a model stands twice ({', '.join(models)}); give each once")
    if revision is not None and len(models) > 1:
        raise UsageError(f"--revision {revision} with {len(models)} models; give one model, or leave it out")
    found = [
        find_model(name, SamplerOptions(), revision=revision, trust_remote_code=trust_remote_code) for name in models
    ]
    short = [short_name(name) or name for name in models]
    names = [name if short.count(name) == 1 else whole for name, whole in zip(short, models, strict=True)]
    return {name: one.load(device=device, dtype=dtype)[0] for name, one in zip(names, found, strict=True)}


def _announce(experiment: "Experiment", folder: Path) -> None:
    """How large it is, on stderr."""
    from sinklens.cli.output import note

    counts = " + ".join(str(len(experiment.cells[name])) for name in experiment.models)
    tasks = ", ".join(one.task for one in experiment.answerings)
    note(
        f"{', '.join(experiment.models)}: {counts} cells on {tasks}, up to {experiment.problems} problems each, in "
        f"{folder}; how long it takes is known after the first batch"
    )


def _report(folder: Path, ran: "Ran", *, rows_only: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from sinklens.cli.output import print_json
    from sinklens.files import write_json

    head = {"to": str(folder), **asdict(ran)}
    if rows_only:
        text = f"{ran.batches} batches in {folder}; the same command without --rows-only makes the report"
        print_json(head | {"result": None}) if as_json else print(text)
        return
    from sinklens.evaluation.report import summarise
    from sinklens.report.masking import draw, table_text

    result = summarise(folder)
    write_json(folder / RESULT, result)
    draw(result, folder)
    if as_json:
        print_json(head | {"result": result})
        return
    print(table_text(result))
    early = f", stopped early at {ran.problems} problems" if ran.stopped_early else ""
    print(f"\n{ran.batches} batches{early}; rows, {RESULT}, {TABLE} and figures are in {folder}")
