"""Which sampler a model takes, and how the options of the command line become its settings."""

from dataclasses import asdict, dataclass, fields
from typing import Any

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
