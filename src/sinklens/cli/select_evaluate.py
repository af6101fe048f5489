"""`sinklens select evaluate`: a selector beside other ways to choose tokens, over budgets and channels."""

import sys
from contextlib import closing
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.folders import check_folder
from sinklens.cli.interrupts import interrupts_end
from sinklens.cli.select_parts import (
    EMBEDDED,
    Data,
    DataRevision,
    Fit,
    about,
    device_of,
    import_selection,
    load_data,
    refuse_other_classes,
    selector_folder,
    taken_by,
)
from sinklens.errors import UsageError, choose

if TYPE_CHECKING:
    from sinklens.evaluation.selection_experiment import SelectionExperiment
    from sinklens.evaluation.selection_run import SelectionProgress

RESULT = "result.json"
Model = Annotated[str, typer.Argument(metavar="MODEL", help=f"A folder that `select train` wrote, or {EMBEDDED}.")]


def evaluate(
    model: Model,
    *,
    data: Data = None,
    data_revision: DataRevision = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="train, validation or test.")] = "test",
    images: Annotated[int, typer.Option(metavar="N", min=1, help="The first so many; may grow in a rerun.")] = 1000,
    alphas: Annotated[
        str, typer.Option(metavar="LIST", help="Budgets: shares of tokens. The whole model (1) is always there.")
    ] = "0.1,0.2,0.3,0.5,0.7,0.9,0.95",
    snr: Annotated[str | None, typer.Option(metavar="LIST", help="Gaussian noise, in dB: -10,0,10,20.")] = None,
    fading: Annotated[
        str | None, typer.Option(metavar="LIST", help="Rayleigh fading, mean SNR in dB; needs a model with a codec.")
    ] = None,
    erasure: Annotated[
        str | None, typer.Option(metavar="LIST", help="Probabilities that a token is lost: 0,0.1.")
    ] = None,
    baselines: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="random, norm, key_norm, key_norm_high, cls, avit, tome, random+budget, norm+budget; or none.",
        ),
    ] = "random+budget,norm+budget,random,norm,key_norm,cls,tome",
    fixed: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A selector trained for one budget (--set alpha=0.3); may be repeated."),
    ] = None,
    trained: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="A model trained with a ranking (--set ranking=random); may be repeated."),
    ] = None,
    no_speed: Annotated[bool, typer.Option("--no-speed", metavar="", help="Do not time it.")] = False,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Images at a time.")] = 256,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of canvases, noise and random choices.")] = 0,
    fit: Fit = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the experiment.", show_default="a new one, runs/selection-N"),
    ] = None,
    device: options.Device = None,
    resume: options.Resume = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Accuracy against budget, tokens, MACs and channel, beside other ways to choose as many tokens.

    Every batch is written when it is whole: after Ctrl-C or a kill the same command goes on, and budgets, links,
    baselines and images may be added to a folder later. docs/selection.md says what is measured.
    """
    check_folder(to, "experiment", resume=resume)
    import_selection()
    from sinklens.cli.output import fresh_folder, note
    from sinklens.evaluation.selection_cells import cross, parse_floats
    from sinklens.evaluation.selection_experiment import RIVALS, SelectionExperiment
    from sinklens.selection.folder import load_selector

    rankings = [] if baselines.strip() == "none" else _names("--baselines", baselines)
    for name in rankings:
        choose("baseline", name, RIVALS)
    others = [_fixed(name, device_of(device)) for name in fixed or ()]
    ranked = [_trained(name, device_of(device)) for name in trained or ()]
    spots = cross(
        alphas=[*parse_floats("--alphas", alphas, example="0.1,0.3"), *(one.alpha for one in others)],
        snrs=parse_floats("--snr", snr, example="-10,0,10"),
        fadings=parse_floats("--fading", fading, example="0,10"),
        erasures=parse_floats("--erasure", erasure, example="0,0.1"),
    )
    selector = load_selector(model, device=device_of(device))
    if fading is not None and selector.codec is None:
        raise UsageError("--fading with a model that has no codec; train one with --set codec_rate=0.5, or use --snr")
    told = about(selector_folder(model))
    asked = {"split": split, "limit": images, "seed": seed, "fit": fit, **taken_by(selector)}
    pictures = load_data(data, told, revision=data_revision, **asked)
    refuse_other_classes(list(told.get("classes", ())), list(pictures.classes))
    if len(pictures) < images:
        note(f"{pictures.name} has {len(pictures):,} images, fewer than {images:,}: all of them count")
    experiment = SelectionExperiment(
        selector=selector,
        name=Path(model).name,
        images=pictures,
        spots=spots,
        baselines=rankings,
        fixed=others,
        trained=ranked,
        seed=seed,
        batch=batch,
        command=join(["sinklens", *sys.argv[1:]]),
    )
    folder = to or fresh_folder("selection")
    _watch(experiment, folder, timed=not no_speed)
    _report(folder, as_json=json)


def _watch(experiment: "SelectionExperiment", folder: Path, *, timed: bool) -> None:
    """Run what is not there yet, with a count on stderr; leaves with the exit code of an interrupt after Ctrl-C."""
    from sinklens.cli.experiments import Kept, batches_kept
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.evaluation.selection_run import run
    from sinklens.evaluation.selection_speed import measure_speed
    from sinklens.evaluation.selection_store import SelectionStore

    kept = Kept(folder, SelectionStore(folder).batches())
    display = CountDisplay(stderr_console(), unit="image")

    def show(now: "SelectionProgress") -> None:
        kept.tell()
        display.show([], step=now.done, steps=now.total, label=f"{now.doing}: ")

    with interrupts_end(lambda: batches_kept(folder, SelectionStore(folder).batches())), closing(display):
        run(experiment, folder, progress=show)
        if timed:
            measure_speed(
                SelectionStore(folder),
                experiment.selector,
                experiment.images,
                alphas={spot.alpha for spot in experiment.spots},
                progress=lambda done, total: display.show([], step=done, steps=total, label="speed: "),
            )


def _report(folder: Path, *, as_json: bool) -> None:
    from sinklens.cli.output import print_json, terminal_width
    from sinklens.evaluation.selection_result import summarise
    from sinklens.files import write_json
    from sinklens.report.selection import draw, table_text

    result = summarise(folder)
    write_json(folder / RESULT, result)
    draw(result, folder)
    if as_json:
        print_json({"to": str(folder), "result": result})
        return
    print(table_text(result, width=terminal_width()))
    print(f"\nrows, {RESULT}, table.md and figures are in {folder}")


def _fixed(name: str, device: str) -> Any:
    from sinklens.evaluation.selection_experiment import FixedModel
    from sinklens.models.fields import read_json
    from sinklens.selection.folder import load_selector
    from sinklens.selection.training import ABOUT

    selector = load_selector(name, device=device)
    written = Path(name) / ABOUT
    alpha = read_json(written).get("recipe", {}).get("alpha") if written.is_file() else None
    if alpha is None:
        raise UsageError(f"--fixed {name} was trained for every budget; expected one trained with --set alpha=0.3")
    return FixedModel(name=Path(name).name, selector=selector, alpha=float(alpha))


def _trained(name: str, device: str) -> Any:
    from sinklens.evaluation.selection_experiment import TrainedRanking
    from sinklens.selection.folder import load_selector

    selector = load_selector(name, device=device)
    if selector.ranking is None:
        raise UsageError(f"--trained {name} has gates; expected a model trained with --set ranking=random or another")
    return TrainedRanking(name=Path(name).name, selector=selector)


def _names(option: str, text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UsageError(f"{option} {text!r} names nothing; give at least one, or none")
    return found
