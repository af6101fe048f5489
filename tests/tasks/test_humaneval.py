"""HumanEval: its own solutions pass, prompts alone fail, and a completion that forges success gains nothing."""

import gzip
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.tasks import sandbox
from sinklens.tasks.humaneval import cut, grade, grade_all, items
from sinklens.tasks.humaneval_inside import OTHER_CALLS, answered, from_data, judged, recorded, to_data
from sinklens.tasks.item import Item
from sinklens.tasks.sandbox import Limits

SAMPLE = Path(__file__).parents[1] / "data" / "tasks" / "humaneval"
needs_sandbox = pytest.mark.skipif(sandbox.how() is None, reason="no sandbox works here")
DOUBLE = Item(
    task="humaneval",
    split="test",
    index=0,
    template="double",
    prompt="def double(x):\n",
    answer="    return 2 * x\n",
    facts={
        "entry_point": "double",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate([1]) == [1, 1]\n",
    },
)


@needs_sandbox
def test_its_own_solutions_pass_and_prompts_alone_do_not() -> None:
    """Among them tests with helpers of the prompt, random arguments, and messages that call the function again."""
    all_items = list(items("test", data=SAMPLE))
    assert len(all_items) == 10
    assert grade_all(all_items, [item.answer for item in all_items]) == [True] * 10
    assert grade_all(all_items, [""] * 10) == [False] * 10
    assert grade_all(all_items, ["    return True\n"] * 10) == [False] * 10


@needs_sandbox
def test_what_a_completion_may_look_like() -> None:
    right = [
        DOUBLE.answer,
        "    return x + x\n\ndef other(:\n",  # cut before what does not compile
        "    return x + x\n\nprint(double(1)\n",
        "    import math\n    return x * math.floor(2.5)",
    ]
    wrong = [
        "    return x",
        "    return",
        "return 2 * x",
        "    return str(x + x)",
        "    while True:\n        pass",
        "    exit()",
    ]
    verdicts = grade_all([DOUBLE] * 10, right + wrong, limits=Limits(seconds=1.0))
    assert dict(zip(right + wrong, verdicts, strict=True)) == dict.fromkeys(right, True) | dict.fromkeys(wrong, False)
    assert grade(DOUBLE, right[0])
    assert not grade(DOUBLE, wrong[0])


EQUAL = "    class Equal(list):\n        __eq__ = lambda self, other: True\n        __hash__ = None\n"
FORGERIES = {
    "an object that equals everything": f"    {EQUAL.lstrip()}    return Equal()\n",
    "one that is no list": "    return type('E', (), {'__eq__': lambda s, o: True, '__bool__': lambda s: True})()\n",
    "the answer of the driver": (
        "    import os\n"
        "    for fd in range(3, 32):\n"
        "        try:\n"
        '            os.write(fd, b\'{"values": [true], "error": null}\')\n'
        "        except OSError:\n"
        "            pass\n"
        "    os._exit(0)\n"
    ),
    "an answer without values": (
        "    import os\n"
        "    for fd in range(3, 32):\n"
        "        try:\n"
        '            os.write(fd, b\'{"values": [], "error": null}\')\n'
        "        except OSError:\n"
        "            pass\n"
        "    os._exit(0)\n"
    ),
    "leaving early": "    import os\n    os._exit(0)\n",
    "other tests": "    global check\n    check = lambda candidate: None\n",
    "no assertions": "    import builtins\n    builtins.AssertionError = ValueError\n    raise SystemExit(0)\n",
    "another judge": (
        "    import sys\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        frame.f_globals.update(judged=lambda *a: True, to_data=lambda v: True, _check=lambda *a: None)\n"
        "        frame = frame.f_back\n"
        "    return 0\n"
    ),
}


@needs_sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_forged_success_is_no_success(name: str) -> None:
    assert not grade(DOUBLE, FORGERIES[name])


@needs_sandbox
@pytest.mark.parametrize(
    "values", ["true", "[]", "[6]", '[6, ["list", 5]]', '[6, ["os", "x"]]', '[["object", 1], 0]', "5"]
)
def test_forged_values_are_judged_as_values(values: str) -> None:
    """What the completion writes into the pipe reaches the tests only as plain data, and only if there is enough."""
    write = f'b\'{{"values": [{values}], "error": null}}\''
    text = f"    import os\n    for fd in range(3, 32):\n        try:\n            os.write(fd, {write})\n"
    text += "        except OSError:\n            pass\n    os._exit(0)\n"
    assert not grade(DOUBLE, text)
    assert grade(DOUBLE, text.replace(f"[{values}]", '[[6, ["list", [1, 1]]]]'))  # it knew the right ones


@needs_sandbox
def test_tests_that_cannot_be_used_are_refused() -> None:
    broken = Item(**{**vars(DOUBLE), "answer": "    return x\n"})
    with pytest.raises(
        UsageError, match=r"double: the solution in the file does not pass .*AssertionError.*as published"
    ):
        grade(broken, DOUBLE.answer)
    chained = "def check(candidate):\n    assert candidate(candidate(1)) == 4\n"
    dependent = Item(**{**vars(DOUBLE), "facts": {"entry_point": "double", "test": chained}})
    assert grade(dependent, DOUBLE.answer)
    with pytest.raises(UsageError, match="double: its tests call with arguments that depend on earlier results"):
        grade(dependent, "    return 5\n")
    with pytest.raises(UsageError, match="2 items but 1 texts; give one text for each item"):
        grade_all([DOUBLE] * 2, [""])


