"""Problems answered by a model under a condition, and graded: one row a problem.

A row (`ROW`) says what was asked, what was done to attention, what came out and whether it is right. Random draws
belong to their problem: they are the same whatever else is in the batch. How long it took is told apart from the rows,
which are the same on every machine.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from math import isnan
from types import MappingProxyType
from typing import Any

from sinklens.attention.intervener import repeats
from sinklens.attention.observe import intervene
from sinklens.errors import UsageError, choose
from sinklens.evaluation.conditions import Condition
from sinklens.evaluation.greedy import greedy_sampler, has_blocks
from sinklens.evaluation.memory import Room
from sinklens.interventions.dose import Dose, overall
from sinklens.interventions.flow import Flow
from sinklens.models.language_model import LanguageModel
from sinklens.recording.identity import short_name
from sinklens.sampling.checks import at_least
from sinklens.sampling.generate import generate
from sinklens.sampling.step import Sampler
from sinklens.tasks import BENCHMARKS, TASKS, task
from sinklens.tasks.files import content_hash
from sinklens.tasks.item import Item

Row = dict[str, Any]
# The columns of a row and their types in Parquet.
ROW: Mapping[str, str] = MappingProxyType(
    {
        "model": "string",
        "task": "string",
        "split": "string",
        "condition": "string",  # str(Condition)
        "choose": "string",
        "top": "int64",
        "epsilon": "float64",
        "act": "string",
        "scope": "string",  # null: the family's own
        "keys": "string",
        "measure": "string",
        "draw": "int64",
        "problem": "int64",
        "prompt": "string",
        "answer": "string",  # the task's
        "text": "string",  # the model's
        "right": "bool",
        "grades": "string",  # JSON, by grader
        "dose": "float64",  # of the batch; null: unmasked
        "keys_removed": "float64",  # a head and query, mean over layers and the steps that deny something, of the batch
        "tokens": "int64",  # written
        "steps": "int64",  # executed
        "causal": "bool",  # whether the model is
    }
)
UNMASKED = Condition()


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How problems are answered: greedy, one token a step unless `steps` says fewer."""

    task: str
    split: str = "test"
    data: str | None = None  # the file of a published task
    shots: int | None = None  # examples in the prompt, for tasks that take them; None: as usual
    length: int = 64  # tokens of an answer
    steps: int | None = None  # denoising steps; None: as many as tokens
    block: int | None = None  # of LLaDA and MMaDA; None: one block, as the embedded models were trained
    batch: int = 64  # problems at a time: decides the speed, and rows only as far as rounding does
    seed: int = 0  # of random controls
    threshold: float | None = None  # LLaDA and MMaDA: commit every position more confident than this
    stop_at_eos: bool = False  # LLaDA and MMaDA
    graph: bool = False  # steps as CUDA graphs where they can be one: decides the speed alone
    unsafe: bool = False  # run programs that the model wrote without a sandbox, where there is none

    def __post_init__(self) -> None:
        choose("task", self.task, (*TASKS, *BENCHMARKS))
        if self.task in TASKS and (self.data is not None or self.shots is not None):
            raise UsageError(
                f"data={self.data!r}, shots={self.shots!r} with task {self.task!r}, whose problems are made by rule; "
                f"leave them out, or choose one of {', '.join(BENCHMARKS)}"
            )
        if self.task == "humaneval" and self.shots is not None:
            raise UsageError(f"shots={self.shots!r} with task 'humaneval', whose prompts have none; leave it out")
        at_least("length", self.length, 1)
        at_least("batch", self.batch, 1)
        if self.steps is not None:
            at_least("steps", self.steps, 1)

    def as_dict(self) -> dict[str, Any]:
        """All settings, as JSON holds them."""
        return asdict(self)

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that decide rows: not how many problems run at a time, nor how their programs are held.

        The data by their content, wherever they lie.
        """
        # With a threshold a row waits for its neighbours at the end of a block: its steps and draws depend on them.
        left_out = ("graph", "unsafe") if self.threshold is not None else ("batch", "graph", "unsafe")
        told = {name: value for name, value in self.as_dict().items() if name not in left_out}
        return told if self.data is None else told | {"data": content_hash(self.data)}

    @property
    def fingerprint(self) -> str:
        """The same for the same rows."""
        return sha256(json.dumps(self.decisive, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One batch under one condition."""

    rows: list[Row]
    seconds: float  # generating alone
    flows: list[Flow]  # where the attention went, if that was asked for


def problems(answering: Answering, count: int, *, start: int = 0) -> list[Item]:
    """Problems `start` to `start + count - 1`, or as many of them as there are."""
    published = {name: value for name in ("data", "shots") if (value := getattr(answering, name)) is not None}
    return list(islice(task(answering.task).items(answering.split, start=start, **published), count))


