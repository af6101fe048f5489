"""The inputs of a small program: two that its docstring shows, and the hidden ones that decide.

Hidden inputs hold edge values (zero, negative numbers, the program's constants and their neighbours, a large number,
an empty list where that is defined) and random ones. They are accepted only if they tell the program from the obvious
wrong ones: a parameter handed back, a constant result, one operation left out, a constant off by one.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sinklens.tasks.draws import Draws
from sinklens.tasks.program_operation import Chain, evaluate

HIDDEN = 10  # cases that decide; fewer, but no less than 8, where some inputs have no value

Case = tuple[Any, Any]  # the value the chain starts from and what it makes of it


def shown_cases(chain: Chain, draws: Draws) -> list[Case] | None:
    """Two examples with different results of few digits; None when a few draws find none."""
    takes, gives = chain[0][0].takes, chain[-1][0].gives
    negative = any(operation.name in ("absolute", "at_least") for operation, _ in chain)
    cases: list[Case] = []
    for _ in range(8):
        value = _short_value(takes, draws, 3 if gives == "list" else 4, negative and not cases)
        try:
            result = evaluate(chain, value)
        except (IndexError, ValueError):  # the first or the largest of nothing
            continue
        if not all(-1000 < number < 1000 for number in (result if gives == "list" else (result,))):
            continue
        if not cases or result != cases[0][1]:
            cases.append((value, result))
            if len(cases) == 2:
                return cases
    return None


def hidden_cases(chain: Chain, shown: list[Case], draws: Draws) -> list[Case] | None:
    """Cases beyond the shown ones that no obvious wrong program passes; None when the drawn ones do not tell."""
    seen = [value for value, _ in shown]
    cases: list[Case] = []
    for value in _long_values(chain, draws):
        if value in seen:
            continue
        seen.append(value)
        try:
            cases.append((value, evaluate(chain, value)))
        except (IndexError, ValueError):
            continue
        if len(cases) == HIDDEN:
            break
    results = [result for _, result in cases]
    if len(cases) < 8 or any(results.count(result) > len(results) - 2 for result in results):
        return None
    return cases if _tells_apart(chain, cases) else None


def _tells_apart(chain: Chain, cases: list[Case]) -> bool:
    """Whether every wrong program gives some case another result."""
    return not any(
        all(_same(shorter, value if part is None else value[part], result) for value, result in cases)
        for part, shorter in _wrong(chain)
    )


def _wrong(chain: Chain) -> Iterator[tuple[int | None, Chain]]:
    """Wrong chains that give the right kind of result, each with the part of a pair that it starts from."""
    takes, gives = chain[0][0].takes, chain[-1][0].gives
    for part in (0, 1) if takes == "pair" else (None,):
        for shorter in ((), chain[1:]):
            if _fits(shorter, "number" if takes == "pair" else takes, gives):
                yield part, shorter
    for place, (operation, constant) in enumerate(chain):
        before, after = chain[:place], chain[place + 1 :]
        if place and _fits(before + after, takes, gives):
            yield None, before + after
        if operation.has_constant:
            yield None, (*before, (operation, constant - 1), *after)
            yield None, (*before, (operation, constant + 1), *after)


def _fits(chain: Chain, takes: str, gives: str) -> bool:
    kinds = [takes]
    for operation, _ in chain:
        if operation.takes != kinds[-1]:
            return False
        kinds.append(operation.gives)
    return kinds[-1] == gives


def _same(chain: Chain, value: Any, result: Any) -> bool:
    try:
        return bool(evaluate(chain, value) == result)
    except (IndexError, ValueError):
        return False


def _short_value(takes: str, draws: Draws, length: int, negative: bool) -> Any:
    low = -9 if negative else 0
    if takes == "number":
        return draws.between(low, -2 if negative else 15)
    if takes == "pair":
        return (draws.between(low, 12), draws.between(low, 12))
    return [draws.between(low, 12) for _ in range(length - (draws.chance(0.4)))]


def _long_values(chain: Chain, draws: Draws) -> Iterator[Any]:
    """Candidates, the edges first; one of the constants sets where most of the numbers lie."""
    constants = [constant for operation, constant in chain if operation.has_constant] or [5]
    near = draws.pick(constants)
    takes = chain[0][0].takes
    if chain[-1][0].name in ("greater", "less"):
        yield from _thresholds(chain)
    if takes == "number":
        yield from (0, -1, near, near + 1, -near, draws.between(100, 199))
        for _ in range(10):
            yield draws.between(-12, 30)
    elif takes == "pair":
        yield from ((0, 0), (near, near + 1), (draws.between(1, 9), -near), (near, near), (-3, 2), (120, 13))
        for _ in range(10):
            yield (draws.between(-9, 20), draws.between(-9, 20))
    else:
        yield from ([], *([k + 1, k, k - 1] for k in constants), [-2, -5, -1, -4], [6, 6, 1, 1, 9], [100, 0, -30, 15])
        for _ in range(8):
            yield [draws.between(-4, 4 + 2 * near) for _ in range(draws.between(3, 7))]


def _thresholds(chain: Chain) -> Iterator[Any]:
    """Neighbours between which a comparison changes its verdict: they tell a constant from the next."""
    scales: tuple[Callable[[int], Any], ...] = (lambda n: n,)
    if chain[0][0].takes == "pair":
        scales = (lambda n: (n, 0), lambda n: (30, n), lambda n: (1, n))
    elif chain[0][0].takes == "list":
        scales = (lambda n: [n], lambda n: [8, 2, n], lambda n: list(range(9, 9 + n)))
    for scale in scales:
        before = None
        for number in range(-6, 20):
            value = scale(number)
            try:
                result = evaluate(chain, value)
            except (IndexError, ValueError):
                continue
            if before is not None and result != before[1]:
                yield from (before[0], value)
                break
            before = (value, result)
