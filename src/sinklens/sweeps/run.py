"""A sweep: what is left to do is done, and kept as it comes."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.job import Job, Outcome, Resources, Running, attempt

Seen = Callable[[Outcome], None]


def left_to_do(folder: SweepFolder, jobs: Sequence[Job]) -> list[Job]:
    """Jobs without rows: those that were never tried, and those that failed."""
    return [job for job in jobs if not folder.is_finished(job)]


def run_sweep(
    folder: SweepFolder, jobs: Sequence[Job], *, running: Running, resources: Resources, seen: Seen | None = None
) -> None:
    """Run the jobs that have no rows yet. `seen` hears of each outcome when it is on the disk.

    Whatever ends this early, Ctrl-C included, leaves the finished jobs in the folder, whole.
    """
    left = left_to_do(folder, jobs)
    if not left:
        return
    with closing(running(left, resources)) as outcomes:
        for outcome in outcomes:
            folder.write(outcome)
            if seen is not None:
                seen(outcome)


def run_here(jobs: Sequence[Job], resources: Resources) -> Generator[Outcome, None, None]:
    """One after the other in this process: for a scheduler that makes the processes itself."""
    for job in jobs:
        yield attempt(job, resources)


def summarise(folder: SweepFolder, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The state of every job: finished with its score, failed with its reason, or open."""
    return [_state(folder, job, index) for index, job in enumerate(jobs)]


def _state(folder: SweepFolder, job: Job, index: int) -> dict[str, Any]:
    known = {
        "index": index,
        "fingerprint": job.fingerprint,
        "model": str(job.model),
        "task": job.answering.task,
        "condition": str(job.condition),
        "seed": job.seed,
    }
    if folder.is_finished(job):
        right, problems = folder.score_of(job)
        return {**known, "state": "finished", "right": right, "problems": problems}
    failure = folder.failure_of(job)
    if failure is not None:
        return {**known, "state": "failed", "error": f"{failure.type}: {failure.message}"}
    return {**known, "state": "open"}
