"""`sinklens select show`: token maps as PNG, and a page with a slider for the budget."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.cli import options
from sinklens.cli.select_parts import (
    EMBEDDED,
    Data,
    DataRevision,
    Fit,
    about,
    device_of,
    import_selection,
    load_data,
    selector_folder,
    taken_by,
)

if TYPE_CHECKING:
    from sinklens.selection.data import Images
    from sinklens.selection.selector import Selector

PAGE = "page.html"
SHOWN = "0.1,0.2,0.3,0.5,0.7,1"
SLIDER = tuple(number / 20 for number in range(21))


def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder that `select train` wrote.")] = EMBEDDED,
    *,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A PNG or JPEG image; may be repeated.")
    ] = None,
    data: Data = None,
    data_revision: DataRevision = None,
    images: Annotated[
        int, typer.Option(metavar="N", min=1, help="Without --image: so many examples or test images.")
    ] = 6,
    alphas: Annotated[str, typer.Option(metavar="LIST", help="Budgets of the PNG maps.")] = SHOWN,
    fit: Fit = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Maps and page.", show_default="a new one, runs/select-show-N"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", metavar="", help="Open the page in a browser.")] = False,
    device: options.Device = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Draw which patches are kept: blocks x budgets as PNG, and a page with a slider for the budget.

    The page is one file, which works offline and requests nothing. Patches of the background may be kept: the first
    block has seen all patches, and what it wrote into those kept is what later blocks read.
    """
    import_selection()
    from sinklens.cli.live import CountDisplay
    from sinklens.cli.output import fresh_folder, prepare_folder, print_json, stderr_console
    from sinklens.evaluation.selection_cells import check_alpha, parse_floats
    from sinklens.evaluation.selection_maps import token_maps
    from sinklens.report.card_numbers import plural
    from sinklens.report.selection_maps import write_maps
    from sinklens.report.selection_page import write_selection_page
    from sinklens.selection.folder import load_selector

    budgets = parse_floats("--alphas", alphas, example=SHOWN)
    for alpha in budgets:
        check_alpha(alpha, "--alphas")
    selector = load_selector(model, device=device_of(device))
    told = about(selector_folder(model))
    examples = list(told.get("examples", {}).items())[:images] if data is None else []
    classes = {"classes": told.get("classes", ())}
    if image:
        shown: dict[str, Any] = _from_files(image, selector, fit=fit) | classes
    elif examples:  # that the model brings along
        paths = [selector_folder(model) / name for name, _ in examples]
        shown = _from_files(paths, selector, fit=fit) | classes | {"labels": [label for _, label in examples]}
    else:
        asked = {"split": "test", "limit": images, "fit": fit, **taken_by(selector)}
        shown = _from_data(load_data(data, told, revision=data_revision, **asked))
    folder = to or fresh_folder("select-show")
    prepare_folder(folder)
    name = Path(model).name
    with closing(CountDisplay(stderr_console(), unit="token map")) as display:
        chosen = token_maps(selector, **shown, model=name, alphas=budgets)
        written = write_maps(chosen, folder, progress=lambda done, of: display.show([], step=done, steps=of))
    fine = token_maps(selector, **shown, model=name, alphas=sorted({*SLIDER, *budgets}))
    page = write_selection_page(fine, folder / PAGE)
    if json:
        print_json({"to": str(folder), "page": str(page), "maps": [str(path) for path in written]})
    else:
        print(f"{plural(len(written), 'token map')} and {PAGE} are in {folder}")
    if open_page:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _from_files(paths: Sequence[Path], selector: "Selector", *, fit: bool) -> dict[str, Any]:
    import numpy as np
    import torch

    from sinklens.selection.image_files import read_images

    taken = taken_by(selector)
    pixels = read_images(list(paths), size=(taken["size"],) * 2, channels=taken["channels"], fit=fit)
    return {"images": torch.from_numpy(np.asarray(pixels)).float() / 255, "names": [path.name for path in paths]}


def _from_data(found: "Images") -> dict[str, Any]:
    names = [f"{found.name} {number}" for number in range(len(found))]
    return {"images": found.images, "names": names, "classes": found.classes, "labels": found.labels.tolist()}
