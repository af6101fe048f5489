"""The samplers that answer problems: each family's own, at temperature 0."""

from sinklens.errors import UsageError
from sinklens.models.language_model import LanguageModel
from sinklens.sampling.autoregressive import AutoregressiveSampler
from sinklens.sampling.block_cache import BlockCache
from sinklens.sampling.dream import DreamSampler
from sinklens.sampling.llada import LLaDASampler
from sinklens.sampling.step import Sampler


def has_blocks(model: LanguageModel) -> bool:
    """LLaDA and MMaDA."""
    return not model.spec.causal and not model.spec.shift


def greedy_sampler(
    model: LanguageModel,
    *,
    length: int,
    steps: int | None = None,
    block: int | None = None,
    threshold: float | None = None,
    stop_at_eos: bool = False,
    cache: bool = True,
    refresh: int | None = None,
) -> Sampler:
    """The family's sampler at temperature 0, one token a step unless `steps` says fewer.

    LLaDA in one block unless `block` says otherwise: the embedded model was trained to write answers as a whole.
    cache: of a causal model. refresh: of a diffusion model's block cache, in steps; None: it has none.
    """
    held = None if refresh is None else BlockCache(refresh=refresh)
    if has_blocks(model):
        return LLaDASampler(
            steps=steps or length,
            length=length,
            block=block or length,
            threshold=threshold,
            stop_at_eos=stop_at_eos,
            cache=held,
        )
    for name, value in (("block", block), ("threshold", threshold), ("stop_at_eos", stop_at_eos or None)):
        if value is not None:
            raise UsageError(f"{name}={value!r} is for LLaDA and MMaDA, but the family is {model.spec.family!r}")
    if model.spec.causal:
        return AutoregressiveSampler(length=length, cache=cache)
    return DreamSampler(steps=steps or length, length=length, alg="entropy", cache=held)
