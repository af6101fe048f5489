"""The control of `MaskSinks`: as many keys, at the same steps, of the same queries, but drawn at random."""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import nn

from sinklens.errors import UsageError
from sinklens.interventions.masking import Masking
from sinklens.interventions.plan import Plan, check_choices, check_count, resolve
from sinklens.interventions.ranking import Ranking, Targets


@dataclass(frozen=True, kw_only=True)
class RandomKeys:
    """Settings; `queries` and `keys` as for `MaskSinks`.

    Each layer, head, row and step has its own draw, among the keys that `MaskSinks` would have ranked. It depends on
    the seed, the step, the layer and the number of the row, on nothing else.
    """

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    top: Any  # keys a head, at least 1
    seed: Any = 0
    queries: Any = None
    keys: Any = None

    def __post_init__(self) -> None:
        check_count("top", self.top)
        check_choices(queries=self.queries, keys=self.keys)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"seed is {self.seed!r}; expected an integer")

    def start(self, model: nn.Module) -> Masking:
        """The intervention itself, which knows nothing yet."""
        return Masking(self, model)

    def plan(self, causal: bool) -> Plan:
        return resolve(causal=causal, queries=self.queries, keys=self.keys)

    def choose(self, ranking: Ranking) -> Targets:
        rows, heads, _ = ranking.scores.shape
        canvas = int(ranking.positions.max()) + 1
        noise = []
        for row in range(rows):
            name = f"{self.seed} {int(ranking.site.step)} {ranking.site.layer} {row}"
            number = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
            draws = torch.Generator().manual_seed(number)  # on the CPU: the same draws on every device
            noise.append(torch.rand((canvas, heads), generator=draws, dtype=torch.float64).T)
        scores = torch.stack(noise).to(ranking.positions.device)[..., ranking.positions]
        return replace(ranking, scores=scores).highest(self.top)
