"""What attention logits are made of: one value that every kernel takes."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from sinklens.errors import UsageError
from sinklens.kernels.mask import AnyMask, MaskRows


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The logits q k^T * scale, soft-capped, masked, beside an optional null logit; none of it computed yet.

    Key heads may be fewer than query heads: query head j reads kv head j // (heads / kv_heads).
    """

    query: Float[Tensor, "batch head query dim"]
    key: Float[Tensor, "batch kv_head key dim"]
    mask: AnyMask | None = None  # broadcasts to [batch, head, query, key]; bool: may be seen; float: added
    is_causal: bool = False  # query i sees keys 0..i, as in SDPA
    scale: float | None = None  # None: 1 / sqrt(dim)
    softcap: float | None = None  # c: logits become c tanh(logits / c) before the mask is added
    sink_logits: Float[Tensor, " head"] | None = None  # one more logit a row, with no value

    def __post_init__(self) -> None:
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        if heads % kv_heads:
            raise UsageError(f"{heads} query heads cannot share {kv_heads} key heads: not a multiple")
        if self.softcap is not None and not self.softcap > 0:
            raise UsageError(f"softcap {self.softcap} must be positive")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, head, query, key]."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def per_kv(self) -> int:
        """Query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def softmax_scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5) if self.scale is None else self.scale

    def mask_rows(self) -> MaskRows:
        return MaskRows.of(self.mask, is_causal=self.is_causal, shape=self.shape)
