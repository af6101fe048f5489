"""How the definitions of a sink relate: thresholds that mean the same, and how often two of them select the same keys.

python -m sinklens.sinks.agreement 192     the table of conversions for 192 keys
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.errors import UsageError, choose
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import MIN_VIEWERS
from sinklens.sinks.metrics import METRICS, select

CONVERTIBLE = ("epsilon", "ratio", "gu", "mass")


def convert(value: Any, *, source: str, to: str, keys: int) -> float:
    """The threshold of definition `to` that selects the same keys, in square bidirectional attention of `keys` keys.

    The shares of a row then sum to the number of keys S, so that a share s exceeds the others' mean by (s - 1) S /
    (S - 1), and its mass is s / S. Under other masks the same token has another threshold at each position, with a null
    term the shares sum to less; sigma and top depend on the whole row. None of these has a conversion.

    >>> convert(3, source="epsilon", to="ratio", keys=192)
    3.984375
    """
    for metric in (source, to):
        if choose("metric", metric, tuple(METRICS)) not in CONVERTIBLE:
            raise UsageError(
                f"metric {metric!r} depends on all keys of the row, so that no threshold is the same; "
                f"conversions exist between {', '.join(CONVERTIBLE)}: compare selections with agreement() instead"
            )
    if keys < 2:
        raise UsageError(f"keys is {keys}; expected at least 2, a key and another one")
    stretch = (keys - 1) / keys
    share = {"epsilon": 1 + value * stretch, "ratio": value}.get(source, value * keys)
    return float({"epsilon": (share - 1) / stretch, "ratio": share}.get(to, share / keys))


def conversion_table(keys: int) -> list[dict[str, Any]]:
    """One row a definition: its default, the same threshold in the others, and the most a key could reach.

    None: there is no conversion. Square bidirectional attention of `keys` keys.
    """
    rows = []
    for metric in METRICS.values():
        same: dict[str, float | None] = dict.fromkeys(CONVERTIBLE)
        if metric.name in CONVERTIBLE:
            same = {to: convert(metric.default, source=metric.name, to=to, keys=keys) for to in CONVERTIBLE}
        most = {"sigma": math.sqrt(keys - 1), "gu": 1.0, "mass": 1.0}.get(metric.name, float(keys))
        rows.append({"metric": metric.name, "default": metric.default, **same, "at most": most})
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """Counts of keys that two definitions both select, and that at least one of them does. Sums over layers and samples
    of such counts are again counts: `first + second`."""

    metrics: tuple[str, ...]
    intersection: Int[np.ndarray, "metric metric"]
    union: Int[np.ndarray, "metric metric"]

    def __add__(self, other: "Agreement") -> "Agreement":
        if self.metrics != other.metrics:
            raise UsageError(
                f"counts of {self.metrics} and of {other.metrics} cannot be added; expected the same metrics"
            )
        return Agreement(
            metrics=self.metrics,
            intersection=self.intersection + other.intersection,
            union=self.union + other.union,
        )


def agreement(
    layer: LayerArrays, metrics: Mapping[str, Any] | Sequence[str] | None = None, *, min_viewers: int = MIN_VIEWERS
) -> Agreement:
    """How often the definitions select the same keys in one layer, over its steps and heads.

    metrics: names, or name to value (None: its default). By default every definition at its default.
    """
    names = METRICS if metrics is None else metrics
    chosen = dict(metrics) if isinstance(metrics, Mapping) else dict.fromkeys(names)
    picked = [select(layer, name, value, min_viewers=min_viewers) for name, value in chosen.items()]
    both = np.zeros((len(picked), len(picked)), np.int64)
    for i, first in enumerate(picked):
        for j, second in enumerate(picked[: i + 1]):
            both[i, j] = both[j, i] = np.count_nonzero(first & second)
    alone = both.diagonal()
    return Agreement(metrics=tuple(chosen), intersection=both, union=alone[:, None] + alone[None] - both)


def jaccard(counts: Agreement) -> Float[np.ndarray, "metric metric"]:
    """Keys that both select / keys that either selects; NaN where neither selects any."""
    union = counts.union
    return np.where(union > 0, counts.intersection / np.maximum(union, 1), np.nan)


def _print_table(keys: int) -> None:
    rows = conversion_table(keys)
    print("| " + " | ".join(rows[0]) + " |")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        cells = ("" if cell is None else cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row.values())
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    _print_table(int(sys.argv[1]) if sys.argv[1:] else 192)
