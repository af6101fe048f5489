"""Which token ids "fastgen" protects: special ones, and those that are one punctuation mark."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from sinklens.errors import UsageError

PUNCTUATION = frozenset(".,!?:;-()[]{}\"'/\\")


def marked_ids(tokenizer: Any) -> Bool[Tensor, " vocab"]:
    """True for every id that is special, or whose entry in the vocabulary is exactly one punctuation mark."""
    if tokenizer is None:
        raise UsageError(
            "order='fastgen' asks a tokenizer which ids are special or punctuation, and this model has none; pass "
            "tokenizer="
        )
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    ids = {token_id for text, token_id in vocabulary.items() if text in PUNCTUATION} | set(tokenizer.all_special_ids)
    marked = torch.zeros(max(vocabulary.values(), default=0) + 1, dtype=torch.bool)
    marked[[token_id for token_id in ids if token_id < marked.numel()]] = True
    return marked
