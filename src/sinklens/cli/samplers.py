"""Which sampler a model takes, and how the options of the command line become its settings."""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from sinklens.cli import options
from sinklens.errors import UsageError

LENGTH = 128
BLOCK = 32
SAMPLERS = {"llada": "LLaDASampler", "mmada": "LLaDASampler", "dream": "DreamSampler"}


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """What the command line can say about sampling; None: not said. The names are the samplers' fields."""

    length: int | None = None
    steps: int | None = None
    block: int | None = None
    alg: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    alg_temp: float | None = None
    cfg: float | None = None
    remasking: str | None = None
    threshold: float | None = None
    stop_at_eos: bool | None = None
    logits_eos_inf: bool | None = None
    confidence_eos_eot_inf: bool | None = None


OPTIONS: dict[str, Any] = {
    "length": options.Length,
    "steps": options.Steps,
    "block": options.Block,
    "alg": options.Alg,
    "temperature": options.Temperature,
    "top_p": options.TopP,
    "top_k": options.TopK,
    "alg_temp": options.AlgTemp,
    "cfg": options.Cfg,
    "remasking": options.Remasking,
    "threshold": options.Threshold,
    "stop_at_eos": options.StopAtEos,
    "logits_eos_inf": options.LogitsEosInf,
    "confidence_eos_eot_inf": options.ConfidenceEosEotInf,
}


def takes_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every sampling option in the place of its parameter `sampling`, which gets them as one."""

    def run(**given: Any) -> None:
        said = {name: given.pop(name) for name in OPTIONS}
        command(**given, sampling=SamplerOptions(**said))

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "sampling":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for name, annotation in OPTIONS.items():
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=None, annotation=annotation))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def sampler_name(family: str) -> str:
    """The sampler of a family; other models are taken for causal, which the sampler then checks."""
    return SAMPLERS.get(family, "AutoregressiveSampler")


def build_sampler(family: str, options: SamplerOptions) -> Any:
    """The sampler of a family with these settings; a setting that it does not have is an error."""
    import sinklens

    name = sampler_name(family)
    kind = getattr(sinklens, name)
    given = {field: value for field, value in asdict(options).items() if value is not None}
    accepted = [field.name for field in fields(kind) if field.name in SamplerOptions.__dataclass_fields__]
    for field in given:
        if field not in accepted:
            names = ", ".join(_flag(other) for other in accepted)
            raise UsageError(f"{_flag(field)} is no setting of {name}, which {family!r} models use; it takes {names}")
    settings: dict[str, Any] = {**_defaults(name, given.get("length", LENGTH)), **given}
    return kind(**settings)


def _defaults(name: str, length: int) -> dict[str, Any]:
    if name == "LLaDASampler":
        block = BLOCK if length % BLOCK == 0 else length  # one block fits every length
        return {"length": length, "steps": length, "block": block}
    if name == "DreamSampler":
        return {"length": length, "steps": length, "alg": "entropy"}
    return {"length": length}


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
