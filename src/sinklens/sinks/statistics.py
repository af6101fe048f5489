"""What lies under sinks: which tokens, which classes of tokens, which region of the canvas, which layers and heads.

Counting unit: a cell is one (step, layer, head, key) that some query may see. A token that stands still for 100 steps
under a sink of 20 heads counts 2000 times, as in Table 2 of Rulli et al. (arXiv 2510.15731), which counts every
occurrence. Such counts are anything but independent: intervals resample whole samples (`resample.py`), and a share
says little without its lift,

    share = sinks on these cells / all sinks      base = these cells / all cells      lift = share / base

because a token that fills half of the canvas is under many sinks by chance alone: lift 1 is what sinks placed without
regard to the token would give.

Count each (sample, layer) once with `count_tokens`, add the layers of a sample, and hand the samples to a table.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.resample import bootstrap_ratios
from sinklens.sinks.tokens import CLASSES

REGIONS = ("prompt", "answer", "block", "future")
UNKNOWN = "unknown"  # the class of an id that the trace has no text for


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenCounts:
    """Sinks and cells by token, by region and by head. `a + b` adds layers of a sample, or samples."""

    ids: Int[np.ndarray, " token"]  # increasing
    sinks: Int[np.ndarray, " token"]
    cells: Int[np.ndarray, " token"]
    region_sinks: Int[np.ndarray, " region"]  # in the order of REGIONS
    region_cells: Int[np.ndarray, " region"]
    layers: Int[np.ndarray, " layer"]  # increasing
    heads: Int[np.ndarray, " head"]
    head_sinks: Int[np.ndarray, "layer head"]
    head_cells: Int[np.ndarray, "layer head"]

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        if not np.array_equal(self.heads, other.heads):
            raise UsageError(
                f"counts of heads {self.heads.tolist()} and {other.heads.tolist()} do not add; count the same heads"
            )
        ids, layers = np.union1d(self.ids, other.ids), np.union1d(self.layers, other.layers)
        return TokenCounts(
            ids=ids,
            sinks=_spread(self.sinks, self.ids, onto=ids) + _spread(other.sinks, other.ids, onto=ids),
            cells=_spread(self.cells, self.ids, onto=ids) + _spread(other.cells, other.ids, onto=ids),
            region_sinks=self.region_sinks + other.region_sinks,
            region_cells=self.region_cells + other.region_cells,
            layers=layers,
            heads=self.heads,
            head_sinks=_spread(self.head_sinks, self.layers, onto=layers)
            + _spread(other.head_sinks, other.layers, onto=layers),
            head_cells=_spread(self.head_cells, self.layers, onto=layers)
            + _spread(other.head_cells, other.layers, onto=layers),
        )


@dataclass(frozen=True, kw_only=True)
class ShareRow:
    """One line of a table. Shares of no sinks at all are None."""

    name: str  # text of the token, class, region, or number of the layer
    token: int | None = None  # its id, in tables of tokens
    token_class: str | None = None  # likewise
    sinks: int
    cells: int
    share: float | None  # of all sinks
    low: float | None  # 95 % over samples; None with fewer than two
    high: float | None
    base: float | None  # share of all cells
    lift: float | None  # share / base
    n: int  # samples that have sinks


def count_tokens(layer: LayerArrays, canvases: Canvases, sinks: Bool[np.ndarray, "step head key"]) -> TokenCounts:
    """Sinks and cells of one layer of one sample. The tokens are those that the forwards read."""
    visible = ~np.isnan(layer.received) & (layer.expected > 0)
    sinks = sinks & visible
    at = _per_key(sinks), _per_key(visible)
    ids, token = np.unique(canvases.ids[layer.steps], return_inverse=True)
    token = token.ravel()
    region = region_of(canvases, layer.steps).ravel()
    by_token = [np.bincount(token, one.ravel(), len(ids)).astype(np.int64) for one in at]
    by_region = [np.bincount(region, one.ravel(), len(REGIONS)).astype(np.int64) for one in at]
    there = ids >= 0  # -1 stands where there is no position yet
    return TokenCounts(
        ids=ids[there].astype(np.int64),
        sinks=by_token[0][there],
        cells=by_token[1][there],
        region_sinks=by_region[0],
        region_cells=by_region[1],
        layers=np.array([layer.layer]),
        heads=layer.heads,
        head_sinks=sinks.sum(axis=(0, 2))[None],
        head_cells=visible.sum(axis=(0, 2))[None],
    )


def region_of(canvases: Canvases, steps: Int[np.ndarray, " step"]) -> Int[np.ndarray, "step key"]:
    """Where each key lies at each of the steps, as an index into REGIONS.

    prompt; answer: generated and left of the current block; block: the current one; future: right of it. A diffusion
    run without blocks is all one block behind the prompt. Autoregressive, with nothing masked at any step: answer.
    """
    place = np.arange(canvases.ids.shape[1])
    first, stop = (canvases.blocks[steps, end][:, None] for end in (0, 1))
    generated = np.where(place < first, 1, np.where(place < stop, 2, 3))
    whole = 2 if canvases.masked.any() else 1
    return np.where(place < canvases.prompt_length, 0, np.where(first < 0, whole, generated))


def table_two(
    counts_by_sample: Sequence[TokenCounts],
    canvases: Sequence[Canvases],
    *,
    top: int = 5,
    draws: int = 1000,
    seed: int = 0,
) -> list[ShareRow]:
    """The `top` tokens that are most often under a sink; of equally frequent ones the lower id first.

    canvases: of the same samples, for texts and classes. The tokens are chosen on all samples and then resampled, so
    the interval of a last place that was won narrowly is a little too high.
    """
    ids, sinks, cells = _by_token(counts_by_sample)
    total = sinks.sum(axis=0)
    chosen = [index for index in np.lexsort((ids, -total)).tolist() if total[index]][: max(top, 0)]
    tokens = ids[chosen].tolist()
    label, kind = _labels(canvases), _kinds(canvases)
    rows = _rows([label(token) for token in tokens], sinks, cells, pick=chosen, draws=draws, seed=seed)
    return [replace(row, token=token, token_class=kind(token)) for row, token in zip(rows, tokens, strict=True)]


def by_class(
    counts_by_sample: Sequence[TokenCounts], canvases: Sequence[Canvases], *, draws: int = 1000, seed: int = 0
) -> list[ShareRow]:
    """Sinks by class of token, in the order of CLASSES; classes that never occur are left out."""
    ids, sinks, cells = _by_token(counts_by_sample)
    names = (*CLASSES, UNKNOWN)
    kind = _kinds(canvases)
    belongs = np.array([[kind(int(token)) == name for name in names] for token in ids], np.int64)
    sinks, cells = sinks @ belongs.reshape(-1, len(names)), cells @ belongs.reshape(-1, len(names))
    return [row for row in _rows(names, sinks, cells, draws=draws, seed=seed) if row.cells]


def by_region(counts_by_sample: Sequence[TokenCounts], *, draws: int = 1000, seed: int = 0) -> list[ShareRow]:
    """Sinks by region of the canvas, in the order of REGIONS; regions that never occur are left out."""
    sinks, cells = ([getattr(one, name) for one in counts_by_sample] for name in ("region_sinks", "region_cells"))
    rows = _rows(REGIONS, _table(sinks, len(REGIONS)), _table(cells, len(REGIONS)), draws=draws, seed=seed)
    return [row for row in rows if row.cells]


def by_layer(counts_by_sample: Sequence[TokenCounts], *, draws: int = 1000, seed: int = 0) -> list[ShareRow]:
    """Sinks by layer. By head: `head_sinks` / `head_cells` of the summed counts."""
    layers = _union(one.layers for one in counts_by_sample)
    sinks = [_spread(one.head_sinks.sum(axis=1), one.layers, onto=layers) for one in counts_by_sample]
    cells = [_spread(one.head_cells.sum(axis=1), one.layers, onto=layers) for one in counts_by_sample]
    names = [str(layer) for layer in layers]
    return _rows(names, _table(sinks, len(layers)), _table(cells, len(layers)), draws=draws, seed=seed)


def _rows(
    names: Sequence[str],
    sinks: Int[np.ndarray, "sample item"],
    cells: Int[np.ndarray, "sample item"],
    *,
    pick: Sequence[int] | None = None,
    draws: int,
    seed: int,
) -> list[ShareRow]:
    """A row for each picked item; what is not picked still counts in the totals."""
    picked = list(range(sinks.shape[1])) if pick is None else list(pick)
    intervals = bootstrap_ratios(sinks[:, picked], sinks.sum(axis=1), draws=draws, seed=seed)
    here, there, everything = sinks[:, picked].sum(axis=0), cells[:, picked].sum(axis=0), int(cells.sum())
    rows = []
    for name, found, seen, interval in zip(names, here.tolist(), there.tolist(), intervals, strict=True):
        base = seen / everything if everything else None
        rows.append(
            ShareRow(
                name=name,
                sinks=found,
                cells=seen,
                share=interval.value,
                low=interval.low,
                high=interval.high,
                base=base,
                lift=interval.value / base if base and interval.value is not None else None,
                n=interval.n,
            )
        )
    return rows


def _per_key(flags: Bool[np.ndarray, "step head key"]) -> Int[np.ndarray, "step key"]:
    counts: np.ndarray = flags.view(np.uint8).sum(axis=1, dtype=np.int64)
    return counts


def _by_token(counts_by_sample: Sequence[TokenCounts]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All ids, and sinks and cells [sample, token]."""
    ids = _union(one.ids for one in counts_by_sample)
    sinks = [_spread(one.sinks, one.ids, onto=ids) for one in counts_by_sample]
    cells = [_spread(one.cells, one.ids, onto=ids) for one in counts_by_sample]
    return ids, _table(sinks, len(ids)), _table(cells, len(ids))


