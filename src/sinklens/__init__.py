"""See, follow and remove attention sinks in diffusion and autoregressive language models.

Importing this package loads neither torch nor transformers: each public name is fetched on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

_HOMES = {
    "AttentionCall": "attention.call",
    "AutoregressiveSampler": "sampling.autoregressive",
    "BlockCache": "sampling.block_cache",
    "Compression": "cache.settings",
    "DreamSampler": "sampling.dream",
    "FirstToken": "interventions.first_token",
    "Generation": "sampling.step",
    "LLaDASampler": "sampling.llada",
    "MaskSinks": "interventions.mask_sinks",
    "MassMatched": "interventions.mass_matched",
    "MeanValue": "interventions.mean_value",
    "ModelSpec": "types",
    "NextRanked": "interventions.next_ranked",
    "NullSink": "interventions.null_sink",
    "Observation": "attention.observation",
    "OtherHead": "interventions.other_head",
    "PositionMatched": "interventions.position_matched",
    "RandomKeys": "interventions.random_keys",
    "SinklensError": "errors",
    "StaleStep": "interventions.stale_step",
    "Step": "sampling.step",
    "Trace": "traces.read",
    "ZeroValue": "interventions.zero_value",
    "attention_received": "kernels.received",
    "compress": "cache.compress",
    "detect_sinks": "sinks.detect",
    "explore": "report.notebook",
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
    from sinklens.cache.compress import compress
    from sinklens.cache.settings import Compression
    from sinklens.errors import SinklensError
    from sinklens.interventions.first_token import FirstToken
    from sinklens.interventions.mask_sinks import MaskSinks
    from sinklens.interventions.mass_matched import MassMatched
    from sinklens.interventions.mean_value import MeanValue
    from sinklens.interventions.next_ranked import NextRanked
    from sinklens.interventions.null_sink import NullSink
    from sinklens.interventions.other_head import OtherHead
    from sinklens.interventions.position_matched import PositionMatched
    from sinklens.interventions.random_keys import RandomKeys
    from sinklens.interventions.stale_step import StaleStep
    from sinklens.interventions.zero_value import ZeroValue
    from sinklens.kernels.received import attention_received
    from sinklens.models.load import load, wrap
    from sinklens.report.notebook import explore
    from sinklens.run import trace
    from sinklens.sampling.autoregressive import AutoregressiveSampler
    from sinklens.sampling.block_cache import BlockCache
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
    "BlockCache",
    "Compression",
    "DreamSampler",
    "FirstToken",
    "Generation",
    "LLaDASampler",
    "MaskSinks",
    "MassMatched",
    "MeanValue",
    "ModelSpec",
    "NextRanked",
    "NullSink",
    "Observation",
    "OtherHead",
    "PositionMatched",
    "RandomKeys",
    "SinklensError",
    "StaleStep",
    "Step",
    "Trace",
    "ZeroValue",
    "__version__",
    "attention_received",
    "compress",
    "detect_sinks",
    "explore",
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
