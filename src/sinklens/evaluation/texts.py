"""A text file as chunks of tokens.

Pages are separated by form feeds; a file without any is one page. A page gives as many whole chunks as it is long; the
first chunks of all pages come first, then the second ones: chunks of different pages depend less on each other.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinklens.errors import UsageError

PAGE_BREAK = "\f"


def read_text(path: Path) -> tuple[str, str]:
    """The text, and its SHA-256."""
    try:
        raw = path.read_bytes()
        return raw.decode("utf-8"), sha256(raw).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a text in UTF-8 ({error}); give a plain text file") from None


def cut_chunks(tokenizer: Any, text: str, *, chunks: int, length: int) -> Int[Tensor, "chunk position"]:
    """`chunks` chunks of `length` tokens each, without special tokens."""
    if tokenizer is None:
        raise UsageError("this model came without a tokenizer, so a text cannot be cut into tokens; choose another")
    rounds: list[list[list[int]]] = []
    for page in text.split(PAGE_BREAK):
        ids = tokenizer(page, add_special_tokens=False, verbose=False)["input_ids"]
        for number, start in enumerate(range(0, len(ids) - length + 1, length)):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(ids[start : start + length])
        if rounds and len(rounds[0]) >= chunks:
            break
    found = [chunk for chunks_of_pages in rounds for chunk in chunks_of_pages]
    if len(found) < chunks:
        raise UsageError(f"the text has {len(found)} chunks of {length} tokens; {chunks} are asked for: give more text")
    return torch.tensor(found[:chunks])
