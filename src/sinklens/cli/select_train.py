"""`sinklens select train`: a selector from a recipe and images."""

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.interrupts import interrupts_end
from sinklens.cli.select_parts import DATA, DataRevision, Fit, device_of, import_selection, taken_by


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="An embedded recipe, or a TOML file.")],
    *,
    data: Annotated[str, typer.Option(metavar="NAME", help="Images, as for `select evaluate`.")] = "fashion",
    data_revision: DataRevision = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Model and log.", show_default="a new one, runs/select-NAME-N"),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: seed=1, schedule.steps=100, alpha=0.3."),
    ] = None,
    images: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first so many.", show_default="all")
    ] = None,
    redraw: Annotated[
        bool, typer.Option("--redraw", metavar="", help="Canvases are drawn anew in every epoch (best on a GPU).")
    ] = False,
    fit: Fit = False,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with the run in --to from where it last saved.")
    ] = False,
    device: options.Device = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a selector: one model for every budget.

    The folder is a model that `select evaluate` and `select show` take, with log.jsonl beside it.
    """
    import_selection()
    from sinklens.cli.output import fresh_folder, note, prepare_folder, print_json
    from sinklens.files import write_json
    from sinklens.selection.data import load_epochs, load_images
    from sinklens.selection.recipe import read_selection_recipe
    from sinklens.selection.training import build_selector, refuse_others

    wanted = read_selection_recipe(recipe, tuple(change or ()))
    folder = to or fresh_folder(f"select-{wanted.name}")
    refuse_others(folder)
    prepare_folder(folder)
    asked: dict[str, Any] = {**taken_by(build_selector(wanted)), "fit": fit, "device": device_of(device)}
    note(f"{wanted.name}: {wanted.schedule.steps:,} steps of {wanted.schedule.batch} images")
    asked |= {"limit": images, "revision": data_revision}
    drawn = load_epochs(data, split="train", **asked)
    pictures, held = drawn(0), load_images(data, split="validation", **asked)
    entries = _train(wanted, drawn if redraw else pictures, held, folder, resume=resume, device=device_of(device))
    told = {"data": data, "source": pictures.source, "redraw": redraw, "classes": list(pictures.classes)}
    write_json(folder / DATA, told)
    if json:
        print_json({"model": str(folder), "recipe": wanted.as_dict(), "log": entries})
        return
    for name, value in entries[-1].items():
        print(f"{name.ljust(20)}{value:,.4g}")
    print(f"next: sinklens select evaluate {quote(str(folder))}")


def _train(recipe: Any, data: Any, held: Any, folder: Path, *, resume: bool, device: str) -> list[dict[str, Any]]:
    import json

    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import stderr_console
    from sinklens.selection.training import LOG, train

    display = CountDisplay(stderr_console())

    def stepped(step: int, entry: Any) -> None:
        display.show([], step=step, steps=recipe.schedule.steps)

    told = f"interrupted; --resume with --to {quote(str(folder))} goes on from where it last saved"
    with interrupts_end(lambda: told), closing(display):
        train(recipe, data, to=folder, validation=held, device=device, resume=resume, stepped=stepped)
        return [json.loads(line) for line in (folder / LOG).read_text("utf-8").splitlines()]
