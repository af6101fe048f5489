"""One problem of a task: what is asked, a solution, and what a grader needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

# train: what the embedded models learn from. test: problems they never saw, of the same templates and numbers.
# templates: worded by templates that training never uses. numbers: with a number that training never gives.
SPLITS = ("train", "test", "templates", "numbers")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A prompt, the answer that solves it, and the facts its grader checks."""

    task: str
    split: str
    index: int  # which of the split's items, in the order of the seed
    template: str  # names every wording that was used
    prompt: str
    answer: str  # follows the prompt as it stands: no separator is added
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
