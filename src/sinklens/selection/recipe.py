"""The training of a selector as data: everything that decides the weights, in one TOML file."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from sinklens import tables
from sinklens.errors import UsageError, choose
from sinklens.selection.baselines import BASELINES
from sinklens.selection.gates import GateStart
from sinklens.selection.losses import BudgetLoss
from sinklens.selection.selector import Gating
from sinklens.selection.vit import ViTShape

RECIPES = Path(__file__).parent / "recipes"
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    lr: float = 1e-3
    weight_decay: float = 0.05  # of matrices
    clip: float = 1.0  # of the gradient's norm
    smoothing: float = 0.0  # of labels
    train_backbone: bool = True  # False: gates, budget token, codec and the prefix alone


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, then a cosine to `final` of the highest rate."""

    steps: int = 6000
    batch: int = 256
    warmup: int = 200
    plain: int = 0  # steps at the start that train the backbone alone, at alpha = 1
    full_share: float = 0.1  # of the later batches: at alpha = 1
    final: float = 0.01
    save_every: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.full_share < 1:
            raise UsageError(f"full_share is {self.full_share!r}; expected a share of the batches from 0, below 1")
        if self.steps < 1 or self.batch < 1 or self.save_every < 1 or not 0 <= self.plain <= self.steps:
            raise UsageError(
                f"steps {self.steps}, batch {self.batch}, save_every {self.save_every}, plain {self.plain}; expected "
                "whole numbers from 1, and plain from 0 to the number of steps"
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step, as a share of the highest."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        done = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return rise * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What the channel does in training; each image draws its own SNR."""

    snr_low: float | None = None  # dB; None: no noise
    snr_high: float | None = None
    erasure: float = 0.0  # probability that a token is lost

    def __post_init__(self) -> None:
        given = [value for value in (self.snr_low, self.snr_high) if value is not None]
        if len(given) == 1 or not all(math.isfinite(value) for value in given) or given != sorted(given):
            raise UsageError(
                f"noise of {self.snr_low} to {self.snr_high} dB; expected two finite ends, the lower first, or none"
            )
        if not 0 <= self.erasure <= 1:
            raise UsageError(f"erasure is {self.erasure!r}; expected a probability from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class SelectionRecipe:
    """What is trained, and how. The images are not part of it: `train` takes them."""

    name: str
    seed: int = 0
    # A transformers ViT or DeiT to start from (folder or hub id), of `shape` only the classes then count; None: a small
    # one of `shape`.
    start: str | None = None
    revision: str | None = None  # of a hub id: commit, tag or branch
    alpha: float | None = None  # a fixed budget, for models to compare with; None: drawn from [0, 1) for every image
    codec_rate: float | None = None  # channel uses per feature; None: no codec
    # Patches are chosen by a ranking (selection/baselines.py), at round(alpha * patches) behind every gate: a model to
    # compare with, whose gates learn nothing. None: by the gates.
    ranking: str | None = None
    precision: str = "float32"  # "tf32": matrix products on a GPU alone; "bfloat16": autocast over float32 weights
    graph: bool = True  # on a GPU: updates as CUDA graphs (selection/update.py)
    shape: ViTShape = field(default_factory=ViTShape)
    gating: Gating = field(default_factory=Gating)
    gates: GateStart = field(default_factory=GateStart)
    budget: BudgetLoss = field(default_factory=BudgetLoss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    noise: Noise = field(default_factory=Noise)

    def __post_init__(self) -> None:
        choose("precision", self.precision, PRECISIONS)
        if self.ranking is not None:
            choose("ranking", self.ranking, BASELINES)
        if self.revision is not None and self.start is None:
            raise UsageError(f"revision is {self.revision!r}, and nothing to start from is named; give start too")
        if self.alpha is not None and not 0 <= self.alpha < 1:
            raise UsageError(f"alpha is {self.alpha!r}; expected a share from 0, below 1, or none to draw it")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in TOML: what is not set is not there."""
        return _without_none(asdict(self))

    @property
    def fingerprint(self) -> str:
        """Of all that decides the weights, images aside."""
        return sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


PARTS: dict[str, Any] = {
    "shape": ViTShape,
    "gating": Gating,
    "gates": GateStart,
    "budget": BudgetLoss,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "noise": Noise,
}


def read_selection_recipe(name: str | Path, changes: tuple[str, ...] = ()) -> SelectionRecipe:
    """A recipe by the name of an embedded one or by its file; `changes` are settings such as "schedule.steps=100"."""
    values, source = tables.read_table(name, changes, folder=RECIPES)
    return selection_recipe_of(values, source=source)


def selection_recipe_of(values: Mapping[str, Any], *, source: str) -> SelectionRecipe:
    """The recipe that a document says, every key known and every value of its kind."""
    given = dict(values)
    parts = {name: read_part(kind, given.pop(name, {}), f"{source}: {name}") for name, kind in PARTS.items()}
    recipe: SelectionRecipe = read_part(SelectionRecipe, {**given, **parts}, source)
    return recipe


def read_part(kind: Any, values: Any, where: str) -> Any:
    """A part of a recipe, or of a model's config.json, from its table."""
    return tables.read_part(kind, values, where, value=_value)


def _value(_key: str, expected: Any, value: Any, where: str) -> Any:
    """A TOML value as the field's type has it; None is for what is not set, and TOML has no word for it."""
    choices = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    if value is None and type(None) in choices:
        return None
    wanted = next(choice for choice in choices if choice is not type(None))
    if get_origin(wanted) is tuple and isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return tuple(value)
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, type) and get_origin(wanted) is None and type(value) is wanted:
        return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    raise UsageError(f"{where} is {value!r}; expected {words.get(wanted, 'a list of whole numbers')}")


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            plain[key] = _without_none(value)
        elif value is not None:
            plain[key] = list(value) if isinstance(value, tuple) else value
    return plain
