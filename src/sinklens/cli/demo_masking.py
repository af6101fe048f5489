"""Accuracy with sinks masked, beside as many random keys: round after round, until the time is up.

A round takes a few problems through every model and every mask, so all cells share their problems and their number. A
round is counted and written when it is whole.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sinklens.cli.demo_workers import SPLIT, Answering, Effort, Job, Mask, Rows
from sinklens.interrupts import interrupts_deferred
from sinklens.sinks.intervals import wilson

TASK = "word_problems"
MASKS = (
    Mask(keys="none", top=0),
    Mask(keys="sinks", top=1),
    Mask(keys="random", top=1),
    Mask(keys="sinks", top=5),
    Mask(keys="random", top=5),
)
Tell = Callable[[str, dict[str, Any]], None]  # what runs now, and the document so far
Clock = Callable[[], float]


@dataclass(kw_only=True)
class Tally:
    """Rows of the finished rounds."""

    models: tuple[str, ...]
    effort: Effort
    rows: Rows = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        cells = [self._cell(model, mask) for model in self.models for mask in MASKS]
        return {"task": TASK, "split": SPLIT, **asdict(self.effort), "problems": cells[0]["problems"], "cells": cells}

    def _cell(self, model: str, mask: Mask) -> dict[str, Any]:
        wanted = {"model": model, **asdict(mask)}
        mine = [row for row in self.rows if wanted.items() <= row.items()]
        doses = [row["dose"] for row in mine if row["dose"] is not None]
        right = sum(row["right"] for row in mine)
        share = wilson(right, len(mine))
        return wanted | {
            "problems": len(mine),
            "right": right,
            "accuracy": share.value,
            "low": share.low,
            "high": share.high,
            "dose": sum(doses) / len(doses) if doses else None,
        }


def mask_rounds(
    tally: Tally, to: Path, *, answer: Answering, deadline: float, tell: Tell, clock: Clock = time.monotonic
) -> Iterator[dict[str, Any]]:
    """The document after every round. One is done in any case, another only if it fits, taking as long as the last."""
    number, took = 0, 0.0
    while number == 0 or clock() + took <= deadline:
        began = clock()
        jobs = [
            Job(model=model, mask=mask, task=TASK, number=number, effort=tally.effort)
            for model in tally.models
            for mask in MASKS
        ]
        rows: Rows = []
        answered = answer(jobs)
        for job in jobs:
            tell(str(job), tally.document())
            rows += next(answered)
        with interrupts_deferred():
            _append(to, rows)
            tally.rows += rows
        took = clock() - began
        number += 1
        yield tally.document()


def _append(path: Path, rows: Rows) -> None:
    """A whole round at once, on disk before the next one begins."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
