"""How far an experiment is, and how long the rest will take."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sinklens.evaluation.store import Batch


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an experiment is."""

    done: int  # batches of all cells, those found included
    total: int
    doing: Batch
    seconds_left: float | None  # None: nothing to judge by yet


@dataclass(kw_only=True)
class Pace:
    """How long batches take, by what they have in common."""

    spent: dict[tuple[Any, ...], list[float]] = field(default_factory=dict)  # seconds and weighted problems

    def add(self, batch: Batch, seconds: float) -> None:
        for key in _keys(batch):
            sums = self.spent.setdefault(key, [0.0, 0.0])
            sums[0] += seconds
            sums[1] += _weight(batch)

    def of(self, batch: Batch) -> float | None:
        """By the cell itself, else by cells of its kind, of the model and task, of all."""
        sums = next((self.spent[key] for key in _keys(batch) if key in self.spent), None)
        return None if sums is None else sums[0] / sums[1] * _weight(batch)

    def left(self, batches: Sequence[Batch]) -> float | None:
        """Seconds for all of these; None: nothing has been timed."""
        return sum(self.of(batch) or 0.0 for batch in batches) if self.spent else None


def _keys(batch: Batch) -> list[tuple[Any, ...]]:
    where, condition = (batch.model, batch.task), batch.condition
    kind = (condition.choose == "none", condition.keys, condition.act)
    return [(*where, str(condition)), (*where, *kind), where, ()]


def _weight(batch: Batch) -> float:
    """Problems, times what a condition roughly costs; it counts only until one of its kind has been timed."""
    unmasked, own = batch.condition.choose == "none", batch.condition.keys is None
    return (batch.stop - batch.start) * (1.0 if unmasked else 2.0 if own else 4.0)
