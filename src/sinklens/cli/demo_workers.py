"""Answers under a mask, in this process or in several.

Each process computes with one thread: for models this small a second one gains a quarter where the other core is idle,
and costs a multiple where it is not. Two processes get twice as much done either way.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from math import isnan
from multiprocessing import TimeoutError, get_context
from typing import Any

import torch
from transformers.utils import logging as bars

import sinklens
from sinklens.errors import SinklensError
from sinklens.evaluation.answering import graded
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys
from sinklens.models.load import Loaded
from sinklens.tasks import task
from sinklens.tasks.item import Item
from sinklens.training.measure import answering, answers

SPLIT = "test"
PATIENCE = 120.0  # seconds for one job of a worker; a few are usual

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Mask:
    """What is taken from every layer and head, at every step."""

    keys: str  # "none", "sinks" of the step before, or "random"
    top: int  # keys a head

    def over(self, model: Loaded, seed: int) -> AbstractContextManager[Any]:
        if self.keys == "none":
            return nullcontext()
        settings = MaskSinks(top=self.top) if self.keys == "sinks" else RandomKeys(top=self.top, seed=seed)
        return sinklens.intervene(model, settings)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How the problems are answered."""

    length: int  # tokens of an answer
    steps: int  # denoising steps
    batch: int  # problems a round


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model under one mask on the problems of one round."""

    model: str
    mask: Mask
    task: str
    number: int  # of the round
    effort: Effort

    def __str__(self) -> str:
        return f"{self.model}, " + (f"{self.mask.top} {self.mask.keys}" if self.mask.top else "unmasked")


Answering = Callable[[Sequence[Job]], Iterator[Rows]]  # in the order of the jobs


@cache
def loaded(name: str) -> Loaded:
    """A model of this process. It takes no time to load that a bar could tell of."""
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        return sinklens.load(name)
    finally:
        if shown:
            bars.enable_progress_bar()


def problems(name: str, count: int, *, start: int = 0) -> list[Item]:
    """Problems that no model has seen."""
    return list(islice(task(name).items(SPLIT, start=start), count))


def answer_job(job: Job) -> Rows:
    """One row a problem."""
    model, effort = loaded(job.model), job.effort
    items = problems(job.task, effort.batch, start=job.number * effort.batch)
    with job.mask.over(model, seed=job.number) as lab:
        texts = answers(model, items, sampler=answering(model, length=effort.length, steps=effort.steps))
    dose = None if lab is None or isnan(lab.dose) else lab.dose
    head = {"model": job.model, **asdict(job.mask), "dose": dose}
    return [
        {**head, "problem": item.index, "right": right, "text": text}
        for item, right, text in zip(items, graded(job.task, items, texts), texts, strict=True)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def workers(count: int) -> Iterator[Answering]:
    """Something that answers jobs: this process, or `count` others, which are gone when the context closes."""
    if count == 1:
        yield lambda jobs: map(answer_job, jobs)
        return
    with get_context("spawn").Pool(count, initializer=_prepare) as pool:

        def answer(jobs: Sequence[Job]) -> Iterator[Rows]:
            found = pool.imap(answer_job, jobs)
            for job in jobs:
                try:
                    yield found.next(timeout=PATIENCE)
                except TimeoutError:
                    raise SinklensError(
                        f"no answer within {PATIENCE:.0f} seconds ({job}): a worker process was killed, or memory is "
                        "short; try --quick, which needs none"
                    ) from None

        yield answer


def _prepare() -> None:
    """Ctrl-C reaches every process of a terminal, and the first one decides what becomes of it. It also does the
    talking: what goes wrong in a job is sent to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
