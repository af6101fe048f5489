"""Shared test set-up: threads to each worker's share of the cores, and the golden checkpoints."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two spinning pools on two cores crawl
if "SINKLENS_GPU" not in os.environ:  # the Triton kernel then runs in its interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

GOLDEN = Path(__file__).parent / "data" / "golden"


def pytest_configure(config: pytest.Config) -> None:
    import torch

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell: children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    if "SINKLENS_LOWEST" in os.environ:
        import lowest

        config.pluginmanager.register(lowest)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU here; run `make test-gpu` on one"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A processor in a card's place; how many runs of graphs there were since it was last asked."""
    from card import stand_in

    with stand_in(monkeypatch) as replays:
        yield replays


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def graphs_on(request: pytest.FixtureRequest) -> str:
    """A device that has graphs: a card, or a processor in its place."""
    if request.param == "cpu":
        request.getfixturevalue("card")
    return str(request.param)


@pytest.fixture
def golden() -> Path:
    """The folder of tiny checkpoints with what the original code computes on them."""
    return GOLDEN


@pytest.fixture(scope="session")
def talking_llada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden LLaDA with a tokenizer."""
    from talking import make_talking_llada

    return make_talking_llada(GOLDEN, tmp_path_factory.mktemp("models") / "talking-llada")
