"""A sweep as data: models x tasks x interventions x seeds in a TOML file, each cell a job.

    models = ["tiny-llama", { name = "some/model", dtype = "bfloat16" }]
    tasks = ["word_problems", { task = "gsm8k", data = "test.jsonl", length = 256 }]
    interventions = ["none", "sinks:top=5", { choose = "random", top = 5 }]
    seeds = [0, 1]
    problems = 64

    [answering]
    length = 64

Jobs stand in the order of the axes, the last one fastest: index and fingerprint of a job follow from the file alone.
Answers are greedy, so that a seed decides what random interventions draw and nothing else: an intervention that draws
nothing has one job, not one a seed.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.files import read_text
from sinklens.sweeps.job import Checkpoint, Job
from sinklens.tables import parse_toml
from sinklens.tasks import BENCHMARKS

AXES = ("models", "tasks", "interventions", "seeds")
ACCEPTED = (*AXES, "problems", "answering")
WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
SETTINGS = tuple(field.name for field in fields(Answering) if field.name not in ("task", "seed"))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The axes, read and checked."""

    models: tuple[Checkpoint, ...]
    answerings: tuple[Answering, ...]  # one a task
    conditions: tuple[Condition, ...]
    seeds: tuple[int, ...]
    problems: int

    def jobs(self) -> list[Job]:
        """Every cell, in the order of the axes; cells that no seed tells apart are one job."""
        return [
            Job(model=model, condition=condition, answering=replace(answering, seed=seed), problems=self.problems)
            for model, answering, condition in product(self.models, self.answerings, self.conditions)
            for seed in (self.seeds if condition.random else self.seeds[:1])
        ]


def read_grid(path: Path) -> tuple[dict[str, Any], list[Job]]:
    """The document of a TOML file, and its jobs."""
    try:
        document = parse_toml(read_text(path))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; give a TOML file with {', '.join(AXES)}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}); see docs/sweeps.md for the format") from error
    return document, jobs_of(document, source=str(path))


def jobs_of(document: Mapping[str, Any], *, source: str = "the grid") -> list[Job]:
    """The jobs of a grid, no two of them the same."""
    jobs = grid_of(document, source=source).jobs()
    counts = Counter(job.fingerprint for job in jobs)
    twice = next((job for job in jobs if counts[job.fingerprint] > 1), None)
    if twice is not None:
        raise UsageError(f"{source} asks for the same job twice: {twice}; name every entry of an axis once")
    return jobs


def grid_of(document: Mapping[str, Any], *, source: str) -> Grid:
    """Every key known, every axis with something on it."""
    unknown = sorted(document.keys() - set(ACCEPTED))
    if unknown:
        raise UsageError(f"{source} has no setting {', '.join(unknown)}; expected some of {', '.join(ACCEPTED)}")
    common = document.get("answering", {})
    _refuse_unknown(common, SETTINGS, f"{source}: answering")
    return Grid(
        models=_axis(document, "models", source, _checkpoint),
        answerings=_axis(document, "tasks", source, lambda value, where: _answering(value, common, where)),
        conditions=_axis(document, "interventions", source, _condition, default=("none",)),
        seeds=_axis(document, "seeds", source, _seed, default=(0,)),
        problems=_count(document.get("problems"), f"{source}: problems"),
    )


def _axis(
    document: Mapping[str, Any],
    name: str,
    source: str,
    read: Callable[[Any, str], Any],
    *,
    default: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """What is on an axis, each entry read; an error says which entry it is about."""
    entries = document.get(name, list(default))
    if not isinstance(entries, list):
        raise UsageError(f"{source}: {name} is {entries!r}; expected a list")
    if not entries:
        came = "is empty" if name in document else "is missing"
        raise UsageError(f"{source}: {name} {came}; expected a list with at least one entry")
    return tuple(read(entry, f"{source}: {name}[{place}]") for place, entry in enumerate(entries))


def _refuse_unknown(table: Any, accepted: tuple[str, ...], where: str) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}; expected a table of settings")
    unknown = sorted(table.keys() - set(accepted))
    if unknown:
        raise UsageError(f"{where} has no setting {', '.join(unknown)}; expected some of {', '.join(accepted)}")


def _checkpoint(value: Any, where: str) -> Checkpoint:
    table = {"name": value} if isinstance(value, str) else value
    _refuse_unknown(table, tuple(field.name for field in fields(Checkpoint)), where)
    for name, text in {"name": None, **table}.items():
        if not isinstance(text, str) or not text:
            raise UsageError(f"{where}: {name} is {text!r}; expected a text such as {'tiny-llama'!r}")
    return Checkpoint(**table)


def _answering(value: Any, common: Mapping[str, Any], where: str) -> Answering:
    table = {"task": value} if isinstance(value, str) else value
    _refuse_unknown(table, ("task", *SETTINGS), where)
    if "task" not in table:
        raise UsageError(f"{where} names no task; expected task = NAME among its settings")
    settings = {**common, **table}
    if settings["task"] in tuple(BENCHMARKS) and "length" not in settings:
        raise UsageError(
            f"{where}: {settings['task']} has no length; give one: 256 for gsm8k, 512 for humaneval is usual"
        )
    answering: Answering = _made(Answering, settings, where)
    return answering


def _condition(value: Any, where: str) -> Condition:
    if not isinstance(value, str):
        _refuse_unknown(value, tuple(field.name for field in fields(Condition)), where)
        condition: Condition = _made(Condition, value, where)
        return condition
    try:
        return parse_condition(value)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _made(kind: Any, settings: Mapping[str, Any], where: str) -> Any:
    """The dataclass with these settings, each of the type that its field has."""
    types = {field.name: field.type for field in fields(kind)}
    try:
        return kind(**{name: _value(name, value, types[name]) for name, value in settings.items()})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _value(name: str, value: Any, kind: Any) -> Any:
    """As TOML writes it: 1 is a number too where 1.0 is, true is none. What a class checks itself has type Any."""
    if kind is Any or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and isinstance(float(value), kind):
        return float(value)
    expected = str(getattr(kind, "__name__", kind)).removesuffix(" | None")
    raise UsageError(f"{name} is {value!r}; expected {WORDS.get(expected, expected)}")


def _seed(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{where} is {value!r}; expected a whole number from 0")
    return value


def _count(value: Any, where: str) -> int:
    if value is None:
        raise UsageError(f"{where} is missing; expected how many problems of each task are answered")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{where} is {value!r}; expected a whole number from 1")
    return value
