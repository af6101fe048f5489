"""A training run as data: everything that decides the weights, in one TOML file."""

import json
import math
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.models.layers import TransformerShape
from sinklens.tables import read_part, read_table

FAMILIES = ("llama", "llada", "dream")
RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The network. All embedded models share it; Dream's layout adds biases to q, k and v."""

    layers: int = 8
    width: int = 256
    heads: int = 4
    mlp_width: int = 512
    vocab_size: int = 4096
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def transformer(self, family: str) -> TransformerShape:
        return TransformerShape(
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.heads,
            width=self.width,
            mlp_width=self.mlp_width,
            rows=self.vocab_size,
            norm_eps=self.norm_eps,
            rope_theta=self.rope_theta,
            tied=True,
            qkv_bias=family == "dream",
        )


@dataclass(frozen=True, kw_only=True)
class Data:
    """One step reads `text_rows` windows of natural text and `task_rows` problems."""

    context: int = 512  # tokens of a row of natural text, bos included
    text_rows: int = 64
    task_context: int = 128  # tokens of a row that holds one problem, its answer, and eos to the end
    task_rows: int = 256
    pool: int = 600_000  # different problems, drawn from again and again
    task_weight: float = 1.0  # of the loss on tasks; that on text has 1
    tail_weight: float = 1.0  # of the eos that fill a row of a diffusion model, beside the answer's tokens
    tasks: MappingProxyType[str, float] = field(
        default_factory=lambda: MappingProxyType({"word_problems": 0.7, "small_programs": 0.3})
    )

    @property
    def tokens(self) -> int:
        return self.context * self.text_rows + self.task_context * self.task_rows


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    name: str = "adamw"
    lr: float = 3e-3
    matrix_lr: float = 0.02  # of Muon
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, flat, linear decay. A segment starts from weights alone, so that any segment's end can be resumed."""

    steps: int = 6000
    warmup: int = 200
    decay_from: float = 0.8  # of the steps
    final: float = 0.1  # of the learning rate
    segment: int = 2000
    measure_every: int = 500
    rewarm: int = 50  # steps of warm-up at the start of every later segment

    def __post_init__(self) -> None:
        for name in ("decay_from", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)!r}; expected a share from 0 to 1")

    def rate(self, step: int) -> float:
        """The learning rate of a step, as a share of the highest."""
        begin = math.ceil(self.decay_from * self.steps)
        rate = min(1.0, (step + 1) / self.warmup)
        if step >= begin:
            rate *= 1 - (1 - self.final) * (step - begin + 1) / (self.steps - begin)
        since = step % self.segment
        if step >= self.segment and since < self.rewarm:
            rate *= (since + 1) / self.rewarm
        return rate

    def ends_segment(self, done: int) -> bool:
        """Whether the state is written after `done` steps."""
        return done == self.steps or done % self.segment == 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, on what, and how."""

    name: str
    family: str
    seed: int = 0
    start: str | None = None  # a model to start from: a folder or an embedded name
    anneal: float = 0.0  # share of the steps over which the highest rate of masking grows to 1
    shape: Shape = field(default_factory=Shape)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        choose("family", self.family, FAMILIES)

    @property
    def causal(self) -> bool:
        return self.family == "llama"

    @property
    def tokens(self) -> int:
        """In the whole run."""
        return self.data.tokens * self.schedule.steps

    def as_dict(self) -> dict[str, Any]:
        plain = _as_dict(self)
        return {key: value for key, value in plain.items() if value is not None}

    @property
    def fingerprint(self) -> str:
        """Of all that decides the weights."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


PARTS: dict[str, Any] = {"shape": Shape, "data": Data, "optimizer": Optimizer, "schedule": Schedule}


def _as_dict(value: Any) -> dict[str, Any]:
    """`dataclasses.asdict`, which cannot copy a mapping proxy."""
    plain = {item.name: getattr(value, item.name) for item in fields(value)}
    for key, part in plain.items():
        if key in PARTS:
            plain[key] = _as_dict(part)
        elif isinstance(part, MappingProxyType):
            plain[key] = dict(part)
    return plain


def read_recipe(name: str | Path, changes: tuple[str, ...] = ()) -> Recipe:
    """A recipe by the name of an embedded one or by its file; `changes` are settings such as "schedule.steps=100"."""
    values, source = read_table(name, changes, folder=RECIPES)
    return recipe_of(values, source=source)


def recipe_of(values: dict[str, Any], *, source: str) -> Recipe:
    """The recipe that a TOML document says, every key known and every value of its kind."""
    given = dict(values)
    parts = {name: _read(kind, given.pop(name, {}), f"{source}: {name}") for name, kind in PARTS.items()}
    recipe: Recipe = _read(Recipe, {**given, **parts}, source)
    return recipe


def _read(kind: Any, values: Any, where: str) -> Any:
    return read_part(kind, values, where, value=_value, hint=f"; see {RECIPES.name}/ for whole recipes")


def _value(key: str, expected: Any, value: Any, where: str) -> Any:
    """What a field of a recipe takes; parts are read already."""
    if key == "tasks":
        return MappingProxyType(_shares(value, where))
    if expected in (str, str | None) and not isinstance(value, str):
        raise UsageError(f"{where} is {value!r}; expected a text")
    if expected in (int, float) and not _is_number(value):
        raise UsageError(f"{where} is {value!r}; expected a number")
    if expected is int and (not isinstance(value, int) or value < (0 if key == "seed" else 1)):
        raise UsageError(f"{where} is {value!r}; expected a whole number from {0 if key == 'seed' else 1}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shares(value: Any, where: str) -> dict[str, float]:
    from sinklens.tasks import TASKS

    if not isinstance(value, dict) or not value or not value.keys() <= TASKS.keys():
        raise UsageError(f"{where} is {value!r}; expected shares of {', '.join(TASKS)}")
    if not all(_is_number(share) and share > 0 for share in value.values()):
        raise UsageError(f"{where} is {value!r}; expected shares above 0")
    return dict(value)
