"""Small programs: what the items promise, that hidden cases tell right from wrong, and grading in the sandbox."""

import hashlib
import re
from collections import Counter
from functools import cache
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.tasks import sandbox
from sinklens.tasks.draws import Draws
from sinklens.tasks.item import SPLITS, Item
from sinklens.tasks.program_cases import hidden_cases, shown_cases
from sinklens.tasks.program_operation import Chain, Operation, evaluate, expression
from sinklens.tasks.program_wording import OPENINGS, draw_chain
from sinklens.tasks.small_programs import (
    CONSTANTS,
    OPERATIONS,
    PARAMETERS,
    TASK,
    grade,
    grade_all,
    is_test_prompt,
    items,
    same,
)

ALL = [operation for operations in OPERATIONS.values() for operation in operations]
needs_sandbox = pytest.mark.skipif(sandbox.how() is None, reason="no sandbox works here")


@cache
def take(split: str, count: int) -> list[Item]:
    return list(islice(items(split), count))


def sample(split: str) -> list[Item]:
    """Fewer of "test": each takes fifty draws, and the checks of types at run time make them slow here."""
    return take(split, {"train": 600, "test": 30}.get(split, 300))


def sentence(item: Item) -> str:
    return item.prompt.split('"""')[1].split("\n")[0]


def pieces(item: Item) -> list[tuple[Operation, int, bool]]:
    """The operations that the template names, the phrasing of each, and whether it is a reserved one."""
    frame, *names = item.template.split()
    by_name = {operation.name: operation for operation in ALL}
    found = []
    for name, pick in (entry.split(".") for entry in names):
        phrasings = by_name[name].nouns if frame.startswith("noun") else by_name[name].steps
        found.append((by_name[name], int(pick), int(pick) == len(phrasings) - 1))
    return found


def reference(item: Item, arguments: tuple[Any, ...]) -> Any:
    """What the item's own answer computes."""
    names = re.match(r"def \w+\((.*)\):", item.prompt)
    assert names is not None
    return eval(item.answer.strip(), dict(zip(names[1].split(", "), arguments, strict=True)))


def test_the_text_of_an_item() -> None:
    item = next(items("train", seed=5, start=7))
    assert item.prompt == (
        'def answer(a):\n    """Return 2 more than the product of 3 and a.\n\n'
        "    >>> answer(11)\n    35\n    >>> answer(14)\n    44\n"
        '    """\n    return'
    )
    assert item.answer == " a * 3 + 2\n"
    assert (item.task, item.split, item.index) == ("small_programs", "train", 7)


def test_the_items_stay_as_they_are() -> None:
    """Trained models and published scores are about these items."""
    texts = [f"{item.prompt}{item.answer}{item.facts['cases']}" for split in SPLITS for item in sample(split)]
    assert hashlib.sha256("".join(texts).encode()).hexdigest()[:16] == "d72a522e8c34a2b2"


@pytest.mark.parametrize("split", SPLITS)
def test_an_item_depends_on_its_index_alone(split: str) -> None:
    whole = sample(split)
    assert list(islice(items(split, start=16), 4)) == whole[16:20]
    assert [item.index for item in whole] == list(range(len(whole)))
    assert list(islice(items(split, seed=1), 4)) != whole[:4]


def test_splits_hold_what_they_say() -> None:
    for split in SPLITS:
        for item in sample(split):
            asked = sentence(item) + item.answer
            assert ("7" in asked) == (split == "numbers"), asked
            assert any(reserved for _, _, reserved in pieces(item)) == (split == "templates")
            if split in ("train", "test"):
                assert is_test_prompt(item.prompt) == (split == "test")


def test_every_operation_and_hundreds_of_compositions_occur() -> None:
    chains = [tuple(operation.name for operation, _, _ in pieces(item)) for item in take("train", 2000)]
    assert {len(chain) for chain in chains} == {2, 3}
    assert 0.25 < sum(len(chain) == 3 for chain in chains) / len(chains) < 0.45
    assert len(set(chains)) > 400
    seen = Counter(name for chain in chains for name in chain)
    assert set(seen) == {operation.name for operation in ALL}
    assert min(seen.values()) > 20


def test_prompts_rarely_repeat() -> None:
    assert len({item.prompt for item in take("train", 2000)}) > 1990


