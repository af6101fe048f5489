"""Ids with a meaning: which end a row, which fills what lies behind, which a setting cannot do without."""

from sinklens.errors import UsageError
from sinklens.types import ModelSpec


def stop_ids(spec: ModelSpec, eos_id: int | None = None) -> list[int]:
    """Ids that end a row: eos (`eos_id` instead, where given), in causal models the end of a chat turn too.

    Diffusion models go on behind the end of a turn, and their text is cut at eos.
    """
    eos = spec.eos_id if eos_id is None else eos_id
    ends = {eos, spec.eot_id} if spec.causal else {eos}
    return sorted(token for token in ends if token is not None)


def fill_id(spec: ModelSpec) -> int:
    """What stands in place of no token, before a row or behind it: pad, else eos, else 0."""
    return next((token for token in (spec.pad_id, spec.eos_id) if token is not None), 0)


def required_id(name: str, chosen: int | None, spec: ModelSpec) -> int:
    """The sampler's choice of `name` ("eos_id", "eot_id"), else the model's; a UsageError without either."""
    known: int | None = getattr(spec, name)
    token = known if chosen is None else chosen
    if token is None:
        raise UsageError(
            f"these settings need {name}, which neither the sampler nor the model gives; set it in the sampler"
        )
    if not 0 <= token < spec.vocab_size:
        raise UsageError(f"{name} is {token}; this model's ids go from 0 to {spec.vocab_size - 1}")
    return token
