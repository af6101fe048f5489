"""HumanEval from a local file: a function to finish, right when it passes the published tests (pass@1).

The prompt is given as published, and what a model writes counts up to the first stop string, as in
lm-evaluation-harness 0.4.13.

The tests are functions `check(candidate)` full of assertions. Run beside a stranger's code they would prove little: it
could leave with a forged success, redefine what they use, or return an object that equals everything. So the code
never meets them (`humaneval_inside.py`): the arguments are recorded from the published solution, the completion is run
on the arguments alone, and the tests then judge the values, in a program without the completion. All of it happens in
the sandbox, because the file is a stranger's too. To forge success a completion has to give the right values.

Not promised:
- The tests are public. A model that learned them by heart passes, here as everywhere.
- Tests whose arguments depend on earlier results cannot be judged this way, and are refused. There are none among the
  164.
- Of a returned object the tests see plain data: numbers, texts, containers, iterators. A subclass counts as its base,
  and of other objects it is left only whether they are true. What a completion does to its arguments is not seen. The
  published tests look at neither.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.tasks.draws import begin_items
from sinklens.tasks.files import data_path, find_file, read_rows, split_names
from sinklens.tasks.humaneval_inside import OTHER_CALLS
from sinklens.tasks.item import Item
from sinklens.tasks.sandbox import Limits, Outcome, Program, run

NAME = "humaneval"
SPLITS = ("test",)
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
HOW = (
    "HumanEval.jsonl.gz as in the repository openai/human-eval, or the Parquet file of the data set "
    "openai/openai_humaneval, or the folder of either"
)
GRADING_LIMITS = Limits(seconds=3.0)  # the time that the harness gives
_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
_FILES = ("HumanEval.jsonl.gz", "HumanEval.jsonl", *split_names("test"))
_STOP = re.compile("|".join(map(re.escape, STOPS)))


def items(split: str, *, data: Any = None, seed: Any = 0, start: Any = 0) -> Iterator[Item]:
    """The problems from number `start` on; `data` is a file or its folder. The seed plays no part: nothing is drawn."""
    choose("split", split, SPLITS)
    begin_items(NAME, split, seed=seed, start=start)  # for its checks: here the file decides, not draws
    path = data_path(data, task=NAME, how=HOW)
    found = path if path.is_file() else find_file(path, _FILES)
    if found is None:
        raise UsageError(f"{path} holds none of {', '.join(_FILES)}; give {HOW}")
    return islice(_items(found), start, None)


def _items(path: Path) -> Iterator[Item]:
    return (
        Item(
            task=NAME,
            split="test",
            index=index,
            template=row["task_id"],
            prompt=row["prompt"],
            answer=row["canonical_solution"],
            facts=MappingProxyType({"entry_point": row["entry_point"], "test": row["test"]}),
        )
        for index, row in enumerate(read_rows(path, fields=_FIELDS))
    )


def cut(text: str) -> str:
    """What a model wrote, up to the first stop string."""
    return _STOP.split(text, maxsplit=1)[0]


def grade(item: Item, text: str, *, unsafe: bool = False) -> bool:
    """Whether the function that `text` completes passes the published tests."""
    return grade_all([item], [text], unsafe=unsafe)[0]


def grade_all(
    items: Sequence[Item], texts: Sequence[str], *, unsafe: bool = False, limits: Limits | None = None
) -> list[bool]:
    """Grade many texts at once; `unsafe` runs them unprotected where there is no sandbox."""
    if len(items) != len(texts):
        raise UsageError(f"{len(items)} items but {len(texts)} texts; give one text for each item")
    chosen = limits or GRADING_LIMITS
    calls = _recorded(items, limits=chosen, unsafe=unsafe)
    programs = [
        _inside("answered", item.prompt + cut(text), item.facts["entry_point"], asked)
        for item, text, asked in zip(items, texts, calls, strict=True)
    ]
    outcomes = run(programs, limits=chosen, unsafe=unsafe)
    # The values are a stranger's and may have any form: `judged` fails on those that do not fit.
    complete = [n for n, outcome in enumerate(outcomes) if outcome.error is None and len(outcome.values) == 1]
    judges = [
        _inside("judged", items[n].prompt + items[n].answer, items[n].facts["test"], calls[n], outcomes[n].values[0])
        for n in complete
    ]
    verdicts = dict(zip(complete, run(judges, limits=chosen, unsafe=unsafe), strict=True))
    return [n in verdicts and _passes(item, verdicts[n]) for n, item in enumerate(items)]


def _recorded(items: Sequence[Item], *, limits: Limits, unsafe: bool) -> list[list[Any]]:
    """The arguments that the tests of each item use."""
    programs = [
        _inside("recorded", item.prompt + item.answer, item.facts["entry_point"], item.facts["test"]) for item in items
    ]
    outcomes = run(programs, limits=limits, unsafe=unsafe)
    for item, outcome in zip(items, outcomes, strict=True):
        if outcome.error is not None:
            raise UsageError(
                f"{item.template}: the solution in the file does not pass the file's own tests ({outcome.error}), so "
                "they can judge nothing; give the file as published"
            )
    return [outcome.values[0] for outcome in outcomes]


def _passes(item: Item, verdict: Outcome) -> bool:
    if verdict.values == (OTHER_CALLS,):
        raise UsageError(
            f"{item.template}: its tests call with arguments that depend on earlier results, which cannot be judged; "
            "leave the problem out"
        )
    return verdict.values == (True,)


def _inside(entry: str, *arguments: Any) -> Program:
    """A call of a function of humaneval_inside.py, whose text goes into the sandbox."""
    source = Path(__file__).with_name("humaneval_inside.py").read_text("utf-8")
    return Program(source=source, entry=entry, calls=[arguments])
