"""A sentence in a long text, in tokens: the prompt has exactly as many as are asked for.

    head | hay ... | needle | ... hay | tail

Built from ids, not from text: all prompts of a length have the same number of cache entries and need no padding.
The needle stands behind a full stop, as in the published tests; the hay ends where the room ends.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Buried:
    """A prompt, and where its needle is."""

    ids: tuple[int, ...]
    needle: tuple[int, int]  # from this position up to, not with, that one
    depth: float  # share of the hay before the needle, as it came out


def encode(tokenizer: Any, text: str, *, special: bool = False) -> list[int]:
    """Ids of a text; `special`: with what the tokenizer puts around a prompt, such as a bos."""
    if not text and not special:
        return []
    ids = tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
    return [int(token) for token in ids]


def bury(
    tokenizer: Any, *, hay: Sequence[int], needle: str, depth: float | int, length: int, head: str = "", tail: str = ""
) -> Buried:
    """`needle` in `hay`, which is repeated where it is too short, `depth` of it before the needle and the rest behind.

    depth 0 is before all hay and 1 behind it; between the two it goes back to the last full stop.
    """
    if not 0 <= depth <= 1:
        raise UsageError(f"depth is {depth!r}; give a share from 0 (at the start) to 1 (at the end)")
    if not hay:
        raise UsageError("the haystack holds no token; give a text")
    before, inside, after = encode(tokenizer, head, special=True), encode(tokenizer, needle), encode(tokenizer, tail)
    room = length - len(before) - len(inside) - len(after)
    if room < 0:
        raise UsageError(
            f"a prompt of {length} tokens is asked for, but {length - room} are needed for the question and what it "
            "asks about; give a greater length"
        )
    straw = (list(hay) * -(-room // len(hay)))[:room]
    at = room if depth == 1 else _full_stop(tokenizer, straw, int(depth * room))
    start = len(before) + at
    return Buried(
        ids=(*before, *straw[:at], *inside, *straw[at:], *after),
        needle=(start, start + len(inside)),
        depth=at / room if room else 0.0,
    )


def _full_stop(tokenizer: Any, ids: Sequence[int], at: int) -> int:
    """The last place up to `at` behind a token that ends with a full stop; 0 where there is none."""
    while at > 0 and not str(tokenizer.decode([ids[at - 1]])).rstrip().endswith("."):
        at -= 1
    return at


def read_documents(path: Path | None) -> tuple[tuple[str, ...], str]:
    """The documents of a text and its SHA-256: plain with form feeds between them, or .jsonl with `text` in each line.

    None: the technical documentation that the package ships, under free licences, which no embedded model has learned.
    """
    where = files("sinklens") / "training" / "held_out.jsonl" if path is None else path
    try:
        raw = where.read_bytes()
        content = raw.decode("utf-8")
        if where.name.endswith(".jsonl"):
            found = [str(json.loads(line)["text"]) for line in content.split("\n") if line.strip()]
        else:
            found = [page for page in content.split("\f") if page.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read the text {path} ({error}); give plain text in UTF-8, or .jsonl with objects that have `text`"
        ) from None
    if not found:
        raise UsageError(f"the text {path} is empty; give another")
    return tuple(found), sha256(raw).hexdigest()
