"""A pass key in a text of any length: as `passkey` words it, or as published, with a grid of its own.

    own     The grass is green. ... The pass key is 48213. Remember it. ... What is the pass key? The pass key is
    paper   a line that says what to do, the same five sentences again and again, the key stated twice, the question

"own" has the sentences and wordings that the embedded models were trained on. "paper" is the prompt of Landmark
Attention (Mohtashami and Jaggi), which "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" uses.
`build` gives a prompt of so many tokens; `paper_text` the published texts, whose filler is counted in characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.tasks.draws import Draws
from sinklens.tasks.haystack import Buried, bury, encode
from sinklens.tasks.passkey_filler import TRAINED

NAME = "passkey_long"
GRID = range(1, 33)  # lengths of the published grid, in thousands of tokens or so
SEEDS = 10  # texts of each length there
_QUESTION = "What is the pass key? The pass key is"
_TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there."
)
_GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How a text begins, states the key and asks for it; and which keys there are."""

    head: str
    stated: str
    tail: str
    keys: tuple[int, int]  # the smallest and the largest


WORDINGS: Mapping[str, Wording] = MappingProxyType(
    {
        "own": Wording(
            head="", stated=" The pass key is {key}. Remember it.", tail=f" {_QUESTION}", keys=(10_000, 99_999)
        ),
        "paper": Wording(
            head=f"{_TASK}\n",
            stated="\nThe pass key is {key}. Remember it. {key} is the pass key.\n",
            tail=f"\n{_QUESTION}",
            keys=(1, 49_999),
        ),
    }
)


def build(
    tokenizer: Any, *, length: int, number: int, wording: str = "own", seed: int = 0, depth: float | int | None = None
) -> tuple[Buried, str]:
    """Text `number` of `length` tokens, and its key. depth: share of the filler before the key; None: drawn.

    The key, the drawn depth and the filler follow from the wording, the seed and the number alone: texts of several
    lengths with the same number have the same key at the same depth.
    """
    words = WORDINGS[choose("wording", wording, tuple(WORDINGS))]
    draws = Draws(NAME, wording, seed=seed)
    draws.at(number)
    key, drawn = str(draws.between(*words.keys)), draws.unit()
    filler = _GRASS if wording == "paper" else _sentences(draws)
    buried = bury(
        tokenizer,
        # Repeated in ids: the text goes on with a space.
        hay=encode(tokenizer, f" {filler}"),
        needle=words.stated.format(key=key),
        depth=drawn if depth is None else depth,
        length=length,
        head=words.head,
        tail=words.tail,
    )
    return buried, key


def _sentences(draws: Draws, count: int = 400) -> str:
    """Sentences of the task `passkey`, none twice in a row: about 3,000 tokens."""
    found = [draws.pick(TRAINED)]
    while len(found) < count:
        sentence = draws.pick(TRAINED)
        if sentence != found[-1]:
            found.append(sentence)
    return " ".join(found)


def paper_characters(step: int) -> int:
    """Characters of filler at a step of the published grid: 3072 at 1, 119808 at 32.

    >>> paper_characters(1), paper_characters(32)
    (3072, 119808)
    """
    if step not in GRID:
        raise UsageError(f"step {step} of the published grid; expected 1 to {GRID[-1]}")
    return int(3.75 * step * 1000 // 1024) * 1024


def paper_text(step: int, *, number: int, seed: int = 0) -> tuple[str, str]:
    """Text `number` at a step of the published grid, and its key: filler by characters, both parts from the start."""
    words, filler = WORDINGS["paper"], paper_characters(step)
    draws = Draws(NAME, f"paper/{step}", seed=seed)
    draws.at(number)
    key, before = str(draws.between(*words.keys)), draws.between(0, filler)
    grass = " ".join([_GRASS] * (filler // len(_GRASS) + 1))
    stated = words.stated.format(key=key).strip()
    return "\n".join([_TASK, grass[:before], stated, grass[: filler - before], _QUESTION]), key


def answer_ids(tokenizer: Any, key: str) -> tuple[int, ...]:
    """How the answer begins behind the question, as the tokenizer cuts it."""
    question = encode(tokenizer, _QUESTION)
    whole = encode(tokenizer, f"{_QUESTION} {key}")
    return tuple(whole[len(question) :] if whole[: len(question)] == question else encode(tokenizer, f" {key}"))


def found(generated: Any, answer: tuple[int, ...]) -> bool:
    """Whether what a model wrote begins with the ids of the answer: the published rule."""
    return tuple(int(token) for token in generated[: len(answer)]) == answer
