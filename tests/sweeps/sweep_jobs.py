"""Jobs for tests: real ones, and ones that take the process they run in with them."""

import os
import signal
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sinklens.evaluation.memory import Room
from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.grid import jobs_of
from sinklens.sweeps.job import Job, Resources, Rows

GRID: dict[str, Any] = {
    "models": ["tiny-llama"],
    "tasks": ["word_problems"],
    "interventions": ["none", "sinks:top=1", "random:top=1"],
    "seeds": [0, 1],
    "problems": 2,
    "answering": {"length": 12},
}
MISSING = "no/such/folder/here"


@dataclass(frozen=True, kw_only=True)
class Deadly(Job):
    """Kills its process, as the system does when memory is short, until it has been begun `lives` times."""

    record: str  # a file that gets a line each time it is begun
    lives: int

    def answer(self, resources: Resources, room: Room | None = None) -> Rows:
        with Path(self.record).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if begun(self.record) < self.lives:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(resources, room)


def begun(record: str | Path) -> int:
    return len(Path(record).read_text().splitlines())


def deadly(job: Job, record: Path, *, lives: int) -> Deadly:
    """The same job, with the same fingerprint."""
    return Deadly(**{field.name: getattr(job, field.name) for field in fields(Job)}, record=str(record), lives=lives)


def troubled(folder: Path, *, hopeless: bool = True) -> list[Job]:
    """The jobs of GRID, the second of which is lost once; then one that fails, and one that is lost each time."""
    jobs = jobs_of(GRID)
    failing, lost = jobs_of({**GRID, "models": [MISSING, "tiny-llada"], "interventions": ["none"]})
    extra: list[Job] = [failing, *([deadly(lost, folder / "lost", lives=100)] if hopeless else [])]
    return [jobs[0], deadly(jobs[1], folder / "once", lives=2), *jobs[2:], *extra]


def rows_in(folder: SweepFolder) -> dict[str, Rows]:
    """By job, everything that is in jobs/, read as one dataset."""
    import pyarrow.dataset as ds

    found: dict[str, Rows] = {}
    for row in ds.dataset(folder.path / "jobs").to_table().to_pylist():
        found.setdefault(row["job"], []).append(row)
    return found
