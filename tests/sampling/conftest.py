"""The golden checkpoints, loaded once a session."""

from collections.abc import Callable
from functools import cache

import pytest
from recorded_runs import FOLDER

from sinklens.models.language_model import LanguageModel
from sinklens.models.load import load


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], LanguageModel]:
    return cache(lambda family: load(str(FOLDER / family)))
