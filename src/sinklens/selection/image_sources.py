"""Images that come in files: a folder of the user's, or a set of the Hugging Face hub."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from sinklens.errors import UsageError
from sinklens.models import catalog
from sinklens.selection.image_files import as_pixels, list_images, read_images
from sinklens.selection.splits import ALIASES, part_for, split_of

HUB = {"cifar10": ("uoft-cs/cifar10", None), "imagenette": ("frgfm/imagenette", "160px")}  # id, configuration

Found = tuple[UInt8[np.ndarray, "n channel height width"], Int[np.ndarray, " n"], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which images, and what they must be like."""

    split: str
    limit: int | None
    size: tuple[int, int] | None  # height, width; None: that of the first
    channels: int | None  # None: those of the first
    fit: bool  # scale, crop and convert what differs
    revision: str | None = None  # of a set of the hub


def from_folder(folder: Path, wanted: Wanted) -> Found:
    """A folder with a subfolder for each class, or with such folders called train, validation and test."""
    present = {path.name for path in folder.iterdir() if path.is_dir()}
    parts = present & {alias for aliases in ALIASES.values() for alias in aliases}
    has_test: bool | None = False
    if "train" in parts:
        part, has_test = part_for(wanted.split, parts, name=str(folder))
        folder = folder / part
    files, classes = list_images(folder)
    labels = np.array([label for _, label in files])
    names = [f"{path.parent.name}/{path.name}" for path, _ in files]
    index = np.arange(len(files))
    if has_test is not None:
        index = split_of(labels, wanted.split, has_test=has_test, names=names)
    index = _some(index, wanted, name=str(folder))
    paths = [files[number][0] for number in index]
    pixels = read_images(paths, size=wanted.size, channels=wanted.channels, fit=wanted.fit)
    return pixels, labels[index], classes


def is_on_the_hub(name: str) -> bool:
    """A name that is known here, or a well-spelt owner/name."""
    return name in HUB or catalog.is_hub_id(name)


def from_hub(name: str, wanted: Wanted) -> tuple[Found, str]:
    """A set that `datasets` can load, and its id with the commit that came.

    Its columns are found by their kinds, an image and a class label.
    """
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise UsageError(f"images {name!r} are on the hub; run `pip install datasets`, or give a folder") from error
    identity, configuration = HUB.get(name, (name, None))
    catalog.refuse_odd_revision(wanted.revision, identity)
    try:
        parts = datasets.get_dataset_split_names(identity, configuration, revision=wanted.revision)
        part, has_test = part_for(wanted.split, parts, name=identity)
        rows: Any = datasets.load_dataset(identity, configuration, split=part, revision=wanted.revision)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"cannot load {identity} from the hub ({type(error).__name__}: {error}); expected a set of images that can "
            "be reached from here, or a folder"
        ) from error
    source = _source(rows, identity, wanted.revision)
    image, label = _columns(rows, identity)
    labels = np.array(rows[label][:])
    index = np.arange(len(labels)) if has_test is None else split_of(labels, wanted.split, has_test=has_test)
    index = _some(index, wanted, name=identity)
    size, channels, arrays = wanted.size, wanted.channels, []
    for number in index:
        picture = rows[int(number)][image]
        arrays.append(as_pixels(picture, name=f"{identity} {number}", size=size, channels=channels, fit=wanted.fit))
        channels, size = arrays[0].shape[0], (arrays[0].shape[1], arrays[0].shape[2])
    return (np.stack(arrays), labels[index], tuple(rows.features[label].names)), source


def _source(rows: Any, identity: str, revision: str | None) -> str:
    """owner/name@commit. `datasets` keeps a set in a folder called as its commit; offline it takes what it has."""
    kept = [Path(file["filename"]).parent.name for file in rows.cache_files]
    came, wanted = (catalog.commit_of(f"{identity}@{commit}") for commit in (kept[0] if kept else "", revision))
    if None not in (came, wanted) and came != wanted:
        raise UsageError(f"{identity} came at commit {came}, not {wanted}; is the hub out of reach? Then leave it out")
    commit = came or wanted
    return identity if commit is None else f"{identity}@{commit}"


def _columns(rows: Any, name: str) -> tuple[str, str]:
    kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if len(images) != 1 or len(labels) != 1:
        raise UsageError(f"{name} has the columns {kinds}; expected one Image and one ClassLabel")
    return images[0], labels[0]


def _some(index: Int[np.ndarray, " all"], wanted: Wanted, *, name: str) -> Int[np.ndarray, " some"]:
    if len(index) == 0:
        raise UsageError(
            f"{name} has no image left for {wanted.split}; expected three or more a class, or folders train and test"
        )
    return index[: wanted.limit]
