"""The llama-shaped transformer that LLaDA, Dream and MMaDA are, without a causal mask.

    x_0 = E[ids];  y = x_i + Attn(RMS(x_i));  x_{i+1} = y + W_down(silu(W_gate n) * W_up n), n = RMS(y)
    logits = Head(RMS(x_L))

Every attention call goes through `attend`. Rotary tables are plain tensors, computed on first use: a buffer
that is not stored in the checkpoint is one that a loader may leave uninitialised.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinklens.attention.seam import attend
from sinklens.cache.blocks import LayerCache, Own
from sinklens.errors import ModelError, choose

PADDING = ("keys", "pairs", "uniform")
# A hundred times what any model has: a config that asks for more would keep the machine busy before it is refused.
MOST_LAYERS, MOST_WIDTH = 10_000, 2**27


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """All that distinguishes one native model from another, weights aside."""

    layers: int
    heads: int
    kv_heads: int
    width: int
    mlp_width: int
    rows: int  # of the embedding and of the head: the width of the logits
    norm_eps: float
    rope_theta: float
    tied: bool = False  # the embedding matrix is the head
    qkv_bias: bool = False
    full_precision_rotation: bool = True  # False: cos and sin are cast to the activations' dtype first
    # What padding does. "keys": nobody sees it, it sees like everybody else. "pairs": nor does it see
    # anything. "uniform": likewise, but its rows (which nothing reads) come out as a plain average.
    padding: str = "keys"
    positions_skip_padding: bool = False  # True: a left-padded row counts from its first token

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "width", "mlp_width", "rows"):
            most = MOST_LAYERS if name == "layers" else MOST_WIDTH
            if not 1 <= getattr(self, name) <= most:
                raise ModelError(f"{name} is {getattr(self, name)}; expected 1 to {most}")
        if self.width % self.heads or self.width // self.heads % 2:
            raise ModelError(f"width {self.width} over {self.heads} heads; expected an even whole number for each head")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads cannot share {self.kv_heads} kv heads; expected a divisor")
        choose("padding", self.padding, PADDING)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, kw_only=True, eq=False)
class Visibility:
    """The padding of one batch, as every layer hands it to attention."""

    mask: Bool[Tensor, "batch 1 rows key"] | Float[Tensor, "batch 1 rows key"] | None = None
    real_keys: Bool[Tensor, "batch key"] | None = None
    real_queries: Bool[Tensor, "batch query"] | None = None

    @classmethod
    def of(cls, real: Bool[Tensor, "batch key"] | None, padding: str, dtype: torch.dtype) -> "Visibility":
        if real is None:
            return cls()
        keys = real[:, None, None, :]
        if padding == "keys":
            return cls(mask=keys, real_keys=real, real_queries=real)
        pairs = keys & real[:, None, :, None]
        if padding == "pairs":
            return cls(mask=pairs, real_keys=real, real_queries=real)
        # The lowest finite number swallows the logit it is added to: a row of nothing else is uniform, not
        # NaN.
        lowest = torch.finfo(dtype).min
        mask = torch.zeros_like(pairs, dtype=dtype).masked_fill(~pairs, lowest)
        return cls(mask=mask, real_keys=real, real_queries=real)

    def seen_from(self, queries: range) -> "Visibility":
        """What the queries at these positions see."""
        if self.mask is None or self.real_queries is None:
            return self
        some = slice(queries.start, queries.stop)
        mask = self.mask if self.mask.shape[2] == 1 else self.mask[:, :, some]
        return Visibility(mask=mask, real_keys=self.real_keys, real_queries=self.real_queries[:, some])


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) in at least float32, cast back, and only then times the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query width"]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        unit = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * unit.to(x.dtype)


class Rotary:
    """cos and sin of t * theta^(-2j/dim), float32, both halves of the head alike; one table a device.

    Tables that were too short are kept: a CUDA graph may read from one. Each is twice as long as the last at least.
    """

    def __init__(self, dim: int, theta: float) -> None:
        self.dim, self.theta = dim, theta
        self._tables: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}

    def at(
        self, positions: Int[Tensor, "rows query"], length: int
    ) -> tuple[Float[Tensor, "rows query dim"], Float[Tensor, "rows query dim"]]:
        """cos and sin at `positions`, all below `length`."""
        tables = self._tables.setdefault(positions.device, [])
        if not tables or len(tables[-1][0]) < length:
            longest = len(tables[-1][0]) if tables else 0
            tables.append(self._build(max(length, 2 * longest), positions.device))
        cos, sin = tables[-1]
        return cos[positions], sin[positions]

    def _build(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        powers = torch.arange(0, self.dim, 2, device=device).float() / self.dim
        frequencies = 1.0 / self.theta**powers
        angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "batch head query dim"],
    cos: Float[Tensor, "rows query dim"],
    sin: Float[Tensor, "rows query dim"],
    *,
    full_precision: bool,
) -> Float[Tensor, "batch head query dim"]:
    """x cos + (-x2, x1) sin, in float32 or in the dtype of `x`."""
    dtype = torch.promote_types(x.dtype, torch.float32) if full_precision else x.dtype
    cos, sin, wide = cos[:, None].to(dtype), sin[:, None].to(dtype), x.to(dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class SelfAttention(nn.Module):
    """Bidirectional attention with rotary positions; kv heads are not repeated."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_dim, self.full_precision = shape.head_dim, shape.full_precision_rotation
        kv_width = shape.kv_heads * shape.head_dim
        self.q = nn.Linear(shape.width, shape.width, bias=shape.qkv_bias)
        self.k = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.v = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.o = nn.Linear(shape.width, shape.width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch query width"],
        rotation: tuple[Float[Tensor, "rows query dim"], Float[Tensor, "rows query dim"]],
        visibility: Visibility,
        cached: LayerCache | None = None,
    ) -> Float[Tensor, "batch query width"]:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in (self.q, self.k, self.v)
        )
        own = Own(
            query=rotate(query, *rotation, full_precision=self.full_precision),
            key=rotate(key, *rotation, full_precision=self.full_precision),
            value=value,
            mask=visibility.mask,
            real_keys=visibility.real_keys,
            real_queries=visibility.real_queries,
            output_weight=self.o.weight,
        )
        seen = attend(own.call(), self) if cached is None else cached.attend(own, self)
        output: Tensor = self.o(seen.transpose(1, 2).flatten(2))
        return output


class GatedMLP(nn.Module):
    """W_down(silu(W_gate x) * W_up x)."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query width"]:
        output: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return output


class Block(nn.Module):
    """One layer: attention, then the MLP, each on the normed residual stream and added to it."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = SelfAttention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = GatedMLP(shape)

    def forward(
        self,
        x: Float[Tensor, "batch query width"],
        rotation: tuple[Float[Tensor, "rows query dim"], Float[Tensor, "rows query dim"]],
        visibility: Visibility,
        cached: LayerCache | None = None,
    ) -> Float[Tensor, "batch query width"]:
        x = x + self.attention(self.attention_norm(x), rotation, visibility, cached)
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output