def sampler_of(model: LanguageModel, answering: Answering, condition: Condition = UNMASKED) -> Sampler:
    """The sampler that answers. Steps and blocks are for families that have them: one setting can serve several.

    A causal model whose keys are recomputed runs without its cache, a diffusion model whose keys are block cached with
    one.
    """
    return greedy_sampler(
        model,
        length=answering.length,
        steps=answering.steps,
        block=answering.block if has_blocks(model) else None,
        threshold=answering.threshold,
        stop_at_eos=answering.stop_at_eos,
        cache=not (model.spec.causal and condition.recomputes()),
        refresh=condition.refresh,
    )


def by_length(items: Sequence[Item], batch: int) -> Iterator[list[int]]:
    """Which items share a batch: those with prompts of similar length."""
    order = sorted(range(len(items)), key=lambda number: len(items[number].prompt))
    return (order[start : start + batch] for start in range(0, len(order), batch))


def graded(name: str, items: Sequence[Item], texts: Sequence[str], *, unsafe: bool = False) -> list[bool]:
    """Which of the answers are right."""
    module = task(name)
    if hasattr(module, "grade_all"):
        right: list[bool] = module.grade_all(items, texts, unsafe=unsafe)
        return right
    return [module.grade(item, text) for item, text in zip(items, texts, strict=True)]


def answer_problems(
    model: Any,
    items: Sequence[Item],
    condition: Condition,
    answering: Answering,
    *,
    name: str | None = None,
    room: Room | None = None,
) -> list[Row]:
    """A row for each problem, in their order. `name`: of the model in the rows; by default its own.

    room: how many fit into memory at a time, where the caller wants to know.
    """
    rows: dict[int, Row] = {}
    room = room or Room("problems")

    def work(some: Sequence[Item]) -> Answered:
        return answer_batch(model, some, condition, answering, name=name)

    for some in by_length(items, answering.batch):
        parts = in_parts([items[number] for number in some], work, answering, room=room)
        rows |= zip(some, (row for part in parts for row in part.rows), strict=True)
    return [rows[number] for number in range(len(items))]


def in_parts(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Answered], answering: Answering, *, room: Room
) -> list[Answered]:
    """`work` on a batch, in parts where memory does not suffice; not where rows depend on their neighbours."""
    return [work(items)] if "batch" in answering.decisive else room.run(items, work)


def answer_batch(
    model: Any,
    items: Sequence[Item],
    condition: Condition,
    answering: Answering,
    *,
    name: str | None = None,
    follow: bool = False,
) -> Answered:
    """All items at once. `follow`: record where the attention goes that a mask takes."""
    if model.tokenizer is None:
        raise UsageError(f"{model.spec.source} has no tokenizer; a task needs one")
    sampler = sampler_of(model, answering, condition)
    settings = condition.intervention(seed=answering.seed, problems=tuple(item.index for item in items), follow=follow)
    began = time.perf_counter()
    with nullcontext() if settings is None else intervene(model, settings) as lab:
        graph = answering.graph and _repeats(model, condition, lab)
        out = generate(model, [item.prompt for item in items], sampler, graph=graph)
    seconds = time.perf_counter() - began
    doses = [] if lab is None else lab.doses
    shared = {
        "model": name or short_name(model.spec.source) or model.spec.family,
        "causal": bool(model.spec.causal),
        "task": answering.task,
        "split": answering.split,
        "condition": str(condition),
        **{field: getattr(condition, field) for field in ("choose", "top", "act", "scope", "keys", "measure", "draw")},
        "epsilon": None if condition.epsilon is None else float(condition.epsilon),
        "dose": _number(overall(doses)),
        "keys_removed": _keys_removed(doses),
        "steps": out.steps,
    }
    texts, counts = out.text or [], out.lengths.tolist()
    rows = [_ordered(shared | answer) for answer in _answers(items, texts, answering, tokens=counts)]
    return Answered(rows=rows, seconds=seconds, flows=[] if lab is None else lab.flows)


def _repeats(model: LanguageModel, condition: Condition, lab: object) -> bool:
    """Whether all steps are alike, so that a card can run them alone."""
    return not model.spec.causal and condition.refresh is None and (lab is None or repeats(lab))


def _answers(
    items: Sequence[Item], texts: Sequence[str], answering: Answering, *, tokens: Sequence[int]
) -> Iterator[Row]:
    """What is a problem's own in its row."""
    right = graded(answering.task, items, texts, unsafe=answering.unsafe)
    several = getattr(task(answering.task), "grades", None)
    for item, text, correct, count in zip(items, texts, right, tokens, strict=True):
        grades = {"right": correct} if several is None else several(item, text)
        yield {
            "problem": item.index,
            "prompt": item.prompt,
            "answer": item.answer,
            "text": text,
            "right": bool(correct),
            "grades": json.dumps(grades),
            "tokens": count,
        }


def _keys_removed(doses: Sequence[Dose]) -> float | None:
    """Keys denied, a head and query: the mean over all steps and layers that deny something."""
    counts = [dose.keys for dose in doses if dose.masked and not isnan(dose.keys)]
    return sum(counts) / len(counts) if counts else None


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def _ordered(row: Row) -> Row:
    return {name: row[name] for name in ROW}
