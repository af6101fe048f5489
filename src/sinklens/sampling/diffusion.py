"""The samplers of masked diffusion models: `LLaDASampler` (LLaDA, MMaDA) and `DreamSampler` (Dream).

Each runs on any masked model. Whether the output at p predicts p or p + 1 is the model's (`spec.shift`),
not the sampler's: Dream's sampler on LLaDA does not shift, LLaDA's sampler on Dream does.
"""

from sinklens.sampling.dream import DreamSampler
from sinklens.sampling.llada import LLaDASampler

__all__ = ["DreamSampler", "LLaDASampler"]
