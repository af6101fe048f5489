"""`load`: from a name to a model. `wrap`: from a model that is already there.

LLaDA, Dream and MMaDA always run sinklens' own classes; everything else runs transformers' classes. Code that
comes with a checkpoint runs only when the caller says so.
"""

import os
from importlib import import_module
from typing import Any

import torch

from sinklens.errors import ModelError, UsageError
from sinklens.models.catalog import EMBEDDED, Located, locate
from sinklens.models.diffusion_transformer import DiffusionTransformer
from sinklens.models.fields import Fields
from sinklens.models.gguf import load_gguf
from sinklens.models.huggingface import HuggingFaceModel, load_folder
from sinklens.models.language_model import MEMBERS, LanguageModel
from sinklens.models.native import build

# model_type in lower case -> the module whose `plan` reads its config.
NATIVE = {
    "llada": "sinklens.models.llada",
    "dream": "sinklens.models.dream",
    "mmada": "sinklens.models.mmada",
}
Loaded = DiffusionTransformer | HuggingFaceModel
DTYPES = ("float64", "float32", "float16", "bfloat16")


def load(
    name: "str | os.PathLike[str]",
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantization_config: Any = None,
    attn_implementation: str | None = None,
) -> Loaded:
    """The model of a name from `sinklens models`, a checkpoint folder or a hub id.

    dtype None: as the checkpoint stores it; float32 for the embedded models, which are stored in bfloat16 to be small
    and are as fast in float32 on a CPU, and for a packaged one, which is stored in four bits. device "auto":
    transformers spreads its models over what is there (needs accelerate); native models take one GPU if there is one.
    """
    wanted = _read_dtype("float32" if dtype is None and name in EMBEDDED else dtype)
    located = locate(name, revision=revision, code=trust_remote_code)
    if located.gguf is not None:
        if quantization_config is not None:
            raise ModelError(
                f"quantization_config with {located.source}, whose file is de-quantised when it is loaded; leave it out"
            )
        return load_gguf(
            located,
            device="auto" if device == "auto" else _read_device(device),
            dtype=wanted,
            attn_implementation=attn_implementation,
        )
    fields = Fields.of_folder(located.folder)
    model_type = fields.text("model_type")
    family = native_family(fields)
    if family is not None:
        _refuse_for_native(quantization_config, attn_implementation)
        return _load_native(NATIVE[family], located, fields, _read_device(device), wanted)
    if "auto_map" in fields.values and not trust_remote_code:
        raise ModelError(
            f"{fields.path} (model_type {model_type!r}) names code of its own (auto_map), which is not run "
            "unasked; read it, then allow it (trust_remote_code). If transformers knows the type and the "
            "custom code is not needed, remove auto_map from a local copy"
        )
    return load_folder(
        located.folder,
        fields,
        source=located.source,
        device="auto" if device == "auto" else _read_device(device),
        dtype=wanted,
        trust_remote_code=trust_remote_code,
        quantization_config=quantization_config,
        attn_implementation=attn_implementation,
    )


def native_family(fields: Fields) -> str | None:
    """Which of our own families a config is of. MMaDA's class counts too: its files name LLaDA's code."""
    architectures = fields.values.get("architectures")
    if isinstance(architectures, list) and "MMadaModelLM" in architectures:
        return "mmada"
    family = str(fields.values.get("model_type")).lower()
    return family if family in NATIVE else None


def wrap(model: Any, *, tokenizer: Any = None) -> LanguageModel:
    """A transformers model as a LanguageModel; a LanguageModel as it is."""
    if isinstance(model, LanguageModel):
        if tokenizer is not None:
            raise UsageError("this model brings its own tokenizer; leave tokenizer out")
        return model
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return HuggingFaceModel(model, tokenizer=tokenizer)
    missing = [name for name in ("spec", "tokenizer", "device", "__call__") if not hasattr(model, name)]
    raise UsageError(
        f"a {type(model).__name__} is no language model (it has no {', '.join(missing)}); expected a transformers "
        f"PreTrainedModel, or an object with {MEMBERS}"
    )


def _load_native(
    module: str, located: Located, fields: Fields, device: torch.device, dtype: torch.dtype | None
) -> DiffusionTransformer:
    blueprint = import_module(module).plan(located.folder, fields, located.source)
    return build(blueprint, located.folder, device=device, dtype=dtype)


def _refuse_for_native(quantization_config: Any, attn_implementation: str | None) -> None:
    if quantization_config is not None:
        raise ModelError(
            "quantization_config is transformers' way to quantise its own models; LLaDA, Dream and MMaDA "
            "run here natively and unquantised: leave it out and choose dtype"
        )
    if attn_implementation not in (None, "sdpa"):
        raise ModelError(
            f"attn_implementation is {attn_implementation!r}; LLaDA, Dream and MMaDA run here natively, with "
            "SDPA: leave it out"
        )


def _read_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(
            f"dtype is {name!r}; expected one of {', '.join(DTYPES)}; leave it out for the checkpoint's own"
        )
    found: torch.dtype = getattr(torch, name)
    return found


def _read_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device is {device!r}; expected 'cpu', 'cuda', 'cuda:1', ... or 'auto'") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device is {str(wanted)!r}, and torch sees no GPU here; choose 'cpu'")
    return wanted
