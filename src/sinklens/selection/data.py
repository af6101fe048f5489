"""Sets of images to train and to judge token selection on.

    load_images("fashion")         Fashion-MNIST on cluttered 64 x 64 canvases, with foreground masks (canvases.py)
    load_images("digits")          scikit-learn's 8 x 8 digits, as they are;  "digits-canvas": on canvases
    load_images("my/folder")       PNG or JPEG images, a subfolder a class (image_files.py); or MNIST-like IDX files
    load_images("cifar10")         sets of the Hugging Face hub, where `datasets` is installed: also "imagenette", or
                                   the id of any with one column of images and one of class labels

The split is part of the set: it does not depend on the seed, which canvases alone are drawn from. So no image that a
model was trained on comes up in validation or test, whatever seeds are used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from sinklens.errors import UsageError, choose
from sinklens.models.catalog import as_path
from sinklens.selection.canvases import CanvasMaker, Scene
from sinklens.selection.idx_files import idx_path, read_part
from sinklens.selection.image_sources import HUB, Wanted, from_folder, from_hub, is_on_the_hub
from sinklens.selection.splits import SPLITS, split_of

FASHION = Path("/usr/share/datasets/fashion-mnist")  # where the Debian package puts it
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
NAMES = ("fashion", "digits", "digits-canvas")


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """A set, or a part of one."""

    images: Float[Tensor, "n channel height width"]  # 0 to 1
    labels: Int[Tensor, " n"]
    foreground: Bool[Tensor, "n height width"] | None = None  # where the object is, where that is known
    classes: tuple[str, ...]
    name: str = ""
    source: str = ""  # the name it was asked for by; of a set of the hub, its id with the commit

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: "slice | Int[Tensor, ' some']") -> "Images":
        """Some of the images, in the order given."""
        foreground = None if self.foreground is None else self.foreground[index]
        return replace(self, images=self.images[index], labels=self.labels[index], foreground=foreground)

    def to(self, device: "torch.device | str") -> "Images":
        """The same on another device."""
        foreground = None if self.foreground is None else self.foreground.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), foreground=foreground)

    def batches(self, size: int) -> "Iterator[Images]":
        """All of them, in order; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


