"""A small Llama with grouped kv heads."""

from typing import Any

import pytest

from attention.zoo import rows


@pytest.fixture
def llama() -> Any:
    return next(row for row in rows() if row.name == "llama").build("sdpa")
