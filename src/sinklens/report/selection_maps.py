"""Token maps: rows are gated blocks, columns budgets; what is dropped is faded. One picture an image, as PNG."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from sinklens.files import written_whole
from sinklens.report.style import DPI, escape_missing, new_figure, styled

if TYPE_CHECKING:
    from sinklens.evaluation.selection_maps import TokenMaps

FADED = 0.14  # how much of a dropped patch is left
TINT = (0.80, 0.88, 0.96)  # and what the rest of it becomes: no grey, so that a bright patch is not taken for one
CELL = 0.82  # inches


def faded(
    pixels: UInt8[np.ndarray, "channel height width"], kept: Bool[np.ndarray, " patch"], *, grid: tuple[int, int]
) -> Float[np.ndarray, "height width 3"]:
    """The image with dropped patches nearly gone; grey images become colour ones."""
    colour = np.repeat(pixels, 3, axis=0) if len(pixels) == 1 else pixels
    values = colour.transpose(1, 2, 0).astype(np.float64) / 255
    size = (values.shape[0] // grid[0], values.shape[1] // grid[1])
    share = np.where(kept.reshape(grid), 1.0, FADED).repeat(size[0], axis=0).repeat(size[1], axis=1)[..., None]
    found: np.ndarray = values * share + np.array(TINT) * (1 - share)
    return found


def draw_maps(maps: "TokenMaps", number: int) -> Any:
    """The figure of one image of a `TokenMaps`."""
    rows, columns = len(maps.gated), len(maps.alphas)
    figure = new_figure(width=CELL * columns + 0.5, height=CELL * (rows + 0.28) + 0.55)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row in range(rows):
        for column in range(columns):
            kept = maps.kept[column, number, row]
            axis = axes[row, column]
            axis.imshow(faded(maps.pixels[number], kept, grid=maps.grid))
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set_visible(False)
            axis.set_xlabel(f"{int(kept.sum())} of {kept.size}", fontsize=7, labelpad=1.5)
        axes[row, 0].set_ylabel(f"block {maps.gated[row]}")
    for column, alpha in enumerate(maps.alphas):
        chances = maps.chances[column, number]
        said = escape_missing(maps.class_name(int(chances.argmax())))
        axes[0, column].set_title(f"alpha {alpha:g}\n{said} {100 * chances.max():.0f} %")
    label = maps.labels[number]
    truth = "" if label is None else f": {maps.class_name(label)}"
    figure.suptitle(escape_missing(f"{maps.names[number]}{truth}"), fontsize=8)
    return figure


def write_maps(maps: "TokenMaps", folder: Path, *, progress: Callable[[int, int], None] | None = None) -> list[Path]:
    """map-0-NAME.png, ...; the paths that were written. progress: maps done, of how many."""
    written = []
    with styled():
        for number, name in enumerate(maps.names):
            plain = re.sub(r"[^\w.-]+", "-", Path(name).stem)[:40] or "image"
            path = folder / f"map-{number}-{plain}.png"
            figure = draw_maps(maps, number)
            with written_whole(path) as temporary:
                figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
            written.append(path)
            if progress is not None:
                progress(len(written), len(maps.names))
    return written
