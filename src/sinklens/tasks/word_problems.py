"""Arithmetic in two to four steps, told as a story, with the worked solution: one equation a line.

    Question: Mia has 12 apples. She finds 5 more apples. Tom has twice as many apples as Mia has now.
    How many apples does Tom have?
    Answer:
    12 + 5 = 17
    17 * 2 = 34
    #### 34

The question stands on one line. Given numbers lie in 2..20 and 26..50; results are at most 200. About a quarter of
the stories state a number that is of no use. Splits: "templates" has a sentence in a wording that training never
uses; "numbers" has a given number in 21..25, which training never states; "test" holds the problems of training's
kind whose text has a checksum divisible by 50, and "train" the others.
"""

import re
from collections.abc import Iterator
from itertools import count
from types import MappingProxyType
from typing import Any
from zlib import crc32

from sinklens.tasks.draws import Draws, begin_items
from sinklens.tasks.item import Item
from sinklens.tasks.word_narration import Narration, narrate
from sinklens.tasks.word_plots import tell
from sinklens.tasks.word_stories import HELD_OUT, Story

NAME = "word_problems"
LONGEST = 110  # pieces a problem and its solution may take: words, digits and marks
TEST_SHARE = 50  # one problem in so many is kept for the split "test"
_PIECE = re.compile(r"\d|[A-Za-z]+|####|[^\w\s]|\n")
_FINAL = re.compile(r"#### *\$? *([0-9]+)(?:\.0+)?(?!\.?[0-9])")
_EQUATION = re.compile(r" *([0-9]{1,9}) *([-+*/]) *([0-9]{1,9}) *= *([0-9]{1,9}) *")


def items(split: str, *, seed: Any = 0, start: Any = 0) -> Iterator[Item]:
    """The problems of a split from number `start` on, without end."""
    draws = begin_items(NAME, split, seed=seed, start=start)
    return (_item(draws, split, index) for index in count(start))


def _item(draws: Draws, split: str, index: int) -> Item:
    draws.at(index)
    share = draws.unit()
    steps = 2 if share < 0.45 else 3 if share < 0.8 else 4
    while True:
        story, world = tell(draws, split, steps=steps)
        told = narrate(story, world)
        prompt = f"Question: {' '.join(told.sentences)}\nAnswer:"
        worked = "".join([f"\n{a} {sign} {b} = {c}" for a, sign, b, c in story.equations])
        answer = f"{worked}\n#### {story.amount}"
        if _belongs(split, story, told, prompt) and len(_PIECE.findall(prompt + answer)) <= LONGEST:
            break
    facts = {
        "answer": story.amount,
        "steps": steps,
        "equations": tuple(story.equations),
        "given": tuple(story.given),
        "asides": tuple(story.asides),
    }
    return Item(
        task=NAME,
        split=split,
        index=index,
        template=" ".join(told.wordings),
        prompt=prompt,
        answer=answer,
        facts=MappingProxyType(facts),
    )


def _belongs(split: str, story: Story, told: Narration, prompt: str) -> bool:
    if split == "templates":
        return told.reserved
    if split == "numbers":
        return any(HELD_OUT[0] <= number <= HELD_OUT[1] for number in story.given)
    return (crc32(prompt.encode()) % TEST_SHARE == 0) == (split == "test")


def grade(item: Item, text: str) -> bool:
    """Whether the number after the first "####" of what a model wrote is the answer; nothing behind it is read.

    Spaces and a dollar sign before the number are let pass, and a period after it.
    """
    at = text.find("####")
    found = _FINAL.match(text, at) if at >= 0 else None
    return found is not None and found[1].lstrip("0") == str(item.facts["answer"])


def solution_is_right(item: Item, text: str) -> bool:
    """Whether, besides the answer, every line before it is a true equation and the last one gives the answer."""
    lines = [line for line in text.split("####", 1)[0].split("\n") if line.strip()]
    found = [_EQUATION.fullmatch(line) for line in lines]
    equations = [match.groups() for match in found if match is not None]
    if not equations or len(equations) < len(lines) or not grade(item, text):
        return False
    return all(_holds(*parts) for parts in equations) and int(equations[-1][3]) == item.facts["answer"]


def _holds(left: str, operator: str, right: str, result: str) -> bool:
    a, b, c = int(left), int(right), int(result)
    if operator == "/":
        return b != 0 and a == b * c
    return c == {"+": a + b, "-": a - b, "*": a * b}[operator]
