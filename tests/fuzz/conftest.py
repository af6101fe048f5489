"""How many hostile cases ran, said at the end of a run; and the sound folders that are damaged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz import held, sound


@pytest.fixture(autouse=True)
def _counted(record_property: Any) -> Iterator[None]:
    before = held.cases
    yield
    record_property("hostile_cases", held.cases - before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    ends = [one for some in terminalreporter.stats.values() for one in some if getattr(one, "when", "") == "teardown"]
    counts = [count for end in ends for name, count in end.user_properties if name == "hostile_cases"]
    if sum(counts):
        terminalreporter.write_line(f"hostile input: {sum(counts)} cases in {len(counts)} tests")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound checkpoints, a few kilobytes each, by the name of their family."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return sound.make_models(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound traces of two samples: with all keys, with sinks alone, and of an autoregressive run."""
    return sound.make_traces(tmp_path_factory.mktemp("traces"))
