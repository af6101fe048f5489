"""Problems with answers that can be graded: made by rule, endless, the same for everyone.

item.py            Item: prompt, answer, what the grader checks; the splits
word_problems.py   arithmetic stories with a worked solution
small_programs.py  a function to finish, graded by running it
passkey.py         a number hidden in filler text
draws.py           random draws that follow from task, split, seed and index
sandbox.py         runs the programs that models write, and holds them

Every task is a module with `items(split, *, seed=0, start=0)` and `grade(item, text)`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType

from sinklens.errors import choose

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "passkey": "sinklens.tasks.passkey",
        "small_programs": "sinklens.tasks.small_programs",
        "word_problems": "sinklens.tasks.word_problems",
    }
)


def task(name: str) -> ModuleType:
    """The module of a task, imported now."""
    return import_module(TASKS[choose("task", name, tuple(TASKS))])
