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

How token and mask are kept apart, and the ridge: logistic.py.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from sinklens.errors import UsageError
from sinklens.sinks.cells import FACTORS, MergedCells
from sinklens.sinks.logistic import Pooled, fit
from sinklens.sinks.resample import Interval, bootstrap_ratios


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


def explain_sinks(
    by_sample: Sequence[MergedCells], *, folds: int = 5, ridge: float = 0.5, draws: int = 1000, seed: int = 0
) -> Explained:
    """Fit the models on all samples, and by cross-validation over samples. One entry of `by_sample` a sample.

    folds: sample i is in fold i % folds; with fewer samples than folds each is left out alone.
    """
    if folds < 2 or ridge <= 0:
        raise UsageError(f"folds is {folds} and ridge {ridge}; expected at least 2 folds and a ridge above 0")
    cells = Pooled.of(by_sample)
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
    cells: "Pooled", fold: Int[np.ndarray, " sample"], *, ridge: float
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
        model = fit(cells, factors, ridge=ridge)
        inside[name] = float(cells.deviance(model).sum())
        if len(fold) < 2:
            continue
        outside[name] = np.zeros(len(fold))
        for number in np.unique(fold):
            other = fit(cells.of_samples(fold != number), factors, ridge=ridge, start=model)
            outside[name] += np.where(fold == number, cells.deviance(other), 0.0)
    return inside, outside
