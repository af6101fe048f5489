"""The rows that every way of running a sweep must give: made here, one job after the other."""

from collections.abc import Iterator

import pytest
from sweep_jobs import GRID

from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Resources, Rows, load_once
from sinklens.sweeps.run import run_here


@pytest.fixture(scope="session")
def expected() -> Iterator[dict[str, Rows]]:
    found: dict[str, Rows] = {}
    for outcome in run_here(jobs_of(GRID), Resources(device="cpu")):
        assert outcome.rows is not None, outcome.failure
        found[outcome.job.fingerprint] = outcome.rows
    yield found
    load_once.cache_clear()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the processes that jobs run in."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
