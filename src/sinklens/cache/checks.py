"""Which models and caches can be compressed; everything else is refused by name, with what to do."""

import inspect
from typing import Any

from torch import nn

from sinklens.attention.huggingface import uses_interface
from sinklens.attention.routes import NAMES
from sinklens.cache.layer import CutLayer
from sinklens.cache.settings import Compression
from sinklens.errors import UsageError


def decoder_of(model: Any) -> Any:
    """The transformers model that is, or is in, `model`."""
    from transformers import PreTrainedModel

    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a model (what sinklens.load returns, or a transformers one), got {model!r}")
    found = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if found is None:
        raise UsageError(
            f"compress works on the KV cache of a transformers decoder, and {type(model).__name__} is none: it keeps "
            "no cache of that kind"
        )
    config = found.config.get_text_config(decoder=True)
    if getattr(found.config, "is_encoder_decoder", False):
        raise UsageError(f"{type(found).__name__} is an encoder-decoder; compress works on decoders alone")
    name = config._attn_implementation
    if name not in NAMES and name not in NAMES.values():
        raise UsageError(
            f"the model runs attn_implementation={name!r}, whose masks compress cannot cut by layer; load it with "
            'attn_implementation="sdpa" (or "eager")'
        )
    if getattr(config, "num_kv_shared_layers", None):
        raise UsageError(f"{type(found).__name__} shares keys and values between layers; compress cannot cut those")
    return found


def attention_modules(decoder: nn.Module) -> list[Any]:
    """The self-attention modules that fill a cache, by layer."""
    modules = [module for module in decoder.modules() if _fills_a_cache(module)]
    for module in decoder.modules():
        can_set = getattr(type(module), "_can_set_attn_implementation", None)
        if not modules or (uses_interface(module) and can_set is not None and not can_set()):
            raise UsageError(
                f"{type(decoder).__name__} computes attention outside transformers' attention interface; compress "
                "cannot give its layers masks of their own"
            )
    return modules


def check_layers(compression: Compression, modules: list[Any]) -> None:
    layers = {int(module.layer_idx) for module in modules}
    wrong = [layer for layer in compression.skip if layer not in layers]
    if wrong:
        raise UsageError(f"skip names layer {wrong[0]}; the model's go from {min(layers)} to {max(layers)}")
    if layers <= set(compression.skip):
        raise UsageError(f"skip={compression.skip} names every layer of the model, so that none is compressed")


def check_cache(cache: Any) -> None:
    from transformers.cache_utils import EncoderDecoderCache

    if isinstance(cache, EncoderDecoderCache) or not hasattr(cache, "layers"):
        raise UsageError(f"the model was given a {type(cache).__name__}; compress works on a DynamicCache")
    if getattr(cache, "offloading", False):
        raise UsageError("the cache is offloaded (offloading=True); compress works on a DynamicCache in one place")


def check_layer(layer: Any, number: int) -> None:
    from transformers.cache_utils import DynamicLayer

    if type(layer) is DynamicLayer or isinstance(layer, CutLayer):
        return
    if getattr(layer, "is_sliding", False):
        raise UsageError(
            f"layer {number} has a sliding window ({type(layer).__name__}): its cache is short already, and is not "
            f"cut; name it in skip, with the others of its kind"
        )
    raise UsageError(
        f"layer {number} of the cache is a {type(layer).__name__}; compress works on plain dynamic layers: leave "
        "cache_implementation alone, or pass a DynamicCache"
    )


def refuse_biases(module: nn.Module, given: dict[str, Any]) -> None:
    """Biases by place (ALiBi, T5) are laid out for keys that follow one another."""
    named = [name for name in ("alibi", "position_bias") if given.get(name) is not None]
    if named:
        raise UsageError(
            f"{type(module).__name__} takes {named[0]}, a bias by the place of a key; compress cannot cut a cache "
            "under it"
        )


def _fills_a_cache(module: nn.Module) -> bool:
    if "attention" not in type(module).__name__.lower() or getattr(module, "layer_idx", None) is None:
        return False
    if getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__:
        return False
    names = inspect.signature(module.forward).parameters
    return "attention_mask" in names and bool({"past_key_values", "past_key_value"} & set(names))
