"""Images in files and folders, read with Pillow: the class of an image is the subfolder it is in.

    folder/shirt/001.png, folder/shoe/17.jpg, ...          split here, by class
    folder/train/shirt/..., folder/test/shirt/...          split as the folders are

An image that does not have the size and mode that are expected is refused in words, unless it is asked to be fitted.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sinklens.errors import UsageError

ENDINGS = (".png", ".jpg", ".jpeg")
MOST_PIXELS = 2**26  # of one image: more is taken for an attack
MODES = {1: "L", 3: "RGB"}
GREY, COLOUR = ("L", "1"), ("RGB", "P")  # modes that convert to one or three channels of 8 bits without loss
FIT = "convert it, or have it fitted (fit=True, --fit)"

Pixels = UInt8[np.ndarray, "channel height width"]


def read_image(
    path: "Path | str", *, size: tuple[int, int] | None = None, channels: int | None = None, fit: bool = False
) -> Pixels:
    """One image file; see `as_pixels` for what is accepted."""
    from PIL import Image, UnidentifiedImageError

    path = Path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what is too large is refused below
            with Image.open(path, formats=("PNG", "JPEG")) as image:
                return as_pixels(image, name=str(path), size=size, channels=channels, fit=fit)
    except UnidentifiedImageError as error:
        raise UsageError(f"{path} is no PNG or JPEG image, or is corrupt; expected one of these") from error
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}; expected a PNG or JPEG image") from error
    except UsageError:
        raise
    # Pillow's decoders raise any of these on a file that breaks off or was changed.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} is corrupt or cannot be read ({error}); replace the file, or remove it") from error


def as_pixels(
    image: Any, *, name: str, size: tuple[int, int] | None = None, channels: int | None = None, fit: bool = False
) -> Pixels:
    """A Pillow image as an array, upright as its EXIF says.

    size: height and width that are expected; None: any. channels: 1 or 3; None: what the image has. fit: what differs
    is scaled and cropped in the middle, or converted (transparency: on black), instead of refused.
    """
    from PIL import ImageOps

    if image.width * image.height > MOST_PIXELS:
        raise UsageError(
            f"{name} has {image.width} x {image.height} pixels; expected at most {MOST_PIXELS}: scale it down"
        )
    upright: Any = ImageOps.exif_transpose(image)
    upright = _in_mode(upright, name=name, channels=channels, fit=fit)
    if size is not None and (upright.height, upright.width) != size:
        if not fit:
            raise UsageError(
                f"{name} has {upright.width} x {upright.height} pixels; expected {size[1]} x {size[0]}: {FIT}"
            )
        upright = ImageOps.fit(upright, (size[1], size[0]))
    array = np.asarray(upright, np.uint8)
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _in_mode(image: Any, *, name: str, channels: int | None, fit: bool) -> Any:
    from PIL import Image

    opaque = not image.has_transparency_data
    found = {mode: count for count, modes in ((1, GREY), (3, COLOUR)) for mode in modes}.get(image.mode)
    wanted = channels if channels is not None else found or 3
    if opaque and found is not None and found <= wanted:  # grey to colour repeats it: no loss
        return image.convert(MODES[wanted])
    if not fit:
        expected = f"{wanted} channel{'s' * (wanted > 1)} ({MODES[wanted]}), 8 bits each, opaque"
        raise UsageError(
            f"{name} has the mode {image.mode}{'' if opaque else ', with transparency'}; expected {expected}: {FIT}"
        )
    if not opaque:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    elif image.mode.startswith("I"):  # 16 bits, which Pillow would clip
        image = Image.fromarray((np.asarray(image, np.float64) / 257).round().clip(0, 255).astype(np.uint8))
    return image.convert(MODES[wanted])


def list_images(folder: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """Files with the number of their class, and the names of the classes; by name, so the same everywhere."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise UsageError(f"{folder} has no subfolders; expected one for each class, with its PNG or JPEG images inside")
    files = []
    for number, name in enumerate(classes):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in ENDINGS)
        if not found:
            raise UsageError(f"{folder / name} has no PNG or JPEG image; expected some, or no folder for that class")
        files += [(path, number) for path in found]
    return files, tuple(classes)


def read_images(
    files: list[Path], *, size: tuple[int, int] | None = None, channels: int | None = None, fit: bool = False
) -> UInt8[np.ndarray, "n channel height width"]:
    """All of one size and mode: those expected, else those of the first."""
    arrays: list[Pixels] = []
    for path in files:
        arrays.append(read_image(path, size=size, channels=channels, fit=fit))
        channels, size = arrays[0].shape[0], (arrays[0].shape[1], arrays[0].shape[2])
    return np.stack(arrays)
