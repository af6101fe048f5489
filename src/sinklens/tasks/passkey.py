"""A number to find again: a pass key is stated somewhere in filler text and asked for at the end.

    The grass is green. ... The pass key is 48213. Remember it. ... What is the pass key? The pass key is

Keys have four or five digits. Splits: "templates" has other filler and other wordings of the key and the question;
"numbers" has keys of six digits; "test" holds the texts of training's kind whose checksum is divisible by 50, and
"train" the others.
"""

import re
from collections.abc import Iterator
from itertools import count
from types import MappingProxyType
from typing import Any
from zlib import crc32

from sinklens.errors import UsageError
from sinklens.tasks import passkey_filler
from sinklens.tasks.draws import Draws, begin_items
from sinklens.tasks.item import Item

NAME = "passkey"
TEST_SHARE = 50  # one text in so many is kept for the split "test"
_STATED = (
    "The pass key is {key}. Remember it.",
    "Remember this: the pass key is {key}.",
    "The pass key is {key}. Do not forget it.",
)
_STATED_RESERVED = ("Do not forget this: {key} is the pass key.", "Remember {key}. It is the pass key.")
_ASKED = ("What is the pass key? The pass key is", "Do you remember the pass key? The pass key is")
_ASKED_RESERVED = ("What is the pass key? Remember, it is",)
_NUMBER = re.compile(r"\d+")


def items(split: str, *, seed: Any = 0, start: Any = 0, words: Any = (20, 120), depth: Any = None) -> Iterator[Item]:
    """The texts of a split from number `start` on, without end.

    `words`: the words of filler are drawn between these two, and the last sentence is finished. `depth`: how much of
    the filler comes before the key, from 0 (none) to 1 (all), to the nearest sentence; None: drawn for each text.
    """
    draws = begin_items(NAME, split, seed=seed, start=start)
    low, high = _checked_words(words)
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int | float) or not 0 <= depth <= 1):
        raise UsageError(
            f"depth is {depth!r}; give a share from 0 (at the start) to 1 (at the end), or None to draw it"
        )
    place = None if depth is None else float(depth)
    return (_item(draws, split, index, low=low, high=high, depth=place) for index in count(start))


def _checked_words(words: Any) -> tuple[int, int]:
    match words:
        case (int(low), int(high)) if 0 <= low <= high and not isinstance(low, bool):
            return low, high
    raise UsageError(f"words is {words!r}; give the fewest and the most words of filler, such as (20, 120)")


def _item(draws: Draws, split: str, index: int, *, low: int, high: int, depth: float | None) -> Item:
    draws.at(index)
    other = split == "templates"
    pool = passkey_filler.RESERVED if other else passkey_filler.TRAINED
    while True:
        digits = 6 if split == "numbers" else draws.between(4, 5)
        key = str(draws.between(10 ** (digits - 1), 10**digits - 1))
        stated = draws.between(0, len(_STATED_RESERVED if other else _STATED) - 1)
        asked = draws.between(0, len(_ASKED_RESERVED if other else _ASKED) - 1)
        drawn = draws.unit()
        place = drawn if depth is None else depth
        filler, ends = _filler(draws, pool, draws.between(low, high))
        before = min(range(len(ends)), key=lambda n: abs(ends[n] - place * ends[-1]))
        statement = (_STATED_RESERVED if other else _STATED)[stated].format(key=key)
        question = (_ASKED_RESERVED if other else _ASKED)[asked]
        prompt = " ".join([*filler[:before], statement, *filler[before:], question])
        if split in ("templates", "numbers") or (crc32(prompt.encode()) % TEST_SHARE == 0) == (split == "test"):
            break
    kept = "reserved." if other else ""
    facts = {"key": key, "words": ends[-1], "depth": ends[before] / ends[-1] if ends[-1] else 0.0}
    return Item(
        task=NAME,
        split=split,
        index=index,
        template=f"stated.{kept}{stated} asked.{kept}{asked}",
        prompt=prompt,
        answer=f" {key}.",
        facts=MappingProxyType(facts),
    )


def _filler(draws: Draws, pool: tuple[str, ...], words: int) -> tuple[list[str], list[int]]:
    """Whole sentences of so many words or a few more, none twice in a row, and the words up to the end of each."""
    filler: list[str] = []
    ends = [0]
    while ends[-1] < words:
        sentence = draws.pick(pool)
        if filler and sentence == filler[-1]:
            continue
        filler.append(sentence)
        ends.append(ends[-1] + sentence.count(" ") + 1)
    return filler, ends


def grade(item: Item, text: str) -> bool:
    """Whether the first number in what a model wrote is the key."""
    found = _NUMBER.search(text)
    return found is not None and found[0] == item.facts["key"]