def _table(rows: Sequence[np.ndarray], items: int) -> Int[np.ndarray, "sample item"]:
    return np.array(rows, np.int64).reshape(len(rows), items)


def _union(lists: Iterable[Int[np.ndarray, " n"]]) -> Int[np.ndarray, " all"]:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *lists]))


def _spread(values: np.ndarray, at: Int[np.ndarray, " n"], *, onto: Int[np.ndarray, " all"]) -> np.ndarray:
    """`values`, whose first axis is labelled `at`, among the labels `onto`, with 0 elsewhere."""
    spread = np.zeros((len(onto), *values.shape[1:]), np.int64)
    spread[np.searchsorted(onto, at)] = values
    return spread


def _labels(canvases: Sequence[Canvases]) -> Callable[[int], str]:
    texts = {token: text for one in canvases for token, text in one.tokens.items()}
    return lambda token: texts.get(token, str(token))


def _kinds(canvases: Sequence[Canvases]) -> Callable[[int], str]:
    """The class of an id: mask if it ever stands at a masked position, else what the trace says."""
    classes = {token: name for one in canvases for token, name in one.classes.items()}
    for one in canvases:
        classes.update(dict.fromkeys(np.unique(one.ids[one.masked]).tolist(), "mask"))
    return lambda token: classes.get(token, UNKNOWN)
