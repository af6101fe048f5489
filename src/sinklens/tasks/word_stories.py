"""A story of `word_problems` before it is put into words: what is told, and what is computed."""

from typing import Any, NamedTuple

from sinklens.tasks.draws import Draws

SMALL, HELD_OUT, LARGE = (2, 20), (21, 25), (26, 50)  # numbers to state; training states none of the second
MOST = 200  # no result is larger


class UnfitError(Exception):
    """The numbers drawn do not fit the story; draw again."""


class Equation(NamedTuple):
    """left operator right = result."""

    left: int
    operator: str
    right: int
    result: int


class Story:
    """What has been told so far; `amount` is what the next change or the question starts from."""

    __slots__ = (
        "amount", "asides", "changed", "draws", "equations", "given", "other_amount", "split", "swapped_at", "told",
    )  # fmt: skip

    def __init__(self, draws: Draws, split: str) -> None:
        self.draws, self.split = draws, split
        self.told: list[tuple[str, dict[str, Any]]] = []  # key of the wording, what fills it
        self.equations: list[Equation] = []
        self.given: list[int] = []  # numbers stated that the solution needs
        self.asides: list[int] = []  # numbers stated that it does not
        self.amount = 0
        self.other_amount = 0  # what the person has whom the story is not about
        self.swapped_at = -1  # from which sentence on it is about the other person; -1: never
        self.changed = False  # whether anything happened since the opening

    def say(self, key: str, **fields: Any) -> None:
        self.told.append((key, fields))

    def swap_people(self) -> None:
        """From here on the story is about the other person."""
        self.swapped_at = len(self.told)

    def digress(self, key: str) -> None:
        """State a number that is of no use."""
        low, high = (6, SMALL[1]) if self.draws.chance(0.7) else LARGE
        number = self.draws.between(low, high)
        self.asides.append(number)
        self.say(key, n=number)

    def number(self, low: int, high: int) -> int:
        """A number to state, from low to high and from what the split may state: mostly a small one."""
        draw = self.draws.unit()
        band = SMALL if draw < 0.7 else LARGE
        if self.split == "numbers" and draw > 0.4:
            band = HELD_OUT
        if band[0] > high:
            band = SMALL
        return self.factor(max(low, band[0]), min(high, band[1]))

    def factor(self, low: int, high: int) -> int:
        """A number to state, from low to high, each as likely."""
        if low > high:
            raise UnfitError
        value = self.draws.between(low, high)
        self.given.append(value)
        return value

    def step(self, left: int, operator: str, right: int) -> int:
        """Compute a result of the worked solution; what is divided is known to divide."""
        if operator == "+":
            result = left + right
        elif operator == "-":
            result = left - right
        elif operator == "*":
            result = left * right
        else:
            result = left // right
        if not 1 <= result <= MOST:
            raise UnfitError
        self.equations.append(Equation(left, operator, right, result))
        return result
