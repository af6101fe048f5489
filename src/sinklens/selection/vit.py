"""A small vision transformer, trained from scratch where no checkpoint is at hand.

    x_0 = [cls | W patches] + positions;  y = x_i + Attn(LN(x_i));  x_{i+1} = y + W_2 gelu(W_1 LN(y))
    logits = W LN(x_L)[cls]

Every attention call goes through `attend`. A block takes a mask over its tokens: boolean (False: nobody sees this
token, and it is padding to observers) or a float that is added to the logits of the token's key (-inf: nobody sees it).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import attend
from sinklens.errors import UsageError

LARGEST = 2**14  # pixels, widths, blocks: more would take the machine's memory before anything else could be said
TokenMask = Bool[Tensor, "batch token"] | Float[Tensor, "batch token"]


@dataclass(frozen=True, kw_only=True)
class ViTShape:
    """The size of a small vision transformer and of the images it takes."""

    image: int = 64  # pixels a side
    patch: int = 8  # pixels a side
    channels: int = 1
    width: int = 96
    blocks: int = 6
    heads: int = 4
    mlp: int | None = None  # None: 4 * width
    classes: int = 10

    def __post_init__(self) -> None:
        for name in ("image", "patch", "channels", "width", "blocks", "heads", "mlp", "classes"):
            value = getattr(self, name)
            if (value is not None or name != "mlp") and (not isinstance(value, int) or not 1 <= value <= LARGEST):
                raise UsageError(f"{name} is {value!r}; expected a whole number from 1 to {LARGEST}")
        if self.image % self.patch:
            raise UsageError(f"patches of {self.patch} pixels do not tile an image of {self.image}; expected a divisor")
        if self.width % self.heads:
            raise UsageError(f"width {self.width} over {self.heads} heads; expected a multiple")

    @property
    def hidden(self) -> int:
        """Width of the MLP's middle."""
        return 4 * self.width if self.mlp is None else self.mlp

    @property
    def side(self) -> int:
        """Patches a side."""
        return self.image // self.patch


def check_images(images: Any, *, channels: int, height: int, width: int) -> None:
    """Refuse what a backbone cannot take, in words."""
    wanted = f"expected a float tensor [batch, {channels}, {height}, {width}] with values from 0 to 1"
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise UsageError(f"images are {kind}; {wanted}")
    if images.dim() != 4 or tuple(images.shape[1:]) != (channels, height, width):
        raise UsageError(f"images have shape {list(images.shape)}; {wanted}: resize them, or convert their mode")


def key_bias(mask: TokenMask, dtype: torch.dtype) -> Float[Tensor, "batch 1 1 token"]:
    """What is added to the logits of every key; a dropped one gets -inf from every query."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    return mask.to(dtype)[:, None, None]


def alive_of(mask: TokenMask) -> Bool[Tensor, "batch token"]:
    """Which tokens a mask lets anybody see."""
    return mask if mask.dtype == torch.bool else mask > -torch.inf


class SelfAttention(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.head_dim = shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.o = nn.Linear(shape.width, shape.width)

    def forward(
        self, x: Float[Tensor, "batch token width"], mask: TokenMask | None = None
    ) -> Float[Tensor, "batch token width"]:
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        alive = None if mask is None else alive_of(mask)
        call = AttentionCall(
            query=query,
            key=key,
            value=value,
            mask=None if mask is None else key_bias(mask, query.dtype),
            real_keys=alive,
            real_queries=alive,
            output_weight=self.o.weight,
        )
        output: Tensor = self.o(attend(call, self).transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = SelfAttention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)

    def forward(
        self, x: Float[Tensor, "batch token width"], mask: TokenMask | None = None
    ) -> Float[Tensor, "batch token width"]:
        x = x + self.attention(self.attention_norm(x), mask)
        output: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return output


class SmallViT(nn.Module):
    """A classifier of images; weights drawn from `seed`."""

    prefix = 1  # tokens before the patches: the class token

    def __init__(self, shape: ViTShape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.width, self.heads, self.hidden, self.classes = shape.width, shape.heads, shape.hidden, shape.classes
        self.channels, self.patch = shape.channels, (shape.patch, shape.patch)
        self.grid = (shape.side, shape.side)
        self.projection = nn.Conv2d(shape.channels, shape.width, kernel_size=shape.patch, stride=shape.patch)
        self.cls = nn.Parameter(torch.empty(1, 1, shape.width))
        self.positions = nn.Parameter(torch.empty(1, 1 + shape.side**2, shape.width))
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.blocks)])
        self.norm = nn.LayerNorm(shape.width)
        self.classifier = nn.Linear(shape.width, shape.classes)
        self._draw(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        """Matrices by their fan-in, those that add to the residual stream smaller; biases 0, norms 1."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = 0.2 if name in ("cls", "positions") else parameter[0].numel() ** -0.5
                adds = name.endswith((".o.weight", ".down.weight"))
                nn.init.normal_(parameter, std=std * (2 * self.shape.blocks) ** (-0.5 * adds), generator=generator)
            else:
                nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def embed(self, images: Any) -> Float[Tensor, "batch token width"]:
        """Class token and patches, with their positions."""
        check_images(images, channels=self.channels, height=self.shape.image, width=self.shape.image)
        patches = self.projection((images - 0.5) / 0.25).flatten(2).transpose(1, 2)
        return torch.cat((self.cls.expand(len(images), -1, -1), patches), dim=1) + self.positions

    def head(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch classes"]:
        """Logits, from the class token."""
        logits: Tensor = self.classifier(self.norm(x[:, 0]))
        return logits

    def forward(self, images: Any) -> Float[Tensor, "batch classes"]:
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
