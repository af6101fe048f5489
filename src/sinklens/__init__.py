"""See, follow and remove attention sinks in diffusion and autoregressive language models.

Importing this package loads neither torch nor transformers: each public name is fetched on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AttentionCall": "attention.call",
    "AutoregressiveSampler": "sampling.autoregressive",
    "DreamSampler": "sampling.dream",
    "Generation": "sampling.step",
    "LLaDASampler": "sampling.llada",
    "MaskSinks": "interventions.mask_sinks",
    "ModelSpec": "types",
    "Observation": "attention.observation",
    "RandomKeys": "interventions.random_keys",
    "SinklensError": "errors",
    "Step": "sampling.step",
    "Trace": "traces.read",
    "attention_received": "kernels.received",
    "detect_sinks": "sinks.detect",
    "generate": "sampling.generate",
    "intervene": "attention.observe",
    "load": "models.load",
    "observe": "attention.observe",
    "open_trace": "traces.read",
    "steps": "sampling.generate",
    "trace": "run",
    "track_sinks": "sinks.track",
    "wrap": "models.load",
}

if TYPE_CHECKING:
    from sinklens.attention.call import AttentionCall
    from sinklens.attention.observation import Observation
    from sinklens.attention.observe import intervene, observe
    from sinklens.errors import SinklensError
    from sinklens.interventions.mask_sinks import MaskSinks
    from sinklens.interventions.random_keys import RandomKeys
    from sinklens.kernels.received import attention_received
    from sinklens.models.load import load, wrap
    from sinklens.run import trace
    from sinklens.sampling.autoregressive import AutoregressiveSampler
    from sinklens.sampling.dream import DreamSampler
    from sinklens.sampling.generate import generate, steps
    from sinklens.sampling.llada import LLaDASampler
    from sinklens.sampling.step import Generation, Step
    from sinklens.sinks.detect import detect_sinks
    from sinklens.sinks.track import track_sinks
    from sinklens.traces.read import Trace, open_trace
    from sinklens.types import ModelSpec

__all__ = [
    "AttentionCall",
    "AutoregressiveSampler",
    "DreamSampler",
    "Generation",
    "LLaDASampler",
    "MaskSinks",
    "ModelSpec",
    "Observation",
    "RandomKeys",
    "SinklensError",
    "Step",
    "Trace",
    "__version__",
    "attention_received",
    "detect_sinks",
    "generate",
    "intervene",
    "load",
    "observe",
    "open_trace",
    "steps",
    "trace",
    "track_sinks",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sinklens' has no attribute {name!r}")
    return getattr(import_module(f"sinklens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
