"""Bring your own: an architecture and a sampler that sinklens has never heard of, in one file.

The model is a small bidirectional transformer in plain torch; the sampler fills in masks on MaskGIT's cosine
schedule. Neither inherits from anything in sinklens. The weights are random, so the text is noise; what is
measured of it is real.

    python examples/own_dlm.py
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sinklens as sl
from sinklens.attention.clock import StepNumber, at_step
from sinklens.models.language_model import LanguageModel

ALPHABET = "abcdefghijklmnopqrstuvwxyz .~_"  # ~ ends a text, _ is the mask


class Characters:
    """A tokenizer is anything with encode and decode."""

    def encode(self, text: str) -> list[int]:
        return [ALPHABET.index(letter) for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        text = "".join(ALPHABET[i] for i in ids)
        return text.replace("~", "").replace("_", "") if skip_special_tokens else text


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Denoiser(nn.Module):
    """What sinklens asks of a model: spec, tokenizer, device, and a call from ids to logits."""

    def __init__(self, layers: int = 3, width: int = 64, heads: int = 4, positions: int = 128) -> None:
        super().__init__()
        self.spec = sl.ModelSpec(
            family="own",
            layers=layers,
            heads=heads,
            kv_heads=heads,
            head_dim=width // heads,
            width=width,
            vocab_size=len(ALPHABET),
            causal=False,
            mask_id=ALPHABET.index("_"),
            eos_id=ALPHABET.index("~"),
            pad_id=ALPHABET.index("~"),
            max_length=positions,
            learned_positions=True,
        )
        self.tokenizer = Characters()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, len(ALPHABET))

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        places = (real.cumsum(dim=1) - 1).clamp(min=0)  # padding on the left shifts nobody
        x = self.embed(ids) + self.places(places)
        visible = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, visible)
        return self.head(x)


@dataclass(frozen=True, kw_only=True)
class CosineSampler:
    """What sinklens asks of a sampler: `run`, which yields one Step for each forward.

    After step i of n, cos(pi/2 (i + 1) / n) of the new positions are still masked; the surest go first.
    """

    steps: int
    length: int

    def run(self, model: LanguageModel, prompt: Tensor, attention_mask: Tensor | None = None) -> Iterator[sl.Step]:
        mask_id = model.spec.mask_id
        assert mask_id is not None
        canvas = F.pad(prompt, (0, self.length), value=mask_id)
        if attention_mask is not None:
            attention_mask = F.pad(attention_mask, (0, self.length), value=1)
        for index in range(self.steps):
            masked = canvas == mask_id
            with at_step(StepNumber(index, canvas=canvas, masked=masked)):  # observers read the step here
                logits = model(canvas, attention_mask)
            logits[..., mask_id] = -torch.inf  # a mask is no answer
            confidence, proposal = logits.softmax(dim=-1).max(dim=-1)
            confidence = confidence.masked_fill(~masked, torch.nan)
            left = math.floor(self.length * math.cos(math.pi / 2 * (index + 1) / self.steps))
            order = confidence.nan_to_num(-1.0).argsort(dim=1, descending=True).argsort(dim=1)
            committed = masked & (order < masked.sum(dim=1, keepdim=True) - left)
            canvas = torch.where(committed, proposal, canvas)
            yield sl.Step(index=index, canvas=canvas, committed=committed, confidence=confidence)


def main() -> None:
    torch.manual_seed(0)
    model = Denoiser().eval()
    sampler = CosineSampler(steps=6, length=24)
    with sl.observe(model) as seen:
        out = sl.generate(model, "the sink is ", sampler)

    assert out.canvases is not None
    print("canvas, step by step")
    for number, canvas in enumerate(out.canvases):
        print(f"  {number}  {model.tokenizer.decode(canvas[0].tolist())}")
    print("\nwhere each layer looks most, step by step: position, letter, times its fair share")
    for step, canvas in zip(seen.steps, out.canvases, strict=False):
        found = []
        for share in step.fair_share.mean(dim=2)[:, 0]:  # [layer, batch, head, key] -> [key] of row 0
            place = int(share.argmax())
            found.append(f"{place:3d} {ALPHABET[canvas[0, place]]!r} x{float(share[place]):.2f}")
        print(f"  step {step.step}:  " + "   ".join(found))


if __name__ == "__main__":
    main()
