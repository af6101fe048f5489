"""Problems with answers that can be graded: made by rule, endless, the same for everyone; or published by others.

item.py            Item: prompt, answer, what the grader checks; the splits
word_problems.py   arithmetic stories with a worked solution
small_programs.py  a function to finish, graded by running it
passkey.py         a number hidden in filler text
passkey_long.py    the same in prompts of exactly so many tokens, and on the published grid
needle.py          a sentence hidden in a text, asked for at the end
haystack.py        texts cut and filled to so many tokens
longbench.py       five sets of LongBench, from files
gsm8k.py           grade-school mathematics, from a file
humaneval.py       functions to finish, from a file, graded by their published tests
presets.py         the settings that published scores of both were made with
draws.py           random draws that follow from task, split, seed and index
files.py           reads published problems: JSON Lines or Parquet
sandbox.py         runs the programs that models write, and holds them

Every task is a module with `items(split, *, seed=0, start=0)` and `grade(item, text)`. Those of BENCHMARKS also need
`data=PATH`, and end with their file. Where texts are graded by running them there is `grade_all(items, texts)`, and
where there are several rules `grades(item, text)` with the verdict of each; `grade` is the first of them.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType

from sinklens.errors import choose

# Made by rule.
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "passkey": "sinklens.tasks.passkey",
        "small_programs": "sinklens.tasks.small_programs",
        "word_problems": "sinklens.tasks.word_problems",
    }
)
# Read from a file.
BENCHMARKS: Mapping[str, str] = MappingProxyType(
    {
        "gsm8k": "sinklens.tasks.gsm8k",
        "humaneval": "sinklens.tasks.humaneval",
    }
)


def task(name: str) -> ModuleType:
    """The module of a task, imported now."""
    modules = {**TASKS, **BENCHMARKS}
    return import_module(modules[choose("task", name, tuple(modules))])
