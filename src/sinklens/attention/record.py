"""One attention call, measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from sinklens.attention.call import Site


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Record:
    """One attention call, measured. Keys are in canvas coordinates: a key that was evicted keeps its place, empty."""

    site: Site
    by_group: Float[Tensor, "group batch head key"]
    expected_by_group: Float[Tensor, "group batch heads_or_1 key"]
    viewers_by_group: Float[Tensor, "group batch heads_or_1 key"]
    group_names: tuple[str, ...]
    queries: int
    impl: str  # which implementation summed
    kernel: str  # which attention kernel ran
    null_mass: Float[Tensor, "batch head"] | None = None
    entropy: Float[Tensor, "batch head query"] | None = None
    key_norm: Float[Tensor, "batch kv_head key"] | None = None
    value_norm: Float[Tensor, "batch kv_head key"] | None = None
    output_norm: Float[Tensor, "batch head key"] | None = None  # of v_j W_o of that head
    output_rank: Float[Tensor, "batch head"] | None = None  # effective rank of the output over queries
    output_size: Float[Tensor, "batch head"] | None = None  # root mean square of its norm behind W_o
    maps: Mapping[int, Float[Tensor, "batch query key"]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Record({self.site}, received {list(self.received.shape)}, {self.kernel}, {self.impl})"

    @property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Column sums of attention over all counted queries; 0 for padding."""
        return self.by_group.sum(0)

    @property
    def expected(self) -> Float[Tensor, "batch heads_or_1 key"]:
        """What uniform attention under the same mask would give."""
        return self.expected_by_group.sum(0)

    @property
    def viewers(self) -> Float[Tensor, "batch heads_or_1 key"]:
        """Counted queries that may see each key."""
        return self.viewers_by_group.sum(0)

    @property
    def fair_share(self) -> Float[Tensor, "batch head key"]:
        """Received / expected: 1 is uniform; NaN where no counted query may see the key."""
        return self.received / self.expected

    @property
    def mass(self) -> Float[Tensor, "batch head key"]:
        """Received / number of viewing queries: a share of all attention that could have gone there."""
        return self.received / self.viewers

    @property
    def groups(self) -> dict[str, Float[Tensor, "batch head key"]]:
        return {name: self.by_group[i] for i, name in enumerate(self.group_names)}

    @property
    def contribution(self) -> Float[Tensor, "batch head key"] | None:
        """Received x norm of the value behind the output projection: what the attention carries."""
        return None if self.output_norm is None else self.received * self.output_norm
