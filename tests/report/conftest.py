"""Three small models and everything that is drawn of them, once for all tests."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from report.three_models import MappedTrace, model
from sinklens.report.figures import draw_figures
from sinklens.report.scene import Drawn


@pytest.fixture(scope="session")
def traces() -> list[MappedTrace]:
    return [
        model("llada", maps=("0.0@6", "0.0@7", "0.0@8", "0.0@9", "1.2@3")),
        model("dream", maps=("2.0@4", "2.0@5")),
        model("llama", maps=("1.1@20",)),
    ]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures") / "made" / "on the way"


@pytest.fixture(scope="session")
def drawn(traces: list[MappedTrace], folder: Path) -> dict[str, Drawn]:
    return {one.id: one for one in draw_figures(traces, folder)}


@pytest.fixture(scope="session")
def rows(drawn: dict[str, Drawn]) -> Callable[[str], list[dict[str, str]]]:
    """The CSV behind a figure."""

    def read(id: str) -> list[dict[str, str]]:
        (path,) = (path for path in drawn[id].files if path.suffix == ".csv")
        return read_csv(path)

    return read


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
