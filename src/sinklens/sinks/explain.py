"""How much of sink status do position, token, mask state and region explain? "Positional" and "semantic" as numbers.

A cell is one (sample, step, key). Its response is binomial: in how many heads it is a sink, out of those in which it
can be one. A logistic model with four factors predicts the rate. Its deviance D, twice the log-likelihood it lacks to
a model with one rate for every cell, is compared with that of one rate for all, D0:

    alone   1 - D(this factor) / D0
    unique  (D(all but this factor) - D(all)) / D0
    full    1 - D(all) / D0

Alone is much larger than unique where factors overlap: the future is masked, the prompt comes first. In-sample shares
grow with the number of levels, whatever these mean. Cross-validated ones (fitted on other samples, D0 too) do not:
a factor that says nothing about another prompt has about 0, or less.

    position  the first position, and `bins` equal stretches of the canvas
    token     ids read in at least two samples, the MOST_TOKENS most frequent; all others are one level
    mask      masked or not
    region    prompt, answer, block, future (`statistics.region_of`)

The mask token stands exactly where the state is masked: token and mask would be aliased. Here the token factor holds
differences between revealed tokens only. Its effects average 0 over the revealed cells, and masked cells have none, so
that the contrast of masked and revealed is the mask factor's alone.

A ridge keeps the effect of a level without any sink finite. Its unit is one key position of one sample with all its
steps and heads, because these are no independent trials: a level at m positions keeps about m / (m + ridge) of its
effect.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations_with_replacement, pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.resample import Interval, bootstrap_ratios
from sinklens.sinks.statistics import region_of

FACTORS = ("position", "token", "mask", "region")
TOKEN = FACTORS.index("token")
MOST_TOKENS = 256
ITERATIONS = 100
STIFF = 1e6  # against the information of all trials: what a spring leaves of an effect is a millionth
TOLERANCE = 1e-10  # of the penalised log-likelihood, relative


@dataclass(frozen=True, kw_only=True, eq=False)
class CellCounts:
    """The cells of one sample, in one layer or several. Counts of several layers of that sample add up."""

    sample: int
    keys: int
    levels: Int[np.ndarray, "combination 4"]  # of FACTORS, as they occur together; the token of a masked cell is -1
    combination: Int[np.ndarray, " cell"]  # which of them each cell has
    sinks: Int[np.ndarray, " cell"]  # heads in which it is a sink
    seen: Int[np.ndarray, " cell"]  # heads in which it can be one

    def __add__(self, other: "CellCounts") -> "CellCounts":
        if self.sample != other.sample or not np.array_equal(self.combination, other.combination):
            raise UsageError(
                f"cells of samples {self.sample} and {other.sample} do not match; add layers of one sample, counted "
                "over the same steps"
            )
        return CellCounts(
            sample=self.sample,
            keys=self.keys,
            levels=self.levels,
            combination=self.combination,
            sinks=self.sinks + other.sinks,
            seen=self.seen + other.seen,
        )

    def merge(self) -> "MergedCells":
        """Cells with the same levels as one: all that a fit needs, and small."""
        size = len(self.levels)
        return MergedCells(
            keys=self.keys,
            levels=self.levels,
            sinks=np.bincount(self.combination, self.sinks, size),
            seen=np.bincount(self.combination, self.seen, size),
            cells=int((self.seen > 0).sum()),
            best=_best_likelihood(self.sinks, self.seen),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedCells:
    """The cells of one sample by combination of levels."""

    keys: int
    levels: Int[np.ndarray, "combination 4"]
    sinks: Float[np.ndarray, " combination"]
    seen: Float[np.ndarray, " combination"]
    cells: int  # how many there were
    best: float  # their log-likelihood when every cell has its own rate


@dataclass(frozen=True, kw_only=True)
class FactorShare:
    """What one factor explains of the null deviance. The intervals take the fitted models as given."""

    factor: str
    levels: int
    alone: float | None  # None: no deviance to explain
    unique: float | None
    alone_cv: Interval | None  # None: one sample, nothing to validate on
    unique_cv: Interval | None


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Sink status, explained."""

    samples: int
    cells: int
    rate: float | None  # sinks / heads, over all cells
    folds: int | None  # of the cross-validation; as many as samples: leave one out
    full: float | None
    full_cv: Interval | None
    factors: tuple[FactorShare, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def count_cells(
    layer: LayerArrays,
    sinks: Bool[np.ndarray, "step head key"],
    *,
    canvases: Canvases,
    bins: int = 32,
    min_viewers: int = MIN_VIEWERS,
) -> CellCounts:
    """The cells of one layer of one sample. `min_viewers`: as the sinks were detected; other heads are not counted."""
    if bins < 1:
        raise UsageError(f"bins is {bins}; expected at least 1 stretch of positions")
    ids, masked = canvases.ids[layer.steps], canvases.masked[layer.steps]
    place = np.arange(ids.shape[1])
    position = np.where(place == 0, 0, 1 + place * bins // len(place))
    factors = (
        np.broadcast_to(position, ids.shape),
        np.where(masked, -1, ids),
        masked,
        region_of(canvases, layer.steps),
    )
    there = ids >= 0
    columns = np.stack([factor[there] for factor in factors], axis=1).astype(np.int64)
    combination, first = _combine(columns)
    can = ~np.isnan(layer.received) & (layer.expected > 0) & (layer.viewers >= min_viewers)
    return CellCounts(
        sample=canvases.sample,
        keys=len(place),
        levels=columns[first],
        combination=combination,
        sinks=(sinks & can).sum(1)[there],
        seen=can.sum(1)[there],
    )


def explain_sinks(
    by_sample: Sequence[MergedCells], *, folds: int = 5, ridge: float = 0.5, draws: int = 1000, seed: int = 0
) -> Explained:
    """Fit the models on all samples, and by cross-validation over samples. One entry of `by_sample` a sample.

    folds: sample i is in fold i % folds; with fewer samples than folds each is left out alone.
    """
    if folds < 2 or ridge <= 0:
        raise UsageError(f"folds is {folds} and ridge {ridge}; expected at least 2 folds and a ridge above 0")
    cells = _Pooled.of(by_sample)
    samples = len(by_sample)
    inside, outside = _deviances(cells, np.arange(samples) % folds, ridge=ridge)

    def share(more: str, fewer: str) -> float | None:
        return float((inside[fewer] - inside[more]) / inside["null"]) if inside.get("null") else None

    def validated(more: str, fewer: str) -> Interval | None:
        if not outside:
            return None
        gain = (outside[fewer] - outside[more])[:, None]
        return bootstrap_ratios(gain, outside["null"], draws=draws, seed=seed)[0]

    return Explained(
        samples=samples,
        cells=sum(one.cells for one in by_sample),
        rate=float(cells.sinks.sum() / cells.seen.sum()) if cells.seen.sum() else None,
        folds=min(folds, samples) if samples > 1 else None,
        full=share("full", "null"),
        full_cv=validated("full", "null"),
        factors=tuple(
            FactorShare(
                factor=name,
                levels=cells.count_levels(i),
                alone=share(f"+{name}", "null"),
                unique=share("full", f"-{name}"),
                alone_cv=validated(f"+{name}", "null"),
                unique_cv=validated("full", f"-{name}"),
            )
            for i, name in enumerate(FACTORS)
        ),
    )


def _deviances(
    cells: "_Pooled", fold: Int[np.ndarray, " sample"], *, ridge: float
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """By model ("+token": alone, "-token": all others): of all samples, and of each one when its fold is left out."""
    inside: dict[str, float] = {}
    outside: dict[str, np.ndarray] = {}
    if not 0 < cells.sinks.sum() < cells.seen.sum():
        return inside, outside
    everything = tuple(range(len(FACTORS)))
    models = {"null": (), "full": everything}
    models |= {f"+{name}": (i,) for i, name in enumerate(FACTORS)}
    models |= {f"-{name}": tuple(j for j in everything if j != i) for i, name in enumerate(FACTORS)}
    for name, factors in models.items():
        model = _fit(cells, factors, ridge=ridge)
        inside[name] = float(cells.deviance(model).sum())
        if len(fold) < 2:
            continue
        outside[name] = np.zeros(len(fold))
        for number in np.unique(fold):
            other = _fit(cells.of_samples(fold != number), factors, ridge=ridge, start=model)
            outside[name] += np.where(fold == number, cells.deviance(other), 0.0)
    return inside, outside


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pooled:
    """Samples in one table, their levels numbered from 0. Token level 0: masked."""

    levels: Int[np.ndarray, "row 4"]
    widths: tuple[int, ...]  # levels of each factor
    sinks: Float[np.ndarray, " row"]
    seen: Float[np.ndarray, " row"]
    sample: Int[np.ndarray, " row"]
    best: Float[np.ndarray, " sample"]
    keys: Int[np.ndarray, " sample"]

    @classmethod
    def of(cls, by_sample: Sequence[MergedCells]) -> "_Pooled":
        if not by_sample:
            raise UsageError("no samples to explain; expected at least one entry")
        levels = np.concatenate([one.levels for one in by_sample])
        seen = np.concatenate([one.seen for one in by_sample])
        sample = np.repeat(np.arange(len(by_sample)), [len(one.levels) for one in by_sample])
        levels[:, TOKEN] = _pool_tokens(levels[:, TOKEN], seen, sample=sample)
        numbered = [np.unique(column, return_inverse=True) for column in levels.T]
        numbered[TOKEN] = (np.arange(levels[:, TOKEN].max() + 1), levels[:, TOKEN])
        return cls(
            levels=np.stack([index.reshape(-1) for _, index in numbered], axis=1),
            widths=tuple(len(names) for names, _ in numbered),
            sinks=np.concatenate([one.sinks for one in by_sample]),
            seen=seen,
            sample=sample,
            best=np.array([one.best for one in by_sample]),
            keys=np.array([one.keys for one in by_sample]),
        )

    def of_samples(self, chosen: Bool[np.ndarray, " sample"]) -> "_Pooled":
        """The same table without the trials and positions of the other samples."""
        kept = chosen[self.sample]
        return replace(self, sinks=self.sinks * kept, seen=self.seen * kept, keys=self.keys * chosen)

    def count_levels(self, factor: int) -> int:
        """How many levels occur; being masked is no token."""
        found = np.unique(self.levels[self.seen > 0, factor])
        return int(np.count_nonzero(found > 0)) if factor == TOKEN else len(found)

    def deviance(self, model: "_Model") -> Float[np.ndarray, " sample"]:
        logit = model.logit(self.levels)
        likelihood = self.sinks * logit - self.seen * np.logaddexp(0, logit)
        return 2 * (self.best - np.bincount(self.sample, likelihood, len(self.best)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Model:
    """logit = intercept + one effect for the level of each factor."""

    factors: tuple[int, ...]
    parts: tuple[slice, ...]  # of the intercept, then of the effects of every factor
    values: Float[np.ndarray, " parameter"]

    def logit(self, levels: Int[np.ndarray, "row 4"]) -> Float[np.ndarray, " row"]:
        return sum(
            (self.values[part][column] for part, column in zip(self.parts, self.columns(levels), strict=True)),
            start=np.zeros(len(levels)),
        )

    def columns(self, levels: Int[np.ndarray, "row 4"]) -> list[Int[np.ndarray, " row"]]:
        return [np.zeros(len(levels), np.int64), *(levels[:, factor] for factor in self.factors)]


def _fit(cells: _Pooled, factors: tuple[int, ...], *, ridge: float, start: _Model | None = None) -> _Model:
    """Newton's method with step halving on the penalised log-likelihood, on merged rows."""
    row, first = _combine(cells.levels[:, list(factors)])
    levels = cells.levels[first]
    # Half a sink in one more trial of the intercept alone keeps a rate of 0 finite.
    sinks, seen = (np.bincount(row, counts, len(first)) for counts in (cells.sinks, cells.seen))
    rate = (sinks.sum() + 0.5) / (seen.sum() + 1)
    ends = np.cumsum([0, 1, *(cells.widths[factor] for factor in factors)])
    parts = tuple(slice(int(begin), int(end)) for begin, end in pairwise(ends))
    no_effects = np.concatenate([[np.log(rate / (1 - rate))], np.zeros(ends[-1] - 1)])
    model = _Model(factors=factors, parts=parts, values=no_effects if start is None else start.values)
    penalty = _penalty(cells, model, ridge=ridge, information=(seen.sum() + 1) * rate * (1 - rate))

    def objective(values: Float[np.ndarray, " parameter"]) -> float:
        logit = replace(model, values=values).logit(levels)
        fit = sinks @ logit - seen @ np.logaddexp(0, logit)
        return float(fit + values[0] / 2 - np.logaddexp(0, values[0]) - values @ penalty @ values / 2)

    reached = objective(model.values)
    for _ in range(ITERATIONS):
        gradient, curvature = _derivatives(model, levels, sinks=sinks, seen=seen)
        gradient -= penalty @ model.values
        step = np.linalg.solve(curvature + penalty, gradient)
        if gradient @ step <= TOLERANCE * abs(reached):
            break
        while not (value := objective(model.values + step)) >= reached:  # NaN is no progress either
            step /= 2
        model, reached = replace(model, values=model.values + step), value
    return model


def _penalty(
    cells: _Pooled, model: _Model, *, ridge: float, information: float
) -> Float[np.ndarray, "parameter parameter"]:
    """The ridge, and two stiff springs: effects average 0 over their trials, and masked cells have no token effect."""
    matrix = np.diag(np.full(len(model.values), ridge * information / cells.keys.sum()))
    matrix[0, 0] = 0.0
    for factor, part in zip(model.factors, model.parts[1:], strict=True):
        trials = np.bincount(cells.levels[:, factor], cells.seen, cells.widths[factor])
        if factor == TOKEN:
            matrix[part.start, part.start] = STIFF * information
        share = trials / max(trials.sum(), 1.0)
        matrix[part, part] += STIFF * information * np.outer(share, share)
    return matrix


def _derivatives(
    model: _Model,
    levels: Int[np.ndarray, "row 4"],
    *,
    sinks: Float[np.ndarray, " row"],
    seen: Float[np.ndarray, " row"],
) -> tuple[Float[np.ndarray, " parameter"], Float[np.ndarray, "parameter parameter"]]:
    """Gradient and negative Hessian of the log-likelihood. One-hot columns make them counts: no design matrix."""
    rate = np.exp(-np.logaddexp(0, -model.logit(levels)))
    missing, weight = sinks - seen * rate, seen * rate * (1 - rate)
    columns = model.columns(levels)
    widths = [part.stop - part.start for part in model.parts]
    gradient = np.concatenate([np.bincount(c, missing, width) for c, width in zip(columns, widths, strict=True)])
    curvature = np.zeros((len(gradient), len(gradient)))
    for i, j in combinations_with_replacement(range(len(columns)), 2):
        counts = np.bincount(columns[i] * widths[j] + columns[j], weight, widths[i] * widths[j])
        curvature[model.parts[i], model.parts[j]] = counts.reshape(widths[i], widths[j])
        curvature[model.parts[j], model.parts[i]] = counts.reshape(widths[i], widths[j]).T
    alone = np.exp(-np.logaddexp(0, -model.values[0]))
    gradient[0] += 0.5 - alone
    curvature[0, 0] += alone * (1 - alone)
    return gradient, curvature


def _pool_tokens(
    tokens: Int[np.ndarray, " row"], seen: Float[np.ndarray, " row"], *, sample: Int[np.ndarray, " row"]
) -> Int[np.ndarray, " row"]:
    """0: masked; 1..: the tokens that get a level of their own; the number behind them: all others."""
    names, index = np.unique(tokens, return_inverse=True)
    samples = int(sample.max()) + 1
    held = np.bincount(index * samples + sample, seen, len(names) * samples).reshape(len(names), samples) > 0
    often = (held.sum(1) >= min(2, samples)) & (names >= 0)
    chosen = np.flatnonzero(often)[np.argsort(-np.bincount(index, seen)[often], kind="stable")][:MOST_TOKENS]
    number = np.full(len(names), len(chosen) + 1)
    number[chosen] = np.arange(1, len(chosen) + 1)
    number[names < 0] = 0
    return number[index]


def _combine(columns: Int[np.ndarray, "row factor"]) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " combination"]]:
    """Which combination of levels each row has, and the first row of every combination."""
    code = np.zeros(len(columns), np.int64)
    for column in columns.T:
        low = column.min(initial=0)
        code = code * (column.max(initial=0) - low + 1) + column - low
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return index, first


def _best_likelihood(sinks: Int[np.ndarray, " cell"], seen: Int[np.ndarray, " cell"]) -> float:
    """Of one rate for every cell: sum of k log(k / n) + (n - k) log((n - k) / n)."""
    total = 0.0
    for part in (sinks, seen - sinks):
        some = part > 0
        total += float(part[some] @ np.log(part[some] / seen[some]))
    return total