@pytest.mark.parametrize("operation", ALL, ids=lambda operation: operation.name)
def test_phrasings(operation: Operation) -> None:
    """At least five for training, all different, and reserved ones in words that training knows."""
    usual = [*operation.steps[:-1], *operation.nouns[:-1]]
    reserved = [operation.steps[-1], operation.nouns[-1]]
    assert len(set(usual)) == len(usual) >= 5
    assert not set(reserved) & {
        phrase for other in ALL for phrase in (*other.steps[:-1], *other.nouns[:-1]) if other.takes == operation.takes
    }
    assert len(operation.inner_nouns) >= 2
    known = {
        word.lower() for other in ALL for phrase in (*other.steps[:-1], *other.nouns[:-1]) for word in phrase.split()
    } | {opening.lower() for opening in OPENINGS}
    assert {word.lower() for phrase in reserved for word in phrase.split()} <= known
    for phrase in (*usual, *reserved):
        assert phrase.count("{v}") == 1
        assert ("{k}" in phrase) == operation.has_constant


@pytest.mark.parametrize("split", ["train", "templates"])
def test_a_noun_that_starts_with_a_number_never_stands_inside_another(split: str) -> None:
    """ "3 times 2 more than x" would have two readings."""
    for item in sample(split):
        if item.template.startswith("noun"):
            for operation, pick, _ in pieces(item)[:-1]:
                assert not operation.nouns[pick].startswith(("{k}", "how"))


@pytest.mark.parametrize("split", SPLITS)
def test_answers_give_the_shown_and_the_hidden_results(split: str) -> None:
    for item in sample(split):
        name = item.facts["entry_point"]
        shown = re.findall(rf">>> {name}\((.*)\)\n    (.*)\n", item.prompt)
        assert len(shown) == 2
        inputs = [eval(f"({arguments},)") for arguments, _ in shown]
        for arguments, (_, result) in zip(inputs, shown, strict=True):
            assert repr(reference(item, arguments)) == result
        hidden = [arguments for arguments, _ in item.facts["cases"]]
        assert 8 <= len(hidden) == len(set(map(repr, hidden)))
        assert not [arguments for arguments in hidden if arguments in inputs]
        for arguments, result in item.facts["cases"]:
            assert same(reference(item, arguments), result)


def test_edges_are_among_the_hidden_cases() -> None:
    for item in sample("train"):
        first = pieces(item)[0][0]
        inputs = [arguments for arguments, _ in item.facts["cases"]]
        if first.takes == "number":
            assert min(inputs) < (0,) and max(inputs) >= (100,) and ((0,) in inputs or "(0)" in item.prompt)
        if first.takes == "list":
            numbers = [number for (values,) in inputs for number in values]
            assert min(numbers) < 0 < max(numbers)
            try:
                reference(item, ([],))
            except (IndexError, ValueError):
                assert ([],) not in inputs
            else:
                assert ([],) in inputs


def drawn_chain(seed: int) -> tuple[Chain, tuple[str, ...], Draws]:
    draws = Draws("test", "train", seed=0)
    draws.at(seed)
    takes = draws.pick(tuple(OPERATIONS))
    chain = tuple((operation, draws.pick(CONSTANTS)) for operation in draw_chain(OPERATIONS, takes, draws))
    return chain, PARAMETERS[takes][0], draws


def passes(code: str, parameters: tuple[str, ...], cases: list[tuple[Any, Any]]) -> bool:
    for value, result in cases:
        arguments = value if isinstance(value, tuple) else (value,)
        try:
            if not same(eval(code, dict(zip(parameters, arguments, strict=True))), result):
                return False
        except Exception:
            return False
    return True


def test_obvious_wrong_programs_fail_the_hidden_cases() -> None:
    """A parameter handed back, a constant result, an operation left out, a constant off by one."""
    accepted = 0
    for seed in range(200):
        chain, parameters, draws = drawn_chain(seed)
        shown = shown_cases(chain, draws)
        cases = shown and hidden_cases(chain, shown, draws)
        if not shown or not cases:
            continue
        accepted += 1
        assert passes(expression(chain, parameters), parameters, cases)
        wrong = [*parameters, "None", "True", "False", "[]", "0", *(repr(result) for _, result in cases + shown)]
        for i, (operation, constant) in enumerate(chain):
            for names in (parameters, parameters[::-1]):
                wrong.append(expression(chain[:i] + chain[i + 1 :], names))
            if operation.has_constant:
                for other in (constant - 1, constant + 1):
                    wrong.append(expression((*chain[:i], (operation, other), *chain[i + 1 :]), parameters))
        for code in wrong:
            assert not passes(code, parameters, cases), (code, expression(chain, parameters))
    assert accepted > 80


