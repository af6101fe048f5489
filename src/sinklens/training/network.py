"""The network that is trained: the layers of the native models, causal or not, in a form torch.compile takes whole.

Parameters have the names they have in `DiffusionTransformer`, so that a trained network is written to disk by the same
table that a published checkpoint is read by. What differs is the route: SDPA is called directly, and projections of the
same input are one multiplication.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinklens.models.layers import GatedMLP, RMSNorm, Rotary, SelfAttention, TransformerShape, rotate

Rotation = tuple[Tensor, Tensor]


class TrainedAttention(SelfAttention):
    """`SelfAttention` without the seam: nobody looks on, and one graph is compiled."""

    def __init__(self, shape: TransformerShape, *, causal: bool) -> None:
        super().__init__(shape)
        self.causal = causal

    def forward(  # type: ignore[override]  # nothing is padded, so no visibility
        self, x: Float[Tensor, "batch query width"], rotation: Rotation
    ) -> Float[Tensor, "batch query width"]:
        parts = (self.q, self.k, self.v)
        bias = None if self.q.bias is None else torch.cat([part.bias for part in parts])
        joined = F.linear(x, torch.cat([part.weight for part in parts]), bias)
        query, key, value = (
            part.view(*part.shape[:2], -1, self.head_dim).transpose(1, 2)
            for part in torch.split(joined, [part.out_features for part in parts], dim=-1)
        )
        attended = F.scaled_dot_product_attention(
            rotate(query, *rotation, full_precision=self.full_precision),
            rotate(key, *rotation, full_precision=self.full_precision),
            value,
            is_causal=self.causal,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        output: Tensor = self.o(attended.transpose(1, 2).flatten(2))
        return output


class TrainedMLP(GatedMLP):
    """`GatedMLP` with gate and up in one multiplication."""

    def forward(self, x: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query width"]:
        gate, up = F.linear(x, torch.cat([self.gate.weight, self.up.weight])).chunk(2, dim=-1)
        output: Tensor = self.down(F.silu(gate) * up)
        return output


class TrainedBlock(nn.Module):
    """One layer, with the parameter names of `Block`."""

    def __init__(self, shape: TransformerShape, *, causal: bool) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = TrainedAttention(shape, causal=causal)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.mlp = TrainedMLP(shape)

    def forward(self, x: Float[Tensor, "batch query width"], rotation: Rotation) -> Float[Tensor, "batch query width"]:
        x = x + self.attention(self.attention_norm(x).to(x.dtype), rotation)
        output: Tensor = x + self.mlp(self.mlp_norm(x).to(x.dtype))
        return output


class Network(nn.Module):
    """From ids to the normed residual stream; the embedding is the head."""

    def __init__(self, shape: TransformerShape, *, causal: bool, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.rows, shape.width)
        self.blocks = nn.ModuleList(TrainedBlock(shape, causal=causal) for _ in range(shape.layers))
        self.final_norm = RMSNorm(shape.width, shape.norm_eps)
        self._rotary = Rotary(shape.head_dim, shape.rope_theta)
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        """Normal with deviation 0.02; what is added to the residual stream is smaller by sqrt(2 layers)."""
        draws = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue  # norms are one; biases follow
            added = name.endswith(("attention.o.weight", "mlp.down.weight"))
            deviation = 0.02 / (2 * self.shape.layers) ** 0.5 if added else 0.02
            nn.init.normal_(parameter, std=deviation, generator=draws)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def rotation(self, length: int) -> Rotation:
        """cos and sin for positions 0 .. length - 1, to be made outside of what is compiled."""
        return self._rotary.at(torch.arange(length, device=self.embed.weight.device)[None], length)

    def forward(self, ids: Int[Tensor, "batch query"], rotation: Rotation) -> Float[Tensor, "batch query width"]:
        x = self.embed(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # the residual stream: half the traffic
        for block in self.blocks:
            x = block(x, rotation)
        output: Tensor = self.final_norm(x)
        return output
