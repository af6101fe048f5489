'''One-line functions asked for in words, with two examples: what HumanEval is to a paper, for small models.

    def f(x):
        """Return 2 more than the product of 3 and x.

        >>> f(4)
        14
        >>> f(1)
        5
        """
        return

The answer is the expression and a newline; a model's text counts up to its first newline. It is run on hidden cases in
a sandbox (`sinklens.tasks.sandbox`); type and value must be right, so True is not 1.

Splits: constants of training are 2 to 9 without 7, "numbers" has a 7; "templates" has a phrasing that training never
uses; "test" holds the prompts whose checksum is a multiple of 50, which training leaves out.
'''

import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError
from sinklens.tasks.draws import Draws, begin_items
from sinklens.tasks.item import Item
from sinklens.tasks.list_operations import LIST_OPERATIONS
from sinklens.tasks.list_summaries import LIST_SUMMARIES
from sinklens.tasks.number_operations import NUMBER_OPERATIONS
from sinklens.tasks.pair_operations import PAIR_OPERATIONS
from sinklens.tasks.program_cases import Case, hidden_cases, shown_cases
from sinklens.tasks.program_operation import Chain, expression
from sinklens.tasks.program_wording import describe, draw_chain
from sinklens.tasks.sandbox import Limits, Program, run

TASK = "small_programs"
HELD_OUT = 7  # the constant of "numbers"
CONSTANTS = (2, 3, 4, 5, 6, 8, 9)
TEST_SHARE = 50  # one prompt in so many belongs to "test"
FUNCTIONS = ("f", "g", "func", "solve", "answer")
PARAMETERS = {
    "number": (("x",), ("n",), ("a",), ("num",), ("m",)),
    "pair": (("x", "y"), ("a", "b"), ("m", "n"), ("p", "q")),
    "list": (("items",), ("nums",), ("xs",), ("data",), ("row",)),
}
OPERATIONS = {"number": NUMBER_OPERATIONS, "pair": PAIR_OPERATIONS, "list": (*LIST_SUMMARIES, *LIST_OPERATIONS)}
LINE_END = re.compile(r"[\r\n]")  # Python ends a line at either
GRADING_LIMITS = Limits(seconds=1.0)
# How often a program starts from each kind of value.
KINDS = ("number",) * 7 + ("pair",) * 3 + ("list",) * 10


def items(split: str, *, seed: int = 0, start: int = 0) -> Iterator[Item]:
    """Endless problems of a split; the i-th depends on the split, the seed and i alone."""
    draws = begin_items(TASK, split, seed=seed, start=start)
    return (_item(split, index, draws) for index in count(start))


def _item(split: str, index: int, draws: Draws) -> Item:
    draws.at(index)
    while True:
        item = _drawn(split, index, draws)
        if item is not None:
            return item


def _drawn(split: str, index: int, draws: Draws) -> Item | None:
    """One draw; None where it belongs to another split or its cases would not tell right from wrong."""
    takes = draws.pick(KINDS)
    operations = draw_chain(OPERATIONS, takes, draws)
    constants = [draws.pick(CONSTANTS) for _ in operations]
    if split == "numbers":
        with_constant = [place for place, operation in enumerate(operations) if operation.has_constant]
        if not with_constant:
            return None
        constants[draws.pick(with_constant)] = HELD_OUT
    chain: Chain = tuple(zip(operations, constants, strict=True))
    shown = shown_cases(chain, draws)
    if shown is None:
        return None
    name, parameters = draws.pick(FUNCTIONS), draws.pick(PARAMETERS[takes])
    sentence, template = describe(chain, parameters, draws, reserved=split == "templates")
    prompt = _prompt(name, parameters, sentence, shown)
    if split in ("train", "test") and is_test_prompt(prompt) != (split == "test"):
        return None
    hidden = hidden_cases(chain, shown, draws)
    if hidden is None:
        return None
    cases = tuple((_arguments(value), result) for value, result in hidden)
    return Item(
        task=TASK,
        split=split,
        index=index,
        template=template,
        prompt=prompt,
        answer=f" {expression(chain, parameters)}\n",
        facts=MappingProxyType({"entry_point": name, "cases": cases}),
    )


def grade(item: Item, text: str, *, unsafe: bool = False) -> bool:
    """Whether the program that `text` completes is right on every hidden case."""
    return grade_all([item], [text], unsafe=unsafe)[0]


def grade_all(
    items: Sequence[Item], texts: Sequence[str], *, unsafe: bool = False, limits: Limits | None = None
) -> list[bool]:
    """Grade many texts in one sandbox; `unsafe` runs them unprotected where there is none."""
    if len(items) != len(texts):
        raise UsageError(f"{len(items)} items but {len(texts)} texts; give one text for each item")
    programs = [
        Program(
            source=item.prompt + LINE_END.split(text, maxsplit=1)[0] + "\n",
            entry=item.facts["entry_point"],
            calls=[arguments for arguments, _ in item.facts["cases"]],
        )
        for item, text in zip(items, texts, strict=True)
    ]
    outcomes = run(programs, limits=limits or GRADING_LIMITS, unsafe=unsafe)
    return [
        outcome.error is None and same(list(outcome.values), [result for _, result in item.facts["cases"]])
        for item, outcome in zip(items, outcomes, strict=True)
    ]


def same(value: Any, expected: Any) -> bool:
    """Equal in value and in type, all the way down: True is not 1."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return bool(value == expected)


def is_test_prompt(prompt: str) -> bool:
    """Whether a prompt of the training kind is kept for "test"."""
    return zlib.crc32(prompt.encode()) % TEST_SHARE == 0


def _prompt(name: str, parameters: tuple[str, ...], sentence: str, shown: list[Case]) -> str:
    examples = "".join(
        f"    >>> {name}({', '.join(map(repr, _arguments(value)))})\n    {result!r}\n" for value, result in shown
    )
    return f'def {name}({", ".join(parameters)}):\n    """{sentence}\n\n{examples}    """\n    return'


def _arguments(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
