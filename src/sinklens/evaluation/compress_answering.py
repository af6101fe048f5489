"""Prompts answered with a cut cache, greedily, many cells behind one reading of the prompt.

Under every schedule the prompt is read with the whole cache, and cut for the first time when all of it is there. What
comes before its last token (its last two, when strict) is therefore the same in all cells: it is read once, and each
cell goes on from a copy of that cache. Orders that ask what the prompt's queries did, or which tokens it has, read it
themselves.
"""

import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.cache.compress import compress
from sinklens.cache.settings import Compression
from sinklens.errors import UsageError
from sinklens.evaluation.compress_cells import NOTHING, Cell
from sinklens.evaluation.compress_problems import Problem
from sinklens.sampling.special_ids import stop_ids

PIECE = 256  # tokens read at a time: each has a vocabulary of logits
WATCHING = ("received", "expected", "fastgen")  # orders that need to see the prompt being read


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Some problems under one cell."""

    cell: Cell
    rows: list[dict[str, Any]]
    shared: float  # seconds for the part of the prompt that all cells share
    seconds: float  # of this cell alone


def answer(model: Any, problems: Sequence[Problem], cells: Sequence[Cell], *, seed: int = 0) -> Iterator[Answered]:
    """Every cell in turn. The prompts have equally many tokens."""
    if len({len(problem.ids) for problem in problems}) != 1:
        raise UsageError("problems that are answered together need prompts of equal length; group them first")
    ids = torch.tensor([problem.ids for problem in problems], device=model.device)
    strict = any(cell.strict for cell in cells)
    for own in (False, True):  # how much is shared depends on it; the whole cache goes with either
        some = [cell for cell in cells if (cell.strict or (strict and cell.order == NOTHING)) is own]
        last = 2 if own else 1
        began, shared = time.perf_counter(), None
        if any(cell.order not in WATCHING for cell in some):
            shared = _read(model, ids[:, :-last])
        spent = time.perf_counter() - began
        for cell in some:
            begun = time.perf_counter()
            behind = shared is not None and cell.order not in WATCHING and not _alone(cell, ids.shape[1])
            left, cache = (ids[:, -last:], _copied(shared)) if behind else (ids, None)
            written, held = _under(model, problems, left, cell, cache=cache, seed=seed)
            rows = [_row(model, *one, cell=cell, held=held) for one in zip(problems, written, strict=True)]
            yield Answered(cell=cell, rows=rows, shared=spent, seconds=time.perf_counter() - begun)


def _alone(cell: Cell, length: int) -> bool:
    """Whether the last token is all that a strict cell keeps: nothing is left to cut to before it."""
    return cell.strict and cell.budget(length) == 1


def settings_of(model: Any, cell: Cell, problems: Sequence[Problem], *, seed: int) -> Compression:
    """What a cell comes to for these prompts. Draws are a problem's own, whatever else is in its batch."""
    seeds = tuple(seed_of(seed, cell.draw, problem.key) for problem in problems)
    return Compression(**cell.settings(length=len(problems[0].ids), layers=model.spec.layers, seed=seeds))


def seed_of(*parts: Any) -> int:
    """A whole number for these parts, the same everywhere."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


def _under(
    model: Any, problems: Sequence[Problem], left: Int[Tensor, "batch query"], cell: Cell, *, cache: Any, seed: int
) -> tuple[list[list[int]], int]:
    """What is written under a cell, and the bytes of a problem's cache behind its prompt."""
    new = max(problem.new_tokens for problem in problems)
    if cell.order == NOTHING:
        written, held = greedy(model, left, cache, new=new)
        return written, held // len(problems)
    settings = settings_of(model, cell, problems, seed=seed)
    if cell.strict and cache is not None:  # two tokens are left: the cut comes between them
        settings = replace(settings, strict=False, keep=settings.keep - 1, last=max(0, settings.last - 1))
    with compress(model, settings):
        if cell.strict and cache is not None:
            with torch.no_grad():
                _, cache = model.decode(left[:, :1], None, cache)
            left = left[:, 1:]
        written, held = greedy(model, left, cache, new=new)
    return written, held // len(problems)


def greedy(model: Any, left: Int[Tensor, "batch query"], cache: Any, *, new: int) -> tuple[list[list[int]], int]:
    """The likeliest `new` tokens of each row, up to its end of text, and the bytes of the cache behind the prompt.

    left: what of the prompt is not in the cache yet.
    """
    stops = torch.tensor(stop_ids(model.spec), dtype=left.dtype, device=left.device)
    ended = torch.zeros(len(left), dtype=torch.bool, device=left.device)
    written: list[Tensor] = []
    held = 0
    with torch.no_grad():
        while len(written) < new and not bool(ended.all()):
            logits, cache = model.decode(left, None, cache)
            held = held or cache_bytes(cache)
            left = logits[:, -1:].argmax(dim=-1)
            written.append(left)
            ended |= torch.isin(left[:, 0], stops)
    ends = set(stops.tolist())
    return [_up_to(row, ends) for row in torch.cat(written, dim=1).tolist()], held


def _read(model: Any, ids: Int[Tensor, "batch query"]) -> Any:
    """The cache behind these ids; None where there are none. In pieces, because the logits are not needed."""
    cache: Any = None
    with torch.no_grad():
        for start in range(0, ids.shape[1], PIECE):
            _, cache = model.decode(ids[:, start : start + PIECE], None, cache)
    return cache


def cache_bytes(cache: Any) -> int:
    """Of all keys and values that are held."""
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)


def _copied(cache: Any) -> Any:
    """A cache that can be added to and cut; the tensors themselves are never written to, so they are shared."""
    own = copy(cache)
    own.layers = [copy(layer) for layer in cache.layers]
    return own


def _up_to(row: list[int], ends: set[int]) -> list[int]:
    return row[: next((place for place, token in enumerate(row) if token in ends), len(row))]


def _row(model: Any, problem: Problem, written: list[int], *, cell: Cell, held: int) -> dict[str, Any]:
    text = str(model.tokenizer.decode(written[: problem.new_tokens], skip_special_tokens=True))
    length = len(problem.ids)
    return {
        "task": problem.task,
        "set": problem.set,
        "length": problem.length,
        "depth": problem.depth,
        "problem": problem.number,
        "cell": str(cell),
        **cell.as_dict(),
        "kept": length if cell.order == NOTHING else min(length, cell.budget(length)),
        "prompt_tokens": length,
        "at": problem.at,
        "answer": problem.answer,
        "text": text,
        **problem.score(text, written),
        "tokens": len(written),
        "cache_bytes": held,
    }
