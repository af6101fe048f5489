"""One layer of a cache as an order sees it."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryStatistics:
    """What the queries of a layer so far say about those to come: their mean and covariance, turned to where the next
    ones will stand.
    """

    mean: Float[Tensor, "batch head dim"]
    covariance: Float[Tensor, "batch head dim dim"]
    scale: float  # of the logits: 1 / sqrt(dim), unless the model says otherwise


@dataclass(frozen=True, kw_only=True, eq=False)
class Entries:
    """The entries of one layer, in the order they are held: positions ascend within a head.

    `received`, `marked` and `queries` are there for the orders that ask for them.
    """

    layer: int
    keys: Float[Tensor, "batch kv_head entry dim"]  # as cached: after RoPE
    values: Float[Tensor, "batch kv_head entry value_dim"]
    positions: Int[Tensor, "batch kv_head entry"]  # true ones, on the canvas: padding counts
    real: Bool[Tensor, "batch kv_head entry"]  # False: padding
    received: Float[Tensor, "batch kv_head entry"] | None = None
    """Attention received: the mean over the queries that have seen the entry, and over the query heads of its group."""
    marked: Bool[Tensor, "batch kv_head entry"] | None = None  # a special token, or punctuation
    queries: QueryStatistics | None = None
