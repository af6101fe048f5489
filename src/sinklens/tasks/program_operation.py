"""One operation of a small program: how it reads, how it is written in Python, what it computes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# How tightly a piece of Python binds; an operand that binds less than it must gets parentheses.
COMPARISON, SUM, PRODUCT, POWER, ATOM = range(5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """What is done to a value. `{v}` is the operand, `{k}` a constant; of a pair the code has `{a}` and `{b}`.

    Two voices: a step is an order ("add 3 to it"), a noun names the result ("3 more than x"). In nouns nothing
    follows an operand that could be taken for a part of it, so that they nest. The last phrasing of each voice is
    reserved for the split "templates"; its words occur in others.
    """

    name: str
    takes: str  # number, pair or list
    gives: str  # number, truth or list
    code: str
    level: int = ATOM  # how tightly the code binds
    needs: int = COMPARISON  # how tightly its operand must bind to go without parentheses
    compute: Callable[[Any, int], Any]  # of the operand and the constant
    steps: tuple[str, ...]
    nouns: tuple[str, ...]

    @cached_property
    def has_constant(self) -> bool:
        return "{k}" in self.code

    @cached_property
    def inner_nouns(self) -> tuple[int, ...]:
        """Nouns of training that may stand inside another: "3 times 2 more than x" would have two readings."""
        usual = range(len(self.nouns) - 1)
        return tuple(i for i in usual if not self.nouns[i].startswith(("{k}", "how", "what")))


Chain = tuple[tuple[Operation, int], ...]  # operations in the order in which they are done, each with its constant


def evaluate(chain: Chain, value: Any) -> Any:
    """What the chain makes of a value: a number, a list, or two numbers."""
    for operation, constant in chain:
        value = operation.compute(value, constant)
    return value


def expression(chain: Chain, parameters: tuple[str, ...]) -> str:
    """The chain as a Python expression of the parameters."""
    text, level = parameters[0], ATOM
    for operation, constant in chain:
        operand = text if level >= operation.needs else f"({text})"
        text = operation.code.format(v=operand, k=constant, a=parameters[0], b=parameters[-1])
        level = operation.level
    return text
