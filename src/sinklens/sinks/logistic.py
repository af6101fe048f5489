"""A logistic model with one effect for every level of some factors, fitted to merged cells by Newton's method.

The mask token stands exactly where the state is masked: token and mask would be aliased. Here the token factor holds
differences between revealed tokens only. Its effects average 0 over the revealed cells, and masked cells have none, so
that the contrast of masked and revealed is the mask factor's alone.

A ridge keeps the effect of a level without any sink finite. Its unit is one key position of one sample with all its
steps and heads, because these are no independent trials: a level at m positions keeps about m / (m + ridge) of its
effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.cells import TOKEN, MergedCells, combine

MOST_TOKENS = 256  # that have a level of their own
ITERATIONS = 100
STIFF = 1e6  # against the information of all trials: what a spring leaves of an effect is a millionth
TOLERANCE = 1e-10  # of the penalised log-likelihood, relative


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """Samples in one table, their levels numbered from 0. Token level 0: masked."""

    levels: Int[np.ndarray, "row 4"]
    widths: tuple[int, ...]  # levels of each factor
    sinks: Float[np.ndarray, " row"]
    seen: Float[np.ndarray, " row"]
    sample: Int[np.ndarray, " row"]
    best: Float[np.ndarray, " sample"]
    keys: Int[np.ndarray, " sample"]

    @classmethod
    def of(cls, by_sample: Sequence[MergedCells]) -> "Pooled":
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

    def of_samples(self, chosen: Bool[np.ndarray, " sample"]) -> "Pooled":
        """The same table without the trials and positions of the other samples."""
        kept = chosen[self.sample]
        return replace(self, sinks=self.sinks * kept, seen=self.seen * kept, keys=self.keys * chosen)

    def count_levels(self, factor: int) -> int:
        """How many levels occur; being masked is no token."""
        found = np.unique(self.levels[self.seen > 0, factor])
        return int(np.count_nonzero(found > 0)) if factor == TOKEN else len(found)

    def deviance(self, model: "Model") -> Float[np.ndarray, " sample"]:
        logit = model.logit(self.levels)
        likelihood = self.sinks * logit - self.seen * np.logaddexp(0, logit)
        return 2 * (self.best - np.bincount(self.sample, likelihood, len(self.best)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
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


def fit(cells: Pooled, factors: tuple[int, ...], *, ridge: float, start: Model | None = None) -> Model:
    """Newton's method with step halving on the penalised log-likelihood, on merged rows."""
    row, first = combine(cells.levels[:, list(factors)])
    levels = cells.levels[first]
    # Half a sink in one more trial of the intercept alone keeps a rate of 0 finite.
    sinks, seen = (np.bincount(row, counts, len(first)) for counts in (cells.sinks, cells.seen))
    rate = (sinks.sum() + 0.5) / (seen.sum() + 1)
    ends = np.cumsum([0, 1, *(cells.widths[factor] for factor in factors)])
    parts = tuple(slice(int(begin), int(end)) for begin, end in pairwise(ends))
    no_effects = np.concatenate([[np.log(rate / (1 - rate))], np.zeros(ends[-1] - 1)])
    model = Model(factors=factors, parts=parts, values=no_effects if start is None else start.values)
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
    cells: Pooled, model: Model, *, ridge: float, information: float
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
    model: Model,
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
