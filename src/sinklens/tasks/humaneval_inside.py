"""Runs inside the sandbox for `humaneval`, which sends it there as text. Standard library alone.

Three programs for each completion, and only the second has its code in it:

    recorded   the published solution under the published tests: which arguments they call it with
    answered   the completion on those arguments: what it returns
    judged     the published tests on a function that gives those values back

Values pass between them as plain data, tagged by type: an object with an `==` of its own does not get through.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

ITERATED = 10_000  # the most that is taken from an iterator
OTHER_CALLS = "other calls"
_SCALARS = (bool, int, float, str)
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.items()))  # they equal sets
_NUMBERS = {"complex": "builtins", "Fraction": "fractions", "Decimal": "decimal"}


def recorded(source: str, entry: str, test: str) -> list[Any]:
    """The arguments of each call that the tests make."""
    calls: list[Any] = []

    def candidate(*arguments: Any, **named: Any) -> Any:
        calls.append([to_data(arguments), to_data(named)])
        return solution(*arguments, **named)

    space = _executed(source)
    solution = space[entry]
    _check(space, test, candidate)
    return calls


def answered(source: str, entry: str, calls: list[Any]) -> list[Any]:
    """What the function of `source` returns for each call."""
    function = _executed(source)[entry]
    return [to_data(function(*from_data(arguments), **from_data(named))) for arguments, named in calls]


def judged(source: str, test: str, calls: list[Any], answers: list[Any]) -> bool | str:
    """True where the tests accept these values, else what they raise; OTHER_CALLS where they ask for other values."""
    given = iter(zip(calls, answers, strict=True))
    missing: list[Any] = []

    def candidate(*arguments: Any, **named: Any) -> Any:
        call, answer = next(given, (None, None))
        if call != [to_data(arguments), to_data(named)]:
            missing.append(arguments)
        return from_data(answer)

    try:
        _check(_executed(source), test, candidate)
    except BaseException:
        if not missing:  # else it is about a value that was not for this call
            raise
    return OTHER_CALLS if missing else True


def _executed(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "<program>", "exec"), space)
    return space


def _check(space: dict[str, Any], test: str, candidate: Callable[..., Any]) -> None:
    """Run the tests, with random draws that are the same each time."""
    import ast
    import random

    random.seed(0)
    tree = ast.parse(test)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.msg = None  # some messages call the candidate once more, when all is decided
    exec(compile(tree, "<test>", "exec"), space)
    space["check"](candidate)


def to_data(value: Any) -> Any:
    """A value as JSON can hold it: scalars as they are, the rest as [type, content]. Subclasses become their base."""
    if value is None or type(value) in _SCALARS:
        return value
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    return list(_tagged(value))


def _tagged(value: Any) -> tuple[str, Any]:
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return name, [to_data(entry) for entry in value]
    if isinstance(value, dict):
        return "dict", [[to_data(key), to_data(entry)] for key, entry in value.items()]
    if isinstance(value, _VIEWS):
        return "set", [to_data(entry) for entry in value]
    if type(value).__name__ in _NUMBERS:
        return type(value).__name__, str(value)
    if isinstance(value, Iterable):
        return "iterator", [to_data(entry) for entry in islice(value, ITERATED)]
    return "object", bool(value)


def from_data(data: Any) -> Any:
    """The value back; of an object of any other type it is only left whether it counts as true."""
    if not isinstance(data, list):
        return data
    name, content = data
    if name == "object":
        return Something() if content else Nothing()
    if name in _NUMBERS:
        return getattr(__import__(_NUMBERS[name]), name)(content)
    if name == "dict":
        return {from_data(key): from_data(entry) for key, entry in content}
    values = [from_data(entry) for entry in content]
    return iter(values) if name == "iterator" else _CONTAINERS[name](values)


class Something:
    """Equal to itself alone, and true."""


class Nothing:
    """Equal to itself alone, and false."""

    def __bool__(self) -> bool:
        return False
