"""An intervention inside a CUDA graph: what it writes there, and what the host tells it between two runs."""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.attention.capture import Beside


class GraphRuns:
    """Of one intervention."""

    def __init__(self) -> None:
        self.beside = Beside()
        self._clock: Int[Tensor, ""] | None = None
        self._noted: dict[int, tuple[bool, Float[Tensor, " three"]]] = {}  # by layer; overwritten by every run
        self._before: list[tuple[Tensor, Tensor]] = []  # places that the graph writes to, and what was there

    def clock_on(self, device: torch.device) -> Int[Tensor, ""]:
        """The number of the step, for the card to read."""
        if self._clock is None:
            self._clock = torch.zeros((), dtype=torch.int64, device=device)
        return self._clock

    def captured(self, places: Iterable[Tensor]) -> None:
        """A graph that reads and writes `places` is there and has not run."""
        self._before = [(place, place.clone()) for place in places]

    def begin(self, step: int) -> None:
        """The graph is about to run, as this step. A trial run before its first leaves nothing behind."""
        assert self._clock is not None
        self._clock.fill_(step)
        for place, value in self._before:
            place.copy_(value)
        self._before = []

    def note(self, layer: int, dropped: bool, means: Float[Tensor, " three"]) -> None:
        self._noted[layer] = dropped, means

    def doses(self) -> "list[tuple[int, tuple[bool, Float[Tensor, ' three']]]]":
        """Copies of what the last run wrote, by layer: whether keys were dropped, and the means."""
        copies = torch.stack([means for _, means in self._noted.values()])
        return [(layer, (dropped, copies[i])) for i, (layer, (dropped, _)) in enumerate(self._noted.items())]
