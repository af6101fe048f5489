"""One sentence to find again in a long text: the needle in a haystack.

The needle, the question, the wrapper around the text, the grid and the score are those of the paper "A Simple and
Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv 2406.11430). The haystack is any text.

    score = distinct words of the answer that the response has, lower case, split at white space, of 11
"""

from collections.abc import Sequence
from typing import Any

from sinklens.errors import UsageError
from sinklens.tasks.draws import Draws
from sinklens.tasks.haystack import Buried, bury, encode

NAME = "needle"
NEEDLE = "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n"
QUESTION = "What is the best thing to do in San Francisco?"
ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."
HEAD = "This is a very long story book: <book> "
TAIL = f" </book>.\n Based on the content of the book, Question: {QUESTION}\nAnswer:"
NEW_TOKENS = 50
SLACK = 200  # tokens that the published lengths leave for the wrapper and the answer
# 13 of 40 lengths from 1000 to 128000, and 10 depths in percent.
PAPER_LENGTHS = tuple(int(1000 + step * 127_000 / 39 + 0.5) for step in range(13))
PAPER_DEPTHS = tuple(int(step * 100 / 9 + 0.5) for step in range(10))
_WORDS = frozenset(ANSWER.lower().split())


def build(
    tokenizer: Any, hay: Sequence[int], *, length: int, depth: float | int, number: int = 0, seed: int = 0
) -> Buried:
    """Prompt `number` of `length` tokens. Number 0 begins where the text begins, others at a place that is drawn."""
    return bury(
        tokenizer, hay=_turned(hay, number, seed), needle=NEEDLE, depth=depth, length=length, head=HEAD, tail=TAIL
    )


def paper_length(tokenizer: Any, length: int) -> int:
    """Tokens of the whole prompt for a length of the published grid: the text with its needle is SLACK shorter."""
    around = len(encode(tokenizer, HEAD, special=True)) + len(encode(tokenizer, TAIL))
    if length <= SLACK:
        raise UsageError(f"length is {length}; the published grid begins at {PAPER_LENGTHS[0]}")
    return length - SLACK + around


def _turned(hay: Sequence[int], number: int, seed: int) -> Sequence[int]:
    if number == 0 or not hay:
        return hay
    draws = Draws(NAME, "begin", seed=seed)
    draws.at(number)
    start = draws.between(0, len(hay) - 1)
    return [*hay[start:], *hay[:start]]


def score(text: str) -> float:
    """The share of the answer's words that a response has.

    >>> score("Eat a sandwich and sit in Dolores Park on a sunny day.")
    1.0
    """
    return len(_WORDS & set(text.lower().split())) / len(_WORDS)