@pytest.mark.parametrize(
    "names", ["absolute square", "sort total", "reverse length", "keep_even count_odd", "times even"]
)
def test_chains_with_a_pointless_operation_are_refused(names: str) -> None:
    """Without one of the operations, or with a constant, they would pass: no cases tell."""
    by_name = {operation.name: operation for operation in ALL}
    chain = tuple((by_name[name], 2) for name in names.split())
    draws = Draws("test", "train", seed=0)
    for index in range(20):
        draws.at(index)
        assert hidden_cases(chain, [], draws) is None


LISTS = st.lists(st.integers(-9, 9), min_size=1, max_size=5)
VALUES = {"number": st.integers(-50, 50), "pair": st.tuples(st.integers(-20, 20), st.integers(-20, 20)), "list": LISTS}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_expression_computes_what_the_operations_do(data: st.DataObject) -> None:
    """Parentheses are right for every order of operations, the drawn chains' or not."""
    takes = kind = data.draw(st.sampled_from(sorted(OPERATIONS)))
    chain: list[tuple[Operation, int]] = []
    while kind in OPERATIONS and len(chain) < 5:
        operation = data.draw(st.sampled_from(OPERATIONS[kind]))
        chain.append((operation, data.draw(st.integers(2, 9))))
        kind = operation.gives
    value = data.draw(VALUES[takes])
    parameters = PARAMETERS[takes][0]
    arguments = value if isinstance(value, tuple) else (value,)
    try:
        expected = evaluate(tuple(chain), value)
    except (IndexError, ValueError) as error:
        with pytest.raises(type(error)):
            eval(expression(tuple(chain), parameters), dict(zip(parameters, arguments, strict=True)))
        return
    assert same(eval(expression(tuple(chain), parameters), dict(zip(parameters, arguments, strict=True))), expected)


def test_items_are_short() -> None:
    """Words, runs of punctuation and of blanks count one, digits one each."""
    token = re.compile(r" ?[A-Za-z_]+|\d| ?[^\sA-Za-z_\d]+|\s+(?!\S)|\s+")
    for split in SPLITS:
        for item in sample(split):
            assert len(token.findall(item.answer)) <= 40
            assert len(token.findall(item.prompt + item.answer)) <= 112


@needs_sandbox
@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_is_right_and_no_text_is_not(split: str) -> None:
    some = sample(split)[:60]
    assert grade_all(some, [item.answer for item in some]) == [True] * len(some)
    assert grade_all(some, [""] * len(some)) == [False] * len(some)


def made(prompt: str, cases: tuple[Any, ...]) -> Item:
    facts = {"entry_point": "f", "cases": cases}
    return Item(task=TASK, split="train", index=0, template="", prompt=prompt, answer="", facts=facts)


@needs_sandbox
def test_what_a_text_may_look_like() -> None:
    cases = (((4,), 14), ((0,), 2), ((-1,), -1), ((7,), 23))
    item = made("def f(x):\n    return", cases)
    right = [" x * 3 + 2", " 2 + x + x + x\nnonsense(", " (lambda y: 3 * y + 2)(x)\r    1 / 0", " int(x * 3 + 2)  # so"]
    wrong = [" x * 3", " 14", " 3.0 * x + 2", " str(x * 3 + 2)", "x * 3 + 2", " (x * 3 + 2", "\n    return x * 3 + 2"]
    wrong += [" x * 3 + 2 if x else 1 / 0", " (x * 3 + 2,)", " exit()", " '\\0", " \ud800", " print(x * 3 + 2)"]
    assert grade_all([item] * len(right), right) == [True] * len(right)
    assert dict(zip(wrong, grade_all([item] * len(wrong), wrong), strict=True)) == dict.fromkeys(wrong, False)
    assert grade(item, right[0])
    assert not grade(item, wrong[0])


@needs_sandbox
def test_true_is_not_one() -> None:
    cases = (((4,), True), ((5,), False))
    item = made("def f(x):\n    return", cases)
    assert grade_all([item] * 2, [" x % 2 == 0", " 1 - x % 2"]) == [True, False]


def test_same_looks_at_types_all_the_way_down() -> None:
    assert same([1, [True, "a"]], [1, [True, "a"]])
    for value, expected in (([1], [True]), (1, 1.0), ([1, 2], [1]), ([[0]], [[False]]), (None, 0), ("1", 1)):
        assert not same(value, expected)
        assert not same(expected, value)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown split 'validation'; expected one of 'train', 'test'"):
        items("validation")
    with pytest.raises(UsageError, match="start is -1"):
        items("train", start=-1)
    with pytest.raises(UsageError, match="2 items but 1 texts; give one text for each item"):
        grade_all(take("train", 2), [""])