def foreground_share(foreground: Bool[Tensor, "n height width"], grid: tuple[int, int]) -> Float[Tensor, "n patch"]:
    """Share of each patch's pixels that belong to the object; `grid` is rows and columns of patches."""
    patch = (foreground.shape[1] // grid[0], foreground.shape[2] // grid[1])
    return F.avg_pool2d(foreground[:, None].float(), patch).flatten(1)


def load_images(
    source: "str | Path",
    *,
    split: str = "train",
    size: int | None = None,
    channels: int | None = None,
    fit: bool = False,
    limit: Any = None,
    seed: int = 0,
    scene: Scene | None = None,
    device: "torch.device | str" = "cpu",
    revision: str | None = None,
) -> Images:
    """A split ("train", "validation" or "test") of a set, by its name, folder or hub id.

    size, channels: what a model takes. Digits and canvases are scaled to the size; files of another size or mode are
        refused, or fitted with `fit`. limit: only the first so many, in an order in which classes are mixed.
    seed, scene: what canvases are drawn from; device: where they are made, and where the images go.
    revision: commit, tag or branch of a set of the hub.
    """
    wanted = _wanted(split, limit, size=size, channels=channels, fit=fit, revision=revision)
    return _sets(str(source), wanted, scene=scene, device=device)(seed)


def load_epochs(
    source: "str | Path",
    *,
    seed: int = 0,
    split: str = "train",
    size: int | None = None,
    channels: int | None = None,
    fit: bool = False,
    limit: Any = None,
    scene: Scene | None = None,
    device: "torch.device | str" = "cpu",
    revision: str | None = None,
) -> Callable[[int], Images]:
    """A function from the number of an epoch to its images: canvases are drawn anew in each, from seed + epoch.

    Other sets are the same in every epoch. Objects are read once. The other arguments are those of `load_images`.
    """
    wanted = _wanted(split, limit, size=size, channels=channels, fit=fit, revision=revision)
    draw = _sets(str(source), wanted, scene=scene, device=device)
    return lambda epoch: draw(seed + epoch)


def _wanted(split: str, limit: Any, *, size: int | None, **others: Any) -> Wanted:
    choose("split", split, SPLITS)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UsageError(f"limit is {limit!r}; expected a number of images, from 1")
    return Wanted(split=split, limit=limit, size=None if size is None else (size, size), **others)


def _sets(name: str, wanted: Wanted, *, scene: Scene | None, device: "torch.device | str") -> Callable[[int], Images]:
    """From a seed to images: canvases are drawn, all else is what it is."""
    split, limit, source = wanted.split, wanted.limit, name
    folder = _here(name)
    if wanted.revision is not None and (name in NAMES or folder is not None):
        raise UsageError(f"revision {wanted.revision!r} is for sets of the hub; {name} is here already: leave it out")
    if name == "fashion":
        objects, labels, classes = _objects(FASHION, split)
    elif folder is not None and idx_path(folder, "train", "images") is not None:
        objects, labels, classes = _objects(folder, split)
    elif name in ("digits", "digits-canvas"):
        objects, labels, classes = _digits(split)
    else:
        (objects, labels, classes), source = _files(name, folder, wanted)

    def named(found: Images) -> Images:
        return _scaled(replace(found, classes=classes, name=f"{name} {split}", source=source), wanted).to(device)

    if name == "digits" or objects.ndim == 4:
        plain = named(_plain(objects[:limit, None] if name == "digits" else objects, labels[:limit]))
        return lambda seed: plain
    numbers = _numbers(labels).to(device)
    # Clutter and distractors come from the same split as the objects.
    maker = CanvasMaker(torch.from_numpy(objects.copy()).to(device), numbers, scene=scene)

    def drawn(seed: int) -> Images:
        index = torch.arange(len(numbers), device=device)[:limit]
        made = maker.make(index, seed=seed)
        return named(
            Images(images=_to_float(made.pixels), labels=numbers[index], foreground=made.foreground, classes=())
        )

    return drawn


def _here(name: str) -> Path | None:
    """What is there under that name; None: nothing, or no path could be spelt like that."""
    path = as_path(name)
    return path if path is not None and path.exists() else None


def _files(name: str, folder: Path | None, wanted: Wanted) -> tuple[tuple[Any, Any, tuple[str, ...]], str]:
    if folder is not None and folder.is_dir():
        return from_folder(folder, wanted), name
    if folder is not None:
        raise UsageError(f"{folder} is a file; expected a folder with a subfolder of images for each class")
    if is_on_the_hub(name):
        return from_hub(name, wanted)
    names = ", ".join(repr(one) for one in (*NAMES, *HUB))
    raise UsageError(f"there are no images {name!r}; expected one of {names}, a folder, or a hub id (owner/name)")


def _objects(folder: Path, split: str) -> tuple[Any, Any, tuple[str, ...]]:
    """A split of an MNIST-like set; a tenth of its training part is for validation."""
    if not folder.is_dir():
        raise UsageError(
            "Fashion-MNIST is not installed; run `sudo apt install dataset-fashion-mnist` (Debian, Ubuntu), or give "
            "the folder that its four files are in"
        )
    pixels, labels = read_part(folder, "test" if split == "test" else "train")
    classes = FASHION_CLASSES if "fashion" in folder.name else tuple(str(n) for n in range(int(labels.max()) + 1))
    if labels.max() >= len(classes):
        raise UsageError(f"{folder} has a label {labels.max()}; expected 0 to {len(classes) - 1}, as Fashion-MNIST has")
    if split != "test":
        index = split_of(labels, split, has_test=True)
        pixels, labels = pixels[index], labels[index]
    return pixels, labels, classes


def _digits(split: str) -> tuple[Any, Any, tuple[str, ...]]:
    try:
        data: Any = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise UsageError(
            "the digits are scikit-learn's, which is not installed; run `pip install scikit-learn`"
        ) from error
    index = split_of(data.target, split, has_test=False)
    objects = (data.images[index] * (255 / 16)).round().astype(np.uint8)
    return objects, data.target[index], tuple(str(n) for n in range(10))


def _plain(pixels: UInt8[np.ndarray, "n channel height width"], labels: Any) -> Images:
    return Images(images=_to_float(torch.from_numpy(pixels)), labels=_numbers(labels), classes=())


def _scaled(found: Images, wanted: Wanted) -> Images:
    """Digits and canvases at the size that a model takes; files have it already. Grey is repeated for more channels."""
    images, foreground = found.images, found.foreground
    if wanted.size is not None and images.shape[2:] != wanted.size:
        images = F.interpolate(images, wanted.size, mode="bilinear", antialias=True)
        if foreground is not None:
            foreground = F.interpolate(foreground[:, None].float(), wanted.size, mode="bilinear")[:, 0] > 0.5
    if wanted.channels is not None and images.shape[1] == 1:
        images = images.expand(-1, wanted.channels, -1, -1)
    return replace(found, images=images, foreground=foreground)


def _to_float(pixels: UInt8[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    return pixels.float().div_(255)


def _numbers(labels: Any) -> Int[Tensor, " n"]:
    return torch.from_numpy(np.asarray(labels).astype(np.int64))
