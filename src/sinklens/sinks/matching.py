"""One-to-one matching of greatest total weight, for very many small problems at once.

Most problems are nearly free of conflicts. So the edges that are certain to belong to the best matching are taken
first, in all problems together: an edge heavier than the heaviest other of its row and that of its column together.
Only what is left then, a few edges of a few problems, goes to the assignment solver.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

BATCH = 32  # edges that are handed to the solver at once


def match(
    rows: Int[np.ndarray, " edge"],
    columns: Int[np.ndarray, " edge"],
    weights: Float[np.ndarray, " edge"],
    *,
    problems: Int[np.ndarray, " edge"],
) -> Bool[np.ndarray, " edge"]:
    """The edges chosen. A row or column number belongs to one problem; weights of 0 or less are never chosen."""
    chosen = np.zeros(len(rows), bool)
    left = np.flatnonzero(weights > 0)
    while left.size:
        row, column, weight = rows[left], columns[left], weights[left]
        certain = weight > _heaviest_other(row, weight) + _heaviest_other(column, weight)
        if not certain.any():
            break
        chosen[left[certain]] = True
        left = left[~(_among(row, row[certain]) | _among(column, column[certain]))]
    if left.size:
        edges = left[np.argsort(problems[left], kind="stable")]
        batch = _batches(problems[edges])
        bounds = [0, *(np.flatnonzero(np.diff(batch)) + 1).tolist(), len(edges)]
        row, column = (_numbered(ends[edges], batch, bounds) for ends in (rows, columns))
        weight = weights[edges]
        for first, end in pairwise(bounds):
            part = slice(first, end)
            chosen[edges[part][_assign(row[part], column[part], weight[part])]] = True
    return chosen


def _heaviest_other(ends: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """For every edge, the heaviest other edge at the same end; 0 where there is none."""
    size = int(ends.max()) + 1
    heaviest = np.zeros(size)
    np.maximum.at(heaviest, ends, weights)
    top = weights == heaviest[ends]
    several = np.bincount(ends[top], minlength=size) > 1
    second = np.zeros(size)
    np.maximum.at(second, ends[~top], weights[~top])
    other: np.ndarray = np.where(top & ~several[ends], second[ends], heaviest[ends])
    return other


def _among(values: np.ndarray, taken: np.ndarray) -> Bool[np.ndarray, " value"]:
    marked = np.zeros(int(values.max()) + 1, bool)
    marked[taken] = True
    found: np.ndarray = marked[values]
    return found


def _batches(problems: np.ndarray) -> np.ndarray:
    """Small problems solved as one: they share no row and no column, so that the best of all is the best of each."""
    starts = np.flatnonzero(np.diff(problems, prepend=-1))
    sizes = np.diff(starts, append=len(problems))
    together: np.ndarray = np.repeat(starts // BATCH, sizes)
    return together


def _numbered(ends: np.ndarray, batches: np.ndarray, bounds: list[int]) -> np.ndarray:
    """The rows (or columns) of every batch numbered from 0; edges are sorted by batch."""
    order = np.lexsort((ends, batches))
    new = np.ones(len(ends), bool)
    new[1:] = ends[order][1:] != ends[order][:-1]
    rank = np.empty(len(ends), np.int64)
    rank[order] = np.cumsum(new)
    first = rank[order][bounds[:-1]]  # the least of each batch
    numbered: np.ndarray = rank - np.repeat(first, np.diff(bounds))
    return numbered


def _assign(rows: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Which edges the assignment solver takes; rows and columns are numbered from 0."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((rows.max() + 1, columns.max() + 1))
    table[rows, columns] = weights
    taken = np.zeros(table.shape, bool)
    taken[linear_sum_assignment(table, maximize=True)] = True
    chosen: np.ndarray = taken[rows, columns]
    return chosen