def test_the_three_programs() -> None:
    source, test = DOUBLE.prompt + DOUBLE.answer, DOUBLE.facts["test"]
    calls = recorded(source, "double", test)
    assert calls == [[["tuple", [3]], ["dict", []]], [["tuple", [["list", [1]]]], ["dict", []]]]
    answers = answered(source, "double", calls)
    assert answers == [6, ["list", [1, 1]]]
    assert judged(source, test, calls, answers) is True
    with pytest.raises(AssertionError):
        judged(source, test, calls, [6, ["tuple", [1, 1]]])
    assert judged(source, test, calls[:1], answers[:1]) == OTHER_CALLS
    swallowing = "def check(candidate):\n    try:\n        candidate(4)\n    except Exception:\n        pass\n"
    assert judged(source, swallowing, calls, answers) == OTHER_CALLS


def test_messages_of_assertions_are_not_calls() -> None:
    test = "def check(candidate):\n    assert candidate(1) == 2, str(candidate(9))\n"
    source = DOUBLE.prompt + DOUBLE.answer
    calls = recorded(source, "double", test)
    with pytest.raises(AssertionError):
        judged(source, test, calls, [3])


def test_random_arguments_are_the_same_in_both_programs() -> None:
    test = "import random\ndef check(candidate):\n    n = random.random()\n    assert candidate(n) == 2 * n\n"
    source = DOUBLE.prompt + DOUBLE.answer
    calls = recorded(source, "double", test)
    assert judged(source, test, calls, answered(source, "double", calls)) is True


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = (
    SCALARS
    | st.tuples(SCALARS, SCALARS)
    | st.frozensets(SCALARS, max_size=3)
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
)
VALUES = st.recursive(
    KEYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, inside containers too."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    return not isinstance(one, dict) or all(same(one[key], other[key]) for key in one)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(from_data(json.loads(json.dumps(to_data(value)))), value)


def test_what_becomes_of_other_values() -> None:
    class Cheat(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Thing:
        pass

    assert type(from_data(to_data(Cheat(5)))) is int
    assert from_data(to_data(Cheat(5))) != 6
    assert from_data(to_data(Decimal("1.50"))) == Fraction(3, 2)
    assert from_data(to_data({1: 2}.keys())) == {1}
    assert from_data(to_data({1: 2}.items())) == {(1, 2)}
    for made in (map(abs, [-1, 2]), (n for n in (1, 2)), range(1, 3), {1: 1, 2: 2}.values()):
        back = from_data(to_data(made))
        assert back != [1, 2]
        assert tuple(back) == (1, 2)
    assert from_data(to_data(Thing()))
    assert from_data(to_data(Thing())) != Thing()
    assert not from_data(["object", False])


def test_a_completion_counts_up_to_the_first_stop() -> None:
    body = "    if x:\n        return 1\n    # so\n    print(x)\n"
    for rest in ("\ndef g():", "\nclass A:", "\nif __name__:", "\n# done", "\nprint(f(1))"):
        assert cut(body + rest + "\n    return 2") == body
    assert cut("def f():\n    pass") == "def f():\n    pass"  # a stop begins with a newline


def test_items_are_the_rows_of_the_file(tmp_path: Path) -> None:
    whole = list(items("test", data=SAMPLE))
    first = json.loads((SAMPLE / "HumanEval.jsonl").read_text("utf-8").split("\n")[0])
    assert (whole[0].prompt, whole[0].answer, whole[0].template) == (
        first["prompt"],
        first["canonical_solution"],
        "HumanEval/0",
    )
    assert dict(whole[0].facts) == {"entry_point": "has_close_elements", "test": first["test"]}
    assert [item.index for item in whole] == list(range(10))
    assert list(items("test", data=SAMPLE / "HumanEval.jsonl", seed=7, start=4)) == whole[4:]
    raw = (SAMPLE / "HumanEval.jsonl").read_bytes()
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(raw))
    hub = tmp_path / "hub" / "openai_humaneval"
    hub.mkdir(parents=True)
    rows = [json.loads(line) for line in raw.decode().split("\n") if line]
    pq.write_table(pa.Table.from_pylist(rows), hub / "test-00000-of-00001.parquet")
    for data in (tmp_path, tmp_path / "HumanEval.jsonl.gz", tmp_path / "hub", hub):
        assert list(items("test", data=str(data))) == whole


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"humaneval reads its problems from a file.*give data=PATH.*HumanEval.jsonl.gz as"
    ):
        items("test")
    with pytest.raises(UsageError, match=r"holds none of HumanEval.jsonl.gz, .*; give HumanEval.jsonl.gz as in"):
        items("test", data=tmp_path)
    with pytest.raises(UsageError, match="unknown split 'train'; expected one of 'test'"):
        items("train", data=SAMPLE)
    with pytest.raises(UsageError, match="start is 'x'"):
        items("test", data=SAMPLE, start="x")
    with pytest.raises(UsageError, match="row 0 has no text under task_id"):
        items("test", data=SAMPLE.parent / "gsm8k" / "test.jsonl")
