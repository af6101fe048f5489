"""Pages of small traces, and a Chromium to open them in. Whatever a test does, nothing may go wrong in the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.chromium import MISSING, Opener, Shown, find_chromium, running_chromium, show
from browser.hostile import hostile_trace
from report.three_models import MappedTrace, Size, model, thin
from sinklens.report.page import write_page
from sinklens.report.payload import View
from sinklens.sinks.arrays import MemoryTrace, from_arrays

EXACT = [(1, 1), (2, 0)]  # heads of `llada` whose numbers are kept as they are


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs Chromium; skipped without")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def llada() -> MappedTrace:
    return model("llada")


@pytest.fixture(scope="session")
def llama() -> MappedTrace:
    """Half as long as llada."""
    return model("llama", Size(length=12, samples=1))


def long_trace() -> MemoryTrace:
    """2000 tokens, of which the last but five are sinks."""
    received = np.full((3, 1, 1, 2000), 0.5, np.float32)
    received[..., -6:-4] = 500.5
    return from_arrays(received)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, llada: MappedTrace, llama: MappedTrace) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    wanted = {
        "llada": ([llada], View(samples=[0, 1], heads=EXACT)),
        "both": ([llada, llama], View(heads=None)),
        "hostile": ([hostile_trace()], View()),
        "sinks": ([thin(llada)], View()),
        "long": ([long_trace()], View()),
    }
    for name, (traces, view) in wanted.items():
        write_page(traces, folder / f"{name}.html", view=view)
    return {name: folder / f"{name}.html" for name in wanted}


@pytest.fixture(scope="module")  # no longer: playwright's loop would disturb other tests that run one
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="playwright is not installed; pip install 'sinklens[dev]'")
    if find_chromium() is None:
        pytest.skip(MISSING)
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def opened(chromium: Any, pages: dict[str, Path]) -> Iterator[Opener]:
    """Opens a page by its name. Afterwards: no error was reported, and nothing but the file was requested."""
    all_shown: list[tuple[Shown, Any]] = []

    def open_page(name: str, *, hash: str = "", width: int = 1280, height: int = 900, **settings: Any) -> Shown:
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        shown = show(context, pages[name], hash=hash)
        all_shown.append((shown, context))
        return shown

    yield open_page
    for shown, context in all_shown:
        problems, requests = list(shown.problems), list(shown.requests)
        context.close()
        assert problems == []
        assert [one for one in requests if not one.startswith(("file:", "blob:"))] == []
        assert len([one for one in requests if one.startswith("file:")]) == 1
