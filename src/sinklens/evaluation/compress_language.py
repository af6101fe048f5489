"""Losses on text under a compressed cache: levels, differences, curves against length and bins of positions.

Needs neither torch nor the model. The published curve is the log of the cumulative perplexity: of each chunk exp of the
mean loss so far, averaged over chunks, then the log.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sinklens.evaluation.compress_cells import NOTHING
from sinklens.evaluation.compress_statistics import DRAWS, Row, Values, by_cell, cell_of, entry, mean
from sinklens.sinks.resample import bootstrap

POINTS = 64  # of a curve at most


def language(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry a chunk length and stride: its cells. The untouched model stands beside every stride."""
    lengths = sorted({(row["length"], row["stride"]) for row in rows if row["order"] != NOTHING})
    plain = [row for row in rows if row["order"] == NOTHING]
    lengths = lengths or sorted({(row["length"], row["stride"]) for row in plain})
    found = []
    for length, stride in lengths:
        mine = [row for row in rows if row["order"] != NOTHING and (row["length"], row["stride"]) == (length, stride)]
        mine += [row for row in plain if row["length"] == length]
        found.append({"length": length, "stride": stride, "cells": _cells(mine, length)})
    return found


def _cells(rows: Sequence[Row], length: int) -> list[dict[str, Any]]:
    losses = by_cell(rows, lambda row: float(np.mean(row["losses"])))
    hits = by_cell(rows, lambda row: float(np.mean(row["hits"])))
    found = []
    for cell in losses:
        mine = [row for row in rows if cell_of(row) == cell]
        loss, hit = entry(cell, losses, binary=False), entry(cell, hits, binary=False)
        found.append(
            {
                **{name: value for name, value in loss.items() if name != "value"},
                "nll": loss["value"],
                "accuracy": hit["value"],
                "accuracy_to_none": hit["to_none"],
                "accuracy_to_random": hit["to_random"],
                "kept": length if cell.order == NOTHING else cell.budget(length),
                "chunks": len(losses[cell]),
                "bins": _bins(mine),
                **_curves(mine),
            }
        )
    return found


def _running(rows: Sequence[Row], column: str) -> np.ndarray:
    """Mean so far, [chunk and draw, token]."""
    values = np.asarray([row[column] for row in rows], np.float64)
    running: np.ndarray = np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1)
    return running


def _curves(rows: Sequence[Row]) -> dict[str, Any]:
    """Against length: the log of the cumulative perplexity, averaged over chunks before the log; the hits so far."""
    losses, hits = _running(rows, "losses"), _running(rows, "hits")
    places = np.unique(np.linspace(1, losses.shape[1], min(POINTS, losses.shape[1])).round().astype(int))
    with np.errstate(over="ignore"):
        perplexity = np.exp(losses[:, places - 1]).mean(axis=0)
    return {
        "tokens": places.tolist(),
        "log_perplexity": np.log(perplexity).tolist(),
        "hits": hits[:, places - 1].mean(axis=0).tolist(),
    }


def _bins(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Eighths of the chunk: mean loss and hits of their tokens, intervals over chunks."""
    total = len(rows[0]["losses"])
    edges = np.unique(np.linspace(0, total, min(8, total) + 1).round().astype(int))
    found = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        bins: dict[str, Any] = {"first": start + 1, "last": stop}
        for name, column in (("nll", "losses"), ("accuracy", "hits")):
            chunks: Values = defaultdict(list)
            for row in rows:
                chunks[row["problem"]].append(float(np.mean(row[column][start:stop])))
            bins[name] = asdict(bootstrap([mean(one) for one in chunks.values()], draws=DRAWS))
        found.append(bins)
    return found
