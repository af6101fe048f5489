"""IDX files, as MNIST and Fashion-MNIST come in: a header, then the numbers of one array, plain or gzipped.

    0 0 | kind (8: bytes) | axes n | n sizes, 32 bits each, big end first | bytes, last axis fastest

Only unsigned bytes are read: no set of images in this format has others.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from sinklens.errors import UsageError

BYTES = 8  # the kind of unsigned bytes
MOST = 2**31  # bytes of an array; a header that asks for more is taken for a corrupt one


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """The array of one file. A truncated, corrupt or foreign file is refused in words."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != BYTES or not 1 <= head[3] <= 4:
                raise UsageError(f"{path} begins with {head!r}; expected an IDX file of bytes, such as Fashion-MNIST's")
            sizes = file.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise UsageError(f"{path} ends within its header; {AGAIN}")
            shape = struct.unpack(f">{head[3]}I", sizes)
            count = math.prod(shape)
            if count > MOST:
                raise UsageError(f"{path} says it holds an array {list(shape)}, which is not believed; {AGAIN}")
            data = file.read(count + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is corrupt ({error}); {AGAIN}") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror or error}); expected an IDX file, plain or .gz"
        ) from error
    if len(data) != count:
        found = f"only {len(data)}" if len(data) < count else "more"
        raise UsageError(f"{path} should hold {count} bytes for an array {list(shape)}, and holds {found}; {AGAIN}")
    return np.frombuffer(data, np.uint8).reshape(shape)


AGAIN = "get the file again (its copy broke off or was changed)"
PARTS = {"train": "train", "test": "t10k"}  # what the two parts of a set are called


def idx_path(folder: Path, part: str, kind: str) -> Path | None:
    """The file of "images" or "labels" of a part, zipped or not; None where there is none."""
    axes = 3 if kind == "images" else 1
    stem = f"{PARTS[part]}-{kind}-idx{axes}-ubyte"
    return next((path for path in (folder / f"{stem}.gz", folder / stem) if path.is_file()), None)


def read_part(folder: Path, part: str) -> tuple[UInt8[np.ndarray, "n height width"], UInt8[np.ndarray, " n"]]:
    """Images and labels of the train or test part of a set in a folder, as many of one as of the other."""
    paths = [idx_path(folder, part, kind) for kind in ("images", "labels")]
    images_path, labels_path = paths
    if images_path is None or labels_path is None:
        missing = " and ".join(kind for kind, path in zip(("images", "labels"), paths, strict=True) if path is None)
        raise UsageError(
            f"{folder} has no {PARTS[part]} {missing}; expected {PARTS[part]}-images-idx3-ubyte and "
            f"{PARTS[part]}-labels-idx1-ubyte, plain or .gz"
        )
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise UsageError(
            f"{images_path.name} holds {list(images.shape)} and {labels_path.name} {list(labels.shape)}; expected "
            f"images [n, height, width] and n labels, from one set"
        )
    return images, labels
