"""A model that reads and answers under many cells, batch after batch, into a folder (compress_store.py).

Batches of problems are outermost, so that an experiment that is broken off has the same problems in all cells. What is
there is not done again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from json import dumps
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.compress_answering import answer
from sinklens.evaluation.compress_cells import Cell
from sinklens.evaluation.compress_problems import Asking, make_problems
from sinklens.evaluation.compress_store import CompressStore
from sinklens.evaluation.compress_text import pack, read
from sinklens.evaluation.memory import Room, release_memory
from sinklens.recording.identity import describe_model, describe_versions
from sinklens.sampling.checks import at_least
from sinklens.tasks import longbench
from sinklens.traces.manifest import now

TEXT = "lm"


@dataclass(frozen=True, kw_only=True, eq=False)
class CompressExperiment:
    """A model, what it is asked, and what is done to its cache."""

    model: Any
    name: str
    cells: Mapping[str, Sequence[Cell]]  # by task
    asking: Asking
    text: str  # hash of the documents
    problems: int  # of every length and depth, or chunks
    batch: int = 8
    stride: int = 1
    command: str | None = None

    def __post_init__(self) -> None:
        for name in ("problems", "batch", "stride"):
            at_least(name, getattr(self, name), 1)
        spec = self.model.spec
        if not spec.causal or not hasattr(self.model, "decode"):
            raise UsageError(
                f"{self.name} ({spec.family}) keeps no cache of keys and values from token to token; choose an "
                "autoregressive model"
            )
        for cell in (cell for cells in self.cells.values() for cell in cells if cell.order != "none"):
            layers = cell.settings(length=max(self.asking.lengths), layers=spec.layers, seed=0)["skip"]
            if any(layer >= spec.layers for layer in layers) or len(layers) == spec.layers:
                raise UsageError(
                    f"skip {cell.skip!r} with {spec.layers} layers; name layers 0 to {spec.layers - 1}, not all of them"
                )

    def document(self) -> dict[str, Any]:
        """experiment.json. Problems, lengths, orders and budgets may be added, so they decide nothing."""
        told = describe_model(self.model, self.name)
        asking = self.asking
        data = None if asking.data is None else _data_hash(asking)
        decisive = {
            "model": {part: told[part] for part in ("dtype", "config_sha256", "weights_sha256")},
            "settings": {
                "wording": "paper" if asking.paper_grid else asking.wording,
                "paper_grid": asking.paper_grid,
                "text": self.text,
                "longbench": data,
                "seed": asking.seed,
            },
        }
        return {
            "fingerprint": sha256(dumps(decisive, sort_keys=True).encode()).hexdigest(),
            "model": self.name,
            "source": told["source"],
            "problems": self.problems,
            "command": self.command,
            "versions": describe_versions(),
            "written": now(),
            "decisive": decisive,
        }


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far it is."""

    done: int  # answers and chunks of all cells, those found included
    total: int
    doing: str
    seconds_left: float | None  # None: nothing to judge by yet


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """Problems, or chunks of text, that run together under cells that they all lack."""

    task: str
    length: int
    depth: float | None
    items: Sequence[Any]  # Problem, or numbers of chunks
    cells: Sequence[Cell]

    @property
    def name(self) -> str:
        depth = "" if self.depth is None else f" at {100 * self.depth:.0f} %"
        return f"{self.task}, {self.length} tokens{depth}"


