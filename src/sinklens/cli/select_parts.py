"""What the commands of `select` share: options, models, images, devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinklens.errors import UsageError
from sinklens.interrupts import interrupts_deferred

if TYPE_CHECKING:
    from sinklens.selection.data import Images
    from sinklens.selection.selector import Selector

DATA = "data.json"  # in the folder of a model: what it was trained on
EMBEDDED = "tiny-vit-selection"
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="fashion, digits, digits-canvas, cifar10, imagenette, a hub id, or a folder with a subfolder a class.",
        show_default="what the model was trained on",
    ),
]
DataRevision = Annotated[
    str | None, typer.Option(metavar="REV", help="Commit, tag or branch of images on the hub.", show_default="newest")
]
Fit = Annotated[bool, typer.Option("--fit", metavar="", help="Scale, crop and convert images that differ from those.")]


def load_data(data: str | None, told: Mapping[str, Any], *, revision: str | None, **settings: Any) -> "Images":
    """Images by their name; without one, those that the model was trained on, of the same commit."""
    from sinklens.models.catalog import commit_of
    from sinklens.selection.data import load_images

    if data is None:
        data, revision = str(told.get("data", "fashion")), revision or commit_of(told.get("source"))
    return load_images(data, revision=revision, **settings)


def taken_by(selector: "Selector") -> dict[str, Any]:
    """Size and channels of the images that a model takes."""
    backbone = selector.backbone
    height, width = (count * side for count, side in zip(backbone.grid, backbone.patch, strict=True))
    if height != width:
        raise UsageError(f"this model takes images of {height} x {width} pixels; expected one that takes squares")
    return {"size": height, "channels": backbone.channels}


def selector_folder(model: str) -> Path:
    """Where a model is, by its name."""
    from sinklens.models.catalog import ZOO
    from sinklens.selection.folder import EMBEDDED as HERE

    return ZOO / model if model in HERE else Path(model).expanduser()


def about(folder: Path) -> dict[str, Any]:
    """What the model was trained on, where it says so."""
    from sinklens.models.fields import read_json

    return dict(read_json(folder / DATA)) if (folder / DATA).is_file() else {}


def refuse_other_classes(known: Sequence[str], found: Sequence[str]) -> None:
    """The classes of a model and of images, by name; where one has no names, nothing is known."""
    if known and found and list(known) != list(found):
        raise UsageError(
            f"the model was trained on {_some(known)}, the images are of {_some(found)}; give images of its classes, "
            "in folders of the same names"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def device_of(name: str | None) -> str:
    import torch

    if name is None or name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name}: {str(error).splitlines()[0]}; expected cpu, cuda or cuda:1") from error
    return name


def import_selection() -> None:
    """Everything large, in one go that Ctrl-C does not disturb."""
    with interrupts_deferred():
        import sinklens.selection.training

        del sinklens
