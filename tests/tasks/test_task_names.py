"""The tasks by name."""

from itertools import islice

import pytest

from sinklens.errors import UsageError
from sinklens.tasks import TASKS, task
from sinklens.tasks.item import SPLITS


@pytest.mark.parametrize("name", TASKS)
def test_every_task_makes_items_of_every_split(name: str) -> None:
    module = task(name)
    assert module.__name__ == TASKS[name]
    assert callable(module.grade)
    for split in SPLITS:
        for index, item in enumerate(islice(module.items(split, seed=3, start=5), 2), start=5):
            assert (item.task, item.split, item.index) == (name, split, index)
            assert item.prompt and item.answer and item.template


def test_an_unknown_task_is_answered_with_the_names() -> None:
    with pytest.raises(UsageError, match="unknown task 'chess'; expected one of 'passkey', 'small_programs', 'word_pr"):
        task("chess")
