"""A model of our own for tests: its logits are a function of the ids, and it keeps what it was given."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinklens.attention.clock import StepNumber, current_step
from sinklens.types import ModelSpec

MASK, EOS, PAD, EOT, VOCAB = 15, 14, 13, 12, 16
SPEC = ModelSpec(
    family="scripted",
    layers=0,
    heads=1,
    kv_heads=1,
    head_dim=1,
    width=1,
    vocab_size=VOCAB,
    causal=False,
    mask_id=MASK,
    eos_id=EOS,
    pad_id=PAD,
    eot_id=EOT,
)


class Letters:
    """A tokenizer: a is 0, b is 1, ...; m to o are special; the mask, as in LLaDA's, is not declared so."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        special = (EOT, PAD, EOS) if skip_special_tokens else ()
        return "".join(chr(ord("a") + token) for token in ids if token not in special)


class Scripted:
    def __init__(self, script: Callable[[Tensor], Tensor], *, tokenizer: Any = None, **changes: Any) -> None:
        self.script = script
        self.spec = replace(SPEC, **changes)
        self.tokenizer = tokenizer
        self.device = torch.device("cpu")
        self.seen: list[tuple[Tensor, Tensor | None, StepNumber | None]] = []

    def __call__(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert not torch.is_grad_enabled()
        self.seen.append((ids, attention_mask, current_step()))
        return self.script(ids)


def random_logits(ids: Tensor) -> Tensor:
    """Fixed random logits that depend on the whole row: on each id, its place, and the row's sum."""
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
    places = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(1))
    whole = torch.sin(ids.sum(dim=1, keepdim=True) + torch.arange(VOCAB))
    logits = 2 * (table[ids] + places[: ids.shape[1]] + whole[:, None])
    logits[..., MASK] = -10.0
    return logits


def always(*tokens: int) -> Callable[[Tensor], Tensor]:
    """Logits that propose tokens[p] at position p, ever surer to the left."""

    def script(ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCAB)
        for place, token in enumerate(tokens[: ids.shape[1]]):
            logits[:, place, token] = 8.0 - 0.3 * place
        return logits

    return script
