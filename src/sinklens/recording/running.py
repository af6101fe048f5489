"""Column sums over all queries so far, from the steps of a run that computes only its new ones."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float


@dataclass
class RunningSums:
    """Adds up what steps give. A step that computed every query anew (no cache) replaces the sum instead."""

    queries: int = 0
    _totals: dict[str, np.ndarray] = field(default_factory=dict)
    _placed: dict[str, np.ndarray] = field(default_factory=dict)

    def begin(self, queries: int, keys: int) -> None:
        """One more step, of `queries` new queries on a canvas of `keys`."""
        if queries == keys:
            self.queries = 0
            self._totals.clear()
            self._placed.clear()
        self.queries += queries

    def add(self, name: str, values: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "layer head key"]:
        """The sum of `values` over the steps so far; a canvas that grew has its new keys at the end."""
        before = self._totals.get(name)
        if before is not None:
            wide = np.zeros_like(values)
            wide[..., : before.shape[-1]] = before
            values = wide + values
        self._totals[name] = values
        return values

    def carry(self, name: str, values: Float[np.ndarray, "layer head key"]) -> Float[np.ndarray, "layer head key"]:
        """What belongs to keys, which do not change in a cache: one that a sliding window has forgotten (0 in
        `values`) keeps what it had, or NaN if that was never measured."""
        known = np.full_like(values, np.nan)
        before = self._placed.get(name)
        if before is not None:
            known[..., : before.shape[-1]] = before
        self._placed[name] = np.where(values > 0, values, known)
        return self._placed[name]

    def place(self, name: str, values: Float[np.ndarray, "layer query"]) -> Float[np.ndarray, "layer key"]:
        """What belongs to the queries themselves, beside that of the queries before them."""
        before = self._placed.get(name)
        self._placed[name] = values if before is None else np.concatenate([before, values], axis=-1)
        return self._placed[name]
