"""Models that answer the same problems under many conditions, batch after batch, into a folder.

    for each batch of problems            outermost: an interrupted experiment has the same problems in all cells
        for each model, task, condition   one file each (store.py); what is there is skipped
        stop early?                       only between whole batches of problems, so that all cells share their number

The primary contrast of a model and task is accuracy(sinks, k) - accuracy(random, k), k = 5 or, without it, the largest;
experiment.json declares it. Stopping early watches these contrasts alone (sequential.py), and stops when every one of
them is decided.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.answering import (
    Answered,
    Answering,
    answer_batch,
    by_length,
    graded,
    in_parts,
    problems,
    sampler_of,
)
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.greedy import has_blocks
from sinklens.evaluation.grid import declare_primary, primary_cells
from sinklens.evaluation.memory import Room
from sinklens.evaluation.pace import Pace, Progress
from sinklens.evaluation.store import Batch, Store, spans
from sinklens.interventions.flow import shares
from sinklens.recording.identity import describe_model, describe_versions
from sinklens.tasks.item import Item
from sinklens.traces.manifest import now


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of an experiment."""

    batches: int  # in the folder
    answered: int  # of them, in this run
    problems: int  # that all cells share, of the task that has most
    stopped_early: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Models, how they answer, and what is done to them."""

    models: Mapping[str, Any]  # loaded, by the name that rows have
    answerings: Sequence[Answering]  # one a task
    cells: Mapping[str, Sequence[Condition]]  # by model
    problems: int  # of each task, at most
    stop_early: bool = False
    command: str | None = None  # what made it, for people

    def __post_init__(self) -> None:
        if not self.models or not self.answerings:
            raise UsageError("an experiment needs at least one model and one task")
        if self.problems < 1:
            raise UsageError(f"problems is {self.problems}; expected at least 1")
        if any(one.block is not None for one in self.answerings) and not any(map(has_blocks, self.models.values())):
            raise UsageError("block is for LLaDA and MMaDA, and no model of the experiment is one; leave it out")
        names = [answering.task for answering in self.answerings]
        if len(set(names)) < len(names):
            raise UsageError(f"a task stands twice ({', '.join(names)}); give each once")
        for name, model in self.models.items():
            texts = [str(condition) for condition in self.cells[name]]
            double = next((text for text in texts if texts.count(text) > 1), None)
            if double is not None:
                raise UsageError(f"condition {double!r} stands twice; give it once")
            for condition in self.cells[name]:
                _check(model, condition, self.answerings)
        if self.stop_early:
            for name in self.models:
                self._refuse_without_primary(name)

    def primary(self, model: str) -> tuple[Condition, list[Condition]]:
        """The sinks and the random draws that a model's primary contrast compares, on every task."""
        return primary_cells(self.cells[model], causal=bool(self.models[model].spec.causal))

    def _refuse_without_primary(self, model: str) -> None:
        try:
            self.primary(model)
        except UsageError as error:
            raise UsageError(f"{model}: stopping early watches a contrast, but {error}") from None

    @property
    def decisive(self) -> dict[str, Any]:
        """Everything that decides rows, as JSON."""
        models = {}
        for name, model in self.models.items():
            told = describe_model(model, name)
            models[name] = {part: told[part] for part in ("dtype", "config_sha256", "weights_sha256")}
        return {
            "models": models,
            "tasks": {answering.task: answering.decisive for answering in self.answerings},
            "cells": {name: [str(condition) for condition in self.cells[name]] for name in self.models},
            "stop_early": self.stop_early,
        }

    def document(self) -> dict[str, Any]:
        """What experiment.json says; the number of problems may grow, so it decides nothing."""
        decisive = self.decisive
        specs = {name: model.spec for name, model in self.models.items()}
        told = {
            name: {"source": spec.source, "family": spec.family, "causal": spec.causal, "layers": spec.layers}
            for name, spec in specs.items()
        }
        declared = {name: declare_primary(self.cells[name], causal=bool(spec.causal)) for name, spec in specs.items()}
        return {
            "fingerprint": sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest(),
            "problems": self.problems,
            "batch": max(answering.batch for answering in self.answerings),
            "stop_early": self.stop_early,
            "primary": {name: {one.task: contrast for one in self.answerings} for name, contrast in declared.items()},
            "watched": len(self.models) * len(self.answerings) if self.stop_early else None,  # primary contrasts
            "models": told,
            "command": self.command,
            "versions": describe_versions(),
            "written": now(),
            "decisive": decisive,
        }


def run_experiment(experiment: Experiment, folder: Path, *, progress: Callable[[Progress], None] | None = None) -> Ran:
    """Answer every batch that is not in the folder yet.

    A folder that holds more problems than are asked for keeps them: batches that were begun there stay whole.
    """
    store, items = Store(folder), _items(experiment, experiment.problems)
    with store.claimed(experiment.document()):
        there = max((stop for _, stop in store.spans()), default=0)
        if there > experiment.problems:
            items = _items(experiment, there)
        return _Run(experiment, store, items, tell=progress or (lambda _: None)).all()


def _items(experiment: Experiment, count: int) -> dict[str, list[Item]]:
    """The problems of every task; a task may have fewer than `count`."""
    items = {one.task: problems(one, count) for one in experiment.answerings}
    for name, some in items.items():
        if not some:
            raise UsageError(f"{name} has no problems here; choose another split")
    return items


