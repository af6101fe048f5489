"""What every implementation of attention received returns."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """Attention summed over queries."""

    by_group: Float[Tensor, "group batch head key"]  # disjoint groups of queries: their sum is the total
    null_mass: Float[Tensor, "batch head"] | None  # what the null term took, over all counted queries
    entropy: Float[Tensor, "batch head query"] | None  # of every row, in nats, null term included
