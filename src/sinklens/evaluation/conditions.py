"""What is done to attention while problems are answered, as data: a cell of an experiment.

    none                               nothing
    sinks:top=5                        the five sinks of every head, the family's own way
    sinks:epsilon=3,keys=cached        all above 3 fair shares, keys and values from a pass without the mask
    sinks:top=1,keys=block_cached      the same in a run whose prompt stands in a block cache (diffusion models)
    random:top=5,draw=2                the third draw of five random keys
    sinks:top=5,act=zero,scope=layer   values at 0 in place of logits at minus infinity, one ranking a layer

`str` of a condition reads like this, and `parse_condition` reads it back. Nothing here needs torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b, sha256
from math import isfinite
from types import MappingProxyType
from typing import Any

from sinklens.errors import UsageError, choose
from sinklens.interventions.plan import ACCEPTED, check_choices, resolve

# Which keys: settings of sinklens.interventions, by module and class, and what a label calls them.
CHOICES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "sinks": ("mask_sinks", "MaskSinks", "sinks"),
        "random": ("random_keys", "RandomKeys", "random"),
        "next": ("next_ranked", "NextRanked", "next ranked"),
        "mass": ("mass_matched", "MassMatched", "mass matched"),
        "position": ("position_matched", "PositionMatched", "position matched"),
        "other_head": ("other_head", "OtherHead", "sinks of another head"),
        "stale": ("stale_step", "StaleStep", "stale sinks"),
        "first": ("first_token", "FirstToken", "first tokens"),
    }
)
ONE: Mapping[str, str] = MappingProxyType(  # what a label calls a single key, where that is another word
    {"sinks": "sink", "other_head": "sink of another head", "stale": "stale sink", "first": "first token"}
)
DRAWN = ("random", "mass", "position")  # choices that differ from draw to draw
ACTS: Mapping[str, str] = MappingProxyType({"mask": "", "zero": "zero value", "mean": "mean value"})
REFRESH = 16  # steps between refreshes under keys=block_cached
SETTINGS = ("scope", "keys", "measure", "source", "rank_by", "queries", "prefill")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Settings; None is the family's own choice (docs/interventions.md).

    >>> Condition(choose="sinks", top=5, keys="cached").label
    '5 sinks, cached'
    """

    # What comes from callers is annotated as anything, because it is checked here, with a message.
    choose: Any = "none"  # which keys: "none", or one of CHOICES
    top: Any = None  # keys a head
    epsilon: Any = None  # in place of top: a threshold in fair shares
    act: Any = "mask"  # logit minus infinity | "zero" | "mean": the value alone
    scope: Any = None
    keys: Any = None
    measure: Any = None
    source: Any = None
    rank_by: Any = None
    queries: Any = None
    prefill: Any = None
    draw: Any = 0  # number of a repeated random control

    def __post_init__(self) -> None:
        choose("choice of keys", self.choose, ("none", *CHOICES))
        choose("act", self.act, tuple(ACTS))
        given = {name: value for name, value in self._given().items() if name != "choose"}
        if self.choose == "none":
            if given:
                raise UsageError(
                    f"choose='none' with {_listed(given)}: nothing is done to attention; leave that out, or name the "
                    f"keys, one of {', '.join(map(repr, CHOICES))}"
                )
            return
        self._check_budget()
        check_choices(**{name: getattr(self, name) for name in SETTINGS})
        if self.source == "fixed":
            raise UsageError("source='fixed' needs positions, which a condition has not; choose='first' is the nearest")
        if isinstance(self.draw, bool) or not isinstance(self.draw, int) or self.draw < 0:
            raise UsageError(f"draw is {self.draw!r}; expected a number from 0 on")
        if self.draw and not self.random:
            raise UsageError(
                f"draw={self.draw} with choose={self.choose!r}, whose keys are the same in every draw; leave it out, "
                f"or use one of {', '.join(map(repr, DRAWN))}"
            )
        if self.keys is not None or self.queries is not None:
            self._check_families()

    def _check_budget(self) -> None:
        if (self.top is None) == (self.epsilon is None):
            raise UsageError(
                f"{self.choose!r} with top={self.top} and epsilon={self.epsilon}; expected one of them: keys a head "
                f"({self.choose}:top=5), or a threshold in fair shares ({self.choose}:epsilon=3)"
            )
        if self.top is not None and (isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 1):
            raise UsageError(f"top is {self.top!r}; expected a whole number, 1 or more (for none: choose='none')")
        number = isinstance(self.epsilon, (int, float)) and not isinstance(self.epsilon, bool)
        if self.epsilon is not None and not (number and isfinite(self.epsilon) and self.epsilon >= 0):
            raise UsageError(f"epsilon is {self.epsilon!r}; expected a finite number, 0 or more")
        if self.epsilon is not None and self.choose in ("mass", "first"):
            raise UsageError(f"epsilon={self.epsilon!r} with choose={self.choose!r}, which takes a number of keys: top")

    def _check_families(self) -> None:
        """A combination that one family has is a condition; what none has is refused as the first one refuses it."""
        refused = []
        for causal in (True, False):
            try:
                resolve(causal=causal, **{name: getattr(self, name) for name in SETTINGS})
            except UsageError as error:
                refused.append(error)
        if len(refused) == 2:
            raise refused[0]

    def _given(self) -> dict[str, Any]:
        """The settings that are not the default, in the order of the fields."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    @property
    def random(self) -> bool:
        """Whether draws differ."""
        return self.choose in DRAWN

    @property
    def label(self) -> str:
        """For people; all draws of a random control have the same."""
        if self.choose == "none":
            return "unmasked"
        above = f"eps {self.epsilon:g} {CHOICES[self.choose][2]}" if self.top is None else None
        parts = [above or counted(self.top, self.choose), ACTS[self.act]]
        parts += [_said(name, getattr(self, name)) for name in SETTINGS if getattr(self, name) is not None]
        return ", ".join(part for part in parts if part)

    def __str__(self) -> str:
        """What `parse_condition` reads."""
        given = self._given()
        if self.choose == "none":
            return "none"
        del given["choose"]
        return f"{self.choose}:" + ",".join(f"{name}={_written(value)}" for name, value in given.items())

    def as_dict(self) -> dict[str, Any]:
        """All settings, as JSON holds them."""
        return asdict(self)

    @property
    def fingerprint(self) -> str:
        """The same for the same settings, however they were given."""
        told = self.as_dict() | {"epsilon": None if self.epsilon is None else float(self.epsilon)}
        return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def recomputes(self) -> bool:
        """Whether a causal model has to run without a cache."""
        if self.choose == "none" or (self.keys is None and self.queries is None):
            return False
        return resolve(causal=True, keys=self.keys, queries=self.queries).keys == "recomputed"

    @property
    def refresh(self) -> int | None:
        """Steps between the refreshes of a block cache; None: the run has none."""
        return REFRESH if self.keys == "block_cached" else None

    def intervention(self, *, seed: int = 0, problems: Sequence[int] | None = None, follow: bool = False) -> Any | None:
        """What `sinklens.intervene` takes; None where nothing is done.

        seed: of the experiment. problems: their numbers, one for each row of the batch; the draws of a problem are
        then its own, whatever stands beside it. follow: record where the attention goes, where it goes anywhere.
        """
        from importlib import import_module

        if self.choose == "none":
            return None
        module, name, _ = CHOICES[self.choose]
        settings = {name: getattr(self, name) for name in ("top", "epsilon", *SETTINGS)}
        if self.random:
            settings["seed"] = self._seeds(seed, problems)
        kind = getattr(import_module(f"sinklens.interventions.{module}"), name)
        chosen = kind(**settings, follow=follow and self.act == "mask")
        if self.act == "mask":
            return chosen
        of = {"zero": ("zero_value", "ZeroValue"), "mean": ("mean_value", "MeanValue")}[self.act]
        return getattr(import_module(f"sinklens.interventions.{of[0]}"), of[1])(of=chosen)

    def _seeds(self, seed: int, problems: Sequence[int] | None) -> int | tuple[int, ...]:
        if problems is None:
            return mixed_seed(seed, self.draw)
        return tuple(mixed_seed(seed, self.draw, problem) for problem in problems)


def counted(top: int, chosen: str = "sinks") -> str:
    """So many keys of a choice.

    >>> counted(1), counted(5), counted(1, "stale"), counted(1, "random")
    ('1 sink', '5 sinks', '1 stale sink', '1 random')
    """
    many = CHOICES[chosen][2]
    return f"{top} {ONE.get(chosen, many) if top == 1 else many}"


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers: 63 bits that differ wherever one of them does."""
    digest = blake2b(" ".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def parse_condition(text: str) -> Condition:
    """A condition as `str` writes it.

    >>> parse_condition("sinks:top=5,keys=cached,act=zero").label
    '5 sinks, zero value, cached'
    """
    kind, _, rest = text.strip().partition(":")
    if kind.strip() in ("none", "unmasked") and not rest.strip():
        return Condition()
    choose(f"choice of keys in condition {text!r}:", kind.strip(), ("none", *CHOICES))
    accepted = [field.name for field in fields(Condition) if field.name != "choose"]
    given: dict[str, Any] = {}
    for part in rest.split(",") if rest.strip() else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or name not in accepted:
            raise UsageError(
                f"{part.strip()!r} in condition {text!r}; expected NAME=VALUE with a NAME of {', '.join(accepted)}, "
                "such as sinks:top=5,keys=cached"
            )
        if name in given:
            raise UsageError(f"{name} stands twice in condition {text!r}; give it once")
        given[name] = _read(name, value, text)
    return Condition(choose=kind.strip(), **given)


def _read(name: str, value: str, text: str) -> Any:
    if name in ACCEPTED or name == "act":
        return value
    try:
        return float(value) if name == "epsilon" else int(value)
    except ValueError:
        raise UsageError(f"{name}={value} in condition {text!r}; expected a number") from None


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _said(name: str, value: str) -> str:
    if name == "scope":
        return "whole model" if value == "model" else f"per {value}"
    return (value if name == "keys" else f"{name} {value}").replace("_", " ")


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