class _Run:
    """One run over a folder that is claimed."""

    def __init__(
        self, experiment: Experiment, store: Store, items: Mapping[str, list[Item]], *, tell: Callable[[Progress], None]
    ) -> None:
        self.experiment, self.store, self.items, self.tell = experiment, store, items, tell
        batch = min(answering.batch for answering in experiment.answerings)
        self.spans = spans(store.spans(), count=max(map(len, self.items.values())), batch=batch)
        self.finished, self.pace, self.answered = store.finished(), Pace(), 0
        self.rooms: dict[tuple[str, str], Room] = {}  # by model and task: how many problems fit into memory

    def all(self) -> Ran:
        todo = [batch for span in self.spans for batch in self._batches(span) if batch.name not in self.finished]
        total = sum(len(list(self._batches(span))) for span in self.spans)
        if todo:
            self._try_graders()
        reached = 0
        for span in self.spans:
            for batch in [batch for batch in todo if (batch.start, batch.stop) == self._cut(batch.task, span)]:
                self.tell(Progress(done=total - len(todo), total=total, doing=batch, seconds_left=self.pace.left(todo)))
                self._answer(batch, first=span == self.spans[0])
                todo.remove(batch)
            reached = span[1]
            if self.experiment.stop_early and self._decided(span[1]):
                break
        return Ran(
            batches=total - len(todo),
            answered=self.answered,
            problems=min(reached, max(map(len, self.items.values()))),
            stopped_early=bool(todo),
        )

    def _try_graders(self) -> None:
        """Where programs cannot be run, that is said before a model has written any."""
        for one in self.experiment.answerings:
            first = self.items[one.task][0]
            graded(one.task, [first], [first.answer], unsafe=one.unsafe)

    def _cut(self, task: str, span: tuple[int, int]) -> tuple[int, int]:
        """A task may have fewer problems than another."""
        return span[0], min(span[1], len(self.items[task]))

    def _batches(self, span: tuple[int, int]) -> Iterator[Batch]:
        for name in self.experiment.models:
            for answering in self.experiment.answerings:
                start, stop = self._cut(answering.task, span)
                for condition in self.experiment.cells[name] if stop > start else ():
                    yield Batch(model=name, task=answering.task, condition=condition, start=start, stop=stop)

    def _answer(self, batch: Batch, *, first: bool) -> None:
        model, condition = self.experiment.models[batch.model], batch.condition
        answering = next(one for one in self.experiment.answerings if one.task == batch.task)
        items = self.items[batch.task][batch.start : batch.stop]
        follow = first and condition.choose != "none" and condition.act == "mask" and condition.draw == 0
        began = time.perf_counter()
        room = self.rooms.setdefault((batch.model, batch.task), Room("problems"))

        def work(some: Sequence[Item]) -> Answered:
            return answer_batch(model, some, condition, answering, name=batch.model, follow=follow)

        parts = [
            part
            for some in by_length(items, answering.batch)  # one, unless the batch was larger when the span began
            for part in in_parts([items[at] for at in some], work, answering, room=room)
        ]
        seconds, flows = sum(part.seconds for part in parts), [flow for part in parts for flow in part.flows]
        timing = {"batch": max(len(part.rows) for part in parts), "seconds": seconds, "followed": follow}
        tables = {
            "rows": sorted((row for part in parts for row in part.rows), key=lambda row: int(row["problem"])),
            "timings": [{**batch.head(), **timing, "device": str(model.device)}],
            "flows": [{**batch.head(), **_shares(flows)}] if flows else [],
        }
        self.store.save(batch, tables)
        self.pace.add(batch, time.perf_counter() - began)
        self.answered += 1

    def _decided(self, stop: int) -> bool:
        """Whether every primary contrast has reached its threshold by problem `stop - 1`."""
        from sinklens.evaluation.sequential import compare_sequentially

        contrasts = [(name, one.task) for name in self.experiment.models for one in self.experiment.answerings]
        rows = self.store.read("rows", ["model", "task", "condition", "problem", "right"]).to_pylist()
        right = {(row["model"], row["task"], row["condition"], row["problem"]): row["right"] for row in rows}
        for model, task in contrasts:
            sinks, draws = self.experiment.primary(model)
            answered = sorted(key[3] for key in right if key[:3] == (model, task, str(sinks)) and key[3] < stop)
            a = [right[model, task, str(sinks), problem] for problem in answered]
            b = [[right[model, task, str(draw), problem] for draw in draws] for problem in answered]
            if compare_sequentially(a, b, contrasts=len(contrasts)).stopped_at is None:
                return False
        return True


def _check(model: Any, condition: Condition, answerings: Sequence[Answering]) -> None:
    """What a family cannot do is refused before anything runs."""
    try:
        settings = condition.intervention()
        if settings is not None:
            getattr(settings, "of", settings).plan(causal=bool(model.spec.causal))
        for answering in answerings:
            sampler_of(model, answering, condition)
    except UsageError as error:
        raise UsageError(f"condition {str(condition)!r} for {model.spec.source}: {error}") from None


def _shares(flows: Sequence[Any]) -> dict[str, float | None]:
    return {name: None if isnan(value) else value for name, value in shares(flows).items()}