@dataclass(kw_only=True)
class _Pace:
    """Seconds by task and length, and of all: for a cell alone, and for what the cells of a batch share."""

    spent: dict[Any, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def add(self, job: _Job, part: str, seconds: float) -> None:
        for key, weight in (((part, job.task, job.length), 1.0), (part, float(job.length))):
            self.spent[key][0] += seconds
            self.spent[key][1] += weight * len(job.items)

    def of(self, job: _Job, part: str) -> float:
        """By its like, else by all so far, as if it took as long as its prompt."""
        own = (part, job.task, job.length) in self.spent
        seconds, weight = self.spent[(part, job.task, job.length) if own else part]
        return seconds / weight * len(job.items) * (1 if own else job.length) if weight else 0.0

    def left(self, jobs: Sequence[_Job], counts: Sequence[float]) -> float:
        """counts: cells that each job still has to run; a part of one where some of its problems have."""
        cells = sum(self.of(job, "cell") * count for job, count in zip(jobs, counts, strict=True))
        begun = (count < len(job.cells) for job, count in zip(jobs, counts, strict=True))
        return float(cells + sum(self.of(job, "shared") for job, done in zip(jobs, begun, strict=True) if not done))


def run(experiment: CompressExperiment, folder: Path, *, progress: Callable[[Progress], None] | None = None) -> None:
    """Do what is not in the folder yet."""
    asked = _asked(experiment)
    texts = _chunks(experiment) if TEXT in experiment.cells else None
    store, pace = CompressStore(folder), _Pace()
    with store.claimed(experiment.document()):
        jobs = list(_jobs(experiment, asked, known=_known(store, experiment.stride)))
        total = sum(len(items) * len(experiment.cells[task]) for task, items in asked)
        left = [float(len(job.cells)) for job in jobs]
        rooms: dict[tuple[str, int], Room] = {}  # by task and length: how many problems fit into memory
        for place, job in enumerate(jobs):
            for tables in _in_parts(experiment, job, texts, rooms.setdefault((job.task, job.length), Room("problems"))):
                (timing,) = tables["timings"]
                store.add(f"{job.task}-{job.length}.{timing['cell']}", tables)
                if left[place] == len(job.cells):
                    pace.add(job, "shared", timing["shared"])
                pace.add(job, "cell", timing["seconds"])
                left[place] -= timing["problems"] / len(job.items)
                if progress is not None:
                    missing = sum(len(one.items) * count for one, count in zip(jobs, left, strict=True))
                    ahead = pace.left(jobs, left)
                    progress(Progress(done=total - round(missing), total=total, doing=job.name, seconds_left=ahead))


def _asked(experiment: CompressExperiment) -> list[tuple[str, list[Any]]]:
    """By task, and within it by length, depth and set: problems, or numbers of chunks."""
    found: list[tuple[str, list[Any]]] = []
    for task in experiment.cells:
        if task == TEXT:
            found.append((task, list(range(experiment.problems))))
            continue
        made = make_problems(experiment.model.tokenizer, task, experiment.asking, count=experiment.problems)
        found += [(task, group) for group in made if group]
    return found


def _chunks(experiment: CompressExperiment) -> Any:
    asking = experiment.asking
    return pack(experiment.model.tokenizer, asking.documents, length=max(asking.lengths), count=experiment.problems)


def _known(store: CompressStore, stride: int) -> set[tuple[Any, ...]]:
    """What is there: the key of a problem, and a cell."""
    place = ["task", "set", "length", "depth", "problem", "cell"]
    rows = store.read("rows", place).to_pylist()
    texts = store.read("texts", ["length", "problem", "cell", "stride"]).to_pylist()
    return {tuple(row[name] for name in place) for row in rows} | {
        (TEXT, row["length"], row["problem"], row["cell"])
        for row in texts
        if row["stride"] == stride or row["cell"] == str(Cell())
    }


def _jobs(
    experiment: CompressExperiment, asked: Sequence[tuple[str, list[Any]]], *, known: set[tuple[Any, ...]]
) -> Iterator[_Job]:
    """Batch after batch of problem numbers, in each all tasks and lengths: what runs together lacks the same cells."""
    longest = max(experiment.asking.lengths)
    for start in range(0, experiment.problems, experiment.batch):
        for task, items in asked:
            cells = experiment.cells[task]

            def lacks(item: Any, task: str = task, cells: Sequence[Cell] = cells) -> tuple[Any, ...]:
                """How many tokens an item has, and the places of the cells that it lacks."""
                key = (TEXT, longest, item) if task == TEXT else item.key
                size = longest if task == TEXT else len(item.ids)
                return size, tuple(place for place, cell in enumerate(cells) if (*key, str(cell)) not in known)

            some = sorted(items[start : start + experiment.batch], key=lacks)
            for (_, missing), group in groupby(some, key=lacks):
                if missing:
                    own = list(group)
                    length, depth = (longest, None) if task == TEXT else (own[0].length, own[0].depth)
                    wanted = [cells[place] for place in missing]
                    yield _Job(task=task, length=length, depth=depth, items=own, cells=wanted)


def _in_parts(
    experiment: CompressExperiment, job: _Job, texts: Any, room: Room
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of one cell after the other; of parts of the problems where memory does not suffice for all."""
    for items in room.cut(job.items):
        part, done = replace(job, items=items), set()
        try:
            for tables in _results(experiment, part, texts):
                yield tables
                done.add(tables["timings"][0]["cell"])
            continue
        except Exception as error:
            room.shrink(len(items), error)
        release_memory()
        yield from _in_parts(experiment, replace(part, cells=[c for c in job.cells if str(c) not in done]), texts, room)


def _results(experiment: CompressExperiment, job: _Job, texts: Any) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of one cell after the other."""
    model, seed = experiment.model, experiment.asking.seed
    timing = {
        "task": job.task, "length": job.length, "depth": job.depth, "problems": len(job.items),
        "device": str(model.device),
    }  # fmt: skip
    named = {"model": experiment.name}
    if job.task == TEXT:
        for found in read(
            model,
            texts[job.items],
            job.cells,
            numbers=job.items,
            stride=experiment.stride,
            seed=seed,
        ):
            spent = {"cell": str(found.cell), "shared": 0.0, "seconds": found.seconds}
            yield {"texts": [named | row for row in found.rows], "timings": [timing | spent]}
        return
    for answered in answer(model, job.items, job.cells, seed=seed):
        spent = {"cell": str(answered.cell), "shared": answered.shared, "seconds": answered.seconds}
        yield {"rows": [named | row for row in answered.rows], "timings": [timing | spent]}


def _data_hash(asking: Asking) -> dict[str, Any]:
    """The files of longbench by their content, wherever they lie, and whose prompts are used."""
    from sinklens.tasks.files import content_hash

    assert asking.data is not None
    published = longbench.read_wordings(asking.data).published
    return {"files": content_hash(asking.data), "published_prompts": published, "longest": max(asking.lengths)}
