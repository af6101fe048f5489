"""Whether the models and the files that jobs name are there, asked once before any job runs.

Nothing is loaded, and of a hub model no more than its config is downloaded. Jobs of a cluster find folders and files on
its own disks: from here only a name that nobody can know is refused.
"""

from collections.abc import Iterable
from dataclasses import replace

from sinklens.errors import ModelError, SinklensError, UsageError
from sinklens.models.catalog import Located, download, locate_here
from sinklens.sweeps.job import Checkpoint, Job
from sinklens.tasks import BENCHMARKS


def refuse_missing(jobs: Iterable[Job], *, source: str, base: str, elsewhere: bool = False) -> None:
    """A UsageError for the first model or file that is not there. elsewhere: on machines with disks of their own."""
    jobs = list(jobs)
    for model in dict.fromkeys(job.model for job in jobs):
        try:
            _look_for(model, elsewhere=elsewhere)
        except SinklensError as error:
            raise UsageError(f"{source}: models: {error}") from error
    if elsewhere:
        return
    asked = {replace(job.answering, seed=0): job for job in jobs if job.answering.task in BENCHMARKS}
    for job in asked.values():
        try:
            job.items(base)
        except SinklensError as error:
            raise UsageError(f"{source}: tasks: {error}") from error


def _look_for(model: Checkpoint, *, elsewhere: bool) -> None:
    if elsewhere and "/" in model.name:  # a folder there, or a hub id
        return
    found = locate_here(model.name, revision=model.revision)
    if isinstance(found, Located):
        return
    try:
        download(found, model.revision, ["config.json"])
    except ModelError:  # gated, or no network at this moment: its jobs will say
        return
