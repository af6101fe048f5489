"""One cell of a grid: a model answers the problems of a task under one condition, with one seed.

A job is data. Whoever runs it, wherever, gets the same rows: they follow from what the fingerprint is made of, and
from the kind of device.
"""

import json
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering, answer_problems, problems
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.memory import Room
from sinklens.interrupts import interrupts_named

VERSION = 1  # goes up when the same job would give other rows
RETRIES = 2  # how often a job is begun again after the process that ran it was lost

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model as a grid names it."""

    name: str  # a name from `sinklens models`, a folder, or a hub id
    dtype: str | None = None  # None: as stored; float32 for the embedded models
    revision: str | None = None  # of a hub model

    def __str__(self) -> str:
        return ", ".join(part for part in (self.name, self.revision, self.dtype) if part)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What jobs may use. None of it changes rows, except from one kind of device to another."""

    workers: int | None = None  # jobs at once; None: 1 here, all that fit on Ray
    threads: int = 1  # of a job
    gpus: float = 0.0  # of a job; less than 1: several share one
    device: str | None = None  # None: a GPU where the job sees one; with gpus, always one
    base: str = field(default_factory=lambda: str(Path.cwd()))  # what relative paths of models and data start from

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers is {self.workers}; expected a whole number from 1")
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}; expected a whole number from 1")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UsageError(
                f"GPUs per job is {self.gpus:g}; expected 0, a share of one such as 0.5, or a whole number"
            )
        if self.gpus and self.device == "cpu":
            raise UsageError(f"{self.gpus:g} GPUs per job and device 'cpu'; leave one of them out")

    def chosen_device(self) -> str:
        """In the process that runs the job: what it sees there counts."""
        import torch

        if self.device is not None:
            return self.device
        return "cuda" if self.gpus or torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides the rows."""

    model: Checkpoint
    condition: Condition
    answering: Answering  # task, split and seed among it
    problems: int  # the first ones of the split

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same rows."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def seed(self) -> int | None:
        """None: nothing is drawn, and the rows are the same for every seed."""
        return self.answering.seed if self.condition.random else None

    def as_dict(self) -> dict[str, Any]:
        """What decides the rows, as JSON holds it. The batch does: the dose is measured over one."""
        answering = {name: value for name, value in self.answering.as_dict().items() if name not in ("graph", "unsafe")}
        condition = self.condition.as_dict()
        if self.condition.epsilon is not None:
            condition["epsilon"] = float(self.condition.epsilon)  # 3 and 3.0 are one threshold
        return {
            "version": VERSION,
            "model": asdict(self.model),
            "condition": condition,
            "answering": {**answering, "seed": self.seed},
            "problems": self.problems,
        }

    def __str__(self) -> str:
        drawn = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.model}, {self.answering.task}, {self.condition.label}{drawn}"

    def items(self, base: str) -> list[Any]:
        """The problems it answers. base: what a relative path of data starts from."""
        answering = self.answering
        if answering.data is not None:
            answering = replace(answering, data=str(Path(base) / answering.data))
        found = problems(answering, self.problems)
        if len(found) < self.problems:
            raise UsageError(
                f"{answering.task}, split {answering.split}, has {len(found)} problems; {self.problems} are asked for: "
                "ask for fewer"
            )
        return list(found)

    def answer(self, resources: Resources, room: Room | None = None) -> Rows:
        """One row a problem. room: learns how many fit into memory at a time."""
        items = self.items(resources.base)
        model = load_once(self.model, base=resources.base, device=resources.chosen_device())
        rows = answer_problems(model, items, self.condition, self.answering, name=str(self.model), room=room)
        named = {"job": self.fingerprint, "seed": self.seed, "source": source_of(self.model, model)}
        return [{**named, **row} for row in rows]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there are no rows."""

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job: rows, or a failure."""

    job: Job
    rows: Rows | None = None
    failure: Failure | None = None
    timing: dict[str, Any] = field(default_factory=dict)  # seconds, device, host


Running = Callable[
    [Sequence[Job], Resources], Generator[Outcome, None, None]
]  # outcomes in the order in which they come


def attempt(job: Job, resources: Resources) -> Outcome:
    """Run a job in this process; what it raises becomes its outcome."""
    import platform

    began, room = time.monotonic(), Room("problems")
    try:
        with interrupts_named(), threads(resources.threads), quiet():
            rows = job.answer(resources, room)
    except Exception as error:
        return Outcome(job=job, failure=describe(error))
    seconds = time.monotonic() - began
    where = {"device": resources.chosen_device(), "host": platform.node()}
    batch = min(len(rows), job.answering.batch, room.most or len(rows))
    return Outcome(job=job, rows=rows, timing={"problems": len(rows), "batch": batch, "seconds": seconds, **where})


def describe(error: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(error))
    return Failure(type=type(error).__name__, message=str(error), traceback=trace)


@lru_cache(maxsize=1)  # jobs of one model follow each other, and two may not fit
def load_once(checkpoint: Checkpoint, *, base: str, device: str) -> Any:
    import sinklens

    folder = Path(base) / checkpoint.name
    name = str(folder) if is_folder(checkpoint.name, folder) else checkpoint.name
    return sinklens.load(name, device=device, dtype=checkpoint.dtype, revision=checkpoint.revision)


def source_of(checkpoint: Checkpoint, model: Any) -> str:
    """Where the weights came from: the commit of a hub model; a folder as the grid names it, wherever that lies."""
    from sinklens.models.catalog import commit_of

    source = str(model.spec.source)
    return checkpoint.name if commit_of(source) is None else source


def is_folder(name: str, folder: Path) -> bool:
    """As `sinklens.load` decides: known names come before folders."""
    from sinklens.models.catalog import EMBEDDED, KNOWN, PACKAGED

    return name not in (*EMBEDDED, *PACKAGED, *KNOWN) and folder.is_dir()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The number of threads decides the order of sums: rows that are to be the same need the same."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars that transformers draws while it loads: several jobs would draw over each other."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
