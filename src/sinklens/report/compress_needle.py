"""Scores of the needle by length and depth, a heat map for each cell."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sinklens.report.style import colour_bar, colour_map, panels

WRITTEN = 40  # cells of a map up to which numbers are written into it


def draw_needle(result: Mapping[str, Any]) -> Any | None:
    """Lengths to the right, depths downwards; None where the needle was not asked for."""
    grids = result["grids"]
    lengths = sorted({point["length"] for grid in grids for point in grid["points"]})
    depths = sorted({point["depth"] for grid in grids for point in grid["points"]})
    if not grids or len(lengths) * len(depths) < 2:
        return None
    figure, axes = panels(len(grids), height=0.9 + 0.16 * len(depths))
    for axis, grid in zip(axes, grids, strict=True):
        scores = np.full((len(depths), len(lengths)), np.nan)
        for point in grid["points"]:
            scores[depths.index(point["depth"]), lengths.index(point["length"])] = point["score"]
        shown = np.ma.masked_invalid(scores)
        image = axis.imshow(shown, cmap=colour_map("viridis"), vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"{_words(grid)}\nmean {grid['overall']:.2f}")
        axis.set_xticks(
            range(len(lengths)), [str(length) for length in lengths], rotation=0 if len(lengths) < 6 else 90
        )
        axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f}" for depth in depths])
        axis.set_xlabel("tokens")
        axis.set_ylabel("depth (%)")
        if scores.size <= WRITTEN:
            _write(axis, scores)
    colour_bar(figure, image, axes=axes, label="words found")
    return figure


def _write(axis: Any, scores: np.ndarray) -> None:
    for (row, column), score in np.ndenumerate(scores):
        if not np.isnan(score):
            colour = "#000000" if score > 0.6 else "#FFFFFF"
            axis.text(column, row, f"{score:.2f}", ha="center", va="center", fontsize=7, color=colour)


def _words(grid: Mapping[str, Any]) -> str:
    if grid["order"] == "none":
        return "whole cache"
    strict = ", strict" if grid["strict"] else ""
    skipped = "" if grid["skip"] == "0,1" else f", skip {grid['skip'] or 'none'}"
    return f"{grid['order']}, {grid['keep']} kept{skipped}{strict}"
