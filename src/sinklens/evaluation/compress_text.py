"""Text read token by token with a cache under a cap: the loss and the hit of every token.

The published protocol: documents are tokenised without special tokens, each followed by the end of text, and packed
back to back; a chunk is the bos, where the tokenizer puts one before a prompt, and the next tokens. After every forward
the cache is cut to its budget. Tokens that fit the budget are read in large pieces, which changes nothing: nothing is
cut there. `stride` tokens are read between two cuts; beyond 1 the cache exceeds its budget by up to stride - 1 entries,
and tokens still see others that the cap would already have dropped, so losses come out lower than the method's.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.cache.compress import compress
from sinklens.cache.settings import Compression
from sinklens.errors import UsageError
from sinklens.evaluation.compress_answering import PIECE, seed_of
from sinklens.evaluation.compress_cells import NOTHING, Cell
from sinklens.tasks.haystack import encode


@dataclass(frozen=True, kw_only=True)
class Read:
    """Some chunks under one cell."""

    cell: Cell
    rows: list[dict[str, Any]]
    seconds: float


def pack(tokenizer: Any, documents: Sequence[str], *, length: int, count: int) -> Int[Tensor, "chunk position"]:
    """`count` chunks of `length` tokens."""
    if tokenizer is None:
        raise UsageError("this model came without a tokenizer, so a text cannot be cut into tokens; choose another")
    begin = encode(tokenizer, "", special=True)
    begin = begin[:1] if begin and begin[0] == tokenizer.bos_token_id else []
    end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    size, stream = length - len(begin), list[int]()
    if size < 2:
        raise UsageError(f"chunks of {length} tokens are asked for; expected 3 or more")
    for document in documents:
        stream += [*encode(tokenizer, document), *end]
        if len(stream) >= size * count:
            break
    if len(stream) < size * count:
        raise UsageError(
            f"the text has {len(stream) // size} chunks of {length} tokens, {count} are asked for; give more text "
            "(--text FILE), fewer chunks (--problems) or shorter ones (--lengths)"
        )
    return torch.tensor([begin + stream[start : start + size] for start in range(0, size * count, size)])


def read(
    model: Any,
    chunks: Int[Tensor, "chunk position"],
    cells: Sequence[Cell],
    *,
    numbers: Sequence[int],
    stride: int = 1,
    seed: int = 0,
) -> Iterator[Read]:
    """Every cell in turn. numbers: of the chunks; a random order's draws depend on them."""
    if stride < 1:
        raise UsageError(f"stride is {stride}; expected at least 1")
    ids = chunks.to(model.device)
    length = int(ids.shape[1])
    for cell in cells:
        began = time.perf_counter()
        losses, hits = foreseen(model, ids, _settings(model, cell, length, numbers, seed=seed), stride=stride)
        seconds = time.perf_counter() - began
        shared = {
            "length": length,
            "cell": str(cell),
            **cell.as_dict(),
            "kept": length if cell.order == NOTHING else min(length, cell.budget(length)),
            "stride": stride,
        }
        rows = [
            {**shared, "problem": number, "losses": loss, "hits": hit}
            for number, loss, hit in zip(numbers, losses.tolist(), hits.tolist(), strict=True)
        ]
        yield Read(cell=cell, rows=rows, seconds=seconds)


def foreseen(
    model: Any, ids: Int[Tensor, "chunk position"], compression: Compression | None, *, stride: int = 1
) -> "tuple[Float[Tensor, 'chunk token'], Bool[Tensor, 'chunk token']]":
    """Of the tokens 1, 2, ...: the loss in nats, and whether it was the likeliest."""
    cache: Any = None
    losses, hits = [], []
    with nullcontext() if compression is None else compress(model, compression), torch.no_grad():
        for start, stop in _pieces(int(ids.shape[1]) - 1, compression, stride):
            logits, cache = model.decode(ids[:, start:stop], None, cache)
            target = ids[:, start + 1 : stop + 1]
            losses.append(F.cross_entropy(logits.float().transpose(1, 2), target, reduction="none"))
            hits.append(logits.argmax(dim=-1) == target)
    return torch.cat(losses, dim=1).cpu(), torch.cat(hits, dim=1).cpu()


def _pieces(tokens: int, compression: Compression | None, stride: int) -> Iterator[tuple[int, int]]:
    """From where to where each forward reads: all that cannot be cut yet in large pieces, the rest by strides."""
    free = tokens
    if compression is not None:
        free = min(tokens, compression.keep if compression.above is None else compression.above - 1)
    start = 0
    while start < tokens:
        stop = min(start + PIECE, free) if start < free else min(start + stride, tokens)
        yield start, stop
        start = stop


def _settings(model: Any, cell: Cell, length: int, numbers: Sequence[int], *, seed: int) -> Compression | None:
    if cell.order == NOTHING:
        return None
    if cell.schedule == "once":
        raise UsageError("schedule 'once' with a text that is read from its beginning; choose cap or saw")
    seeds = tuple(seed_of(seed, cell.draw, "lm", length, number) for number in numbers)
    return Compression(**cell.settings(length=length, layers=model.spec.layers, seed=seeds))
