"""Texts behind given prompts, under a condition, ended by stop strings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sinklens.evaluation.conditions import Condition, mixed_seed
from sinklens.evaluation.likelihood import DoseSum
from sinklens.evaluation.until import cut_at, until_stop
from sinklens.sampling.generate import generate


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A model under a condition, asked to write."""

    model: Any
    condition: Condition = field(default_factory=Condition)
    seed: int = 0  # of samplers that draw, and of random controls
    doses: DoseSum = field(default_factory=DoseSum)

    def write(
        self, prompts: Sequence[Sequence[int]], sampler: Any, *, stops: Sequence[str], first: int = 0
    ) -> list[str]:
        """A text for every prompt, all in one batch. first: how many prompts were before; no two batches draw alike."""
        rows = [list(prompt) for prompt in prompts]
        with self._masked(rows):
            made = generate(self.model, rows, until_stop(sampler, stops), seed=self.seed + first)
        assert made.text is not None
        return [cut_at(text, stops) for text in made.text]

    @contextmanager
    def _masked(self, prompts: list[list[int]]) -> Iterator[None]:
        """The draws of a random control follow from the prompt, not from its place in a batch."""
        drawn = [mixed_seed(*prompt) for prompt in prompts]
        with self.doses.of(self.model, self.condition.intervention(seed=self.seed, problems=drawn)):
            yield
