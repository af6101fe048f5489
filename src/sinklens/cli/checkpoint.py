"""What can be said about a checkpoint without its weights: its config, and the headers of its files."""

import re
from dataclasses import asdict
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from sinklens.cli.interrupts import import_for
from sinklens.cli.samplers import SAMPLERS, sampler_name
from sinklens.errors import ModelError, UsageError
from sinklens.models.catalog import DOWNLOADED, Located, download, hub_reason, locate_here


def describe(name: str, *, revision: str | None = None) -> dict[str, Any]:
    """The spec, the sampler, the tokenizer and the size of a checkpoint."""
    located, hub_id = _locate_without_weights(name, revision)
    fields = import_for(located)
    from sinklens.models.gguf import measure_gguf

    spec, tokenizer = _read_spec(located, fields)
    spoken = spec.causal or spec.family in SAMPLERS
    return {
        "model": located.source,
        "folder": str(located.folder),
        "sampler": sampler_name(spec.family) if spoken else None,
        "tokenizer": None if tokenizer is None else type(tokenizer).__name__,
        "spec": asdict(spec),
        "weights": _measure(located.folder, hub_id, revision) if located.gguf is None else measure_gguf(located),
        "pickles": _pickles(located.folder),
    }


def refuse_what_cannot_speak(located: Located, fields: Any) -> None:
    """Before weights are loaded: a transformers model is generated from when it is causal."""
    family = str(fields.values.get("model_type"))
    if family.lower() in SAMPLERS or "auto_map" in fields.values:
        return
    if not _on_meta(located, fields, None).causal:
        raise UsageError(
            f"{located.source} ({family!r}) is neither causal nor a masked diffusion model of a family known here "
            f"({', '.join(SAMPLERS)}), so it cannot be generated from; choose another model"
        )


def _locate_without_weights(name: str, revision: str | None) -> tuple[Located, str | None]:
    """As `locate`, and the hub id where it is one; of a hub repository only small files are downloaded."""
    found = locate_here(name, revision=revision)
    if isinstance(found, Located):
        return found, None
    small = [pattern for pattern in DOWNLOADED if not pattern.endswith(".safetensors")]
    return download(found, revision, small), found


def _read_spec(located: Located, fields: Any) -> tuple[Any, Any]:
    """The spec and the tokenizer. transformers' models are built without memory, on the meta device."""
    from sinklens.models.load import NATIVE, native_family

    family = native_family(fields)
    if family is not None:
        blueprint = import_module(NATIVE[family]).plan(located.folder, fields, located.source)
        return blueprint.spec, blueprint.tokenizer
    if "auto_map" in fields.values:
        raise ModelError(
            f"{fields.path} names code of its own (auto_map), which is not run to describe a model; "
            "load it with trust_remote_code to see its spec"
        )
    from sinklens.models.gguf import read_tokenizer

    tokenizer = read_tokenizer(located)
    return _on_meta(located, fields, tokenizer), tokenizer


def _on_meta(located: Located, fields: Any, tokenizer: Any) -> Any:
    """The spec of a transformers model, which is built without memory to read it."""
    import torch

    from sinklens.models.gguf import read_config
    from sinklens.models.huggingface import auto_class, told_in_words
    from sinklens.models.huggingface_spec import read_spec

    auto, config = auto_class(fields, False), read_config(located)
    with told_in_words(located.source):
        with torch.device("meta"):
            model = auto.from_config(config)
        return read_spec(model, tokenizer, located.source)


def _measure(folder: Path, hub_id: str | None, revision: str | None) -> dict[str, Any] | None:
    """Parameters and bytes by the headers of the files; None: no safetensors. Damaged ones are an error."""
    from sinklens.models.weights import INDEX, SINGLE, find_tensors

    if hub_id is None and not any((folder / name).is_file() for name in (INDEX, SINGLE)):
        return None
    try:
        stored = [(tensor.dtype, tensor.shape) for tensor in find_tensors(folder).values()]
    except ModelError:
        if hub_id is None:
            raise
        remote = _hub_headers(hub_id, revision)  # only the small files are here
        if remote is None:
            return None
        stored = remote
    parameters = sum(prod(shape) for _, shape in stored)
    size = sum(prod(shape) * _bits(dtype) for dtype, shape in stored) // 8
    return {"parameters": parameters, "bytes": size, "dtypes": sorted({dtype for dtype, _ in stored})}


def _pickles(folder: Path) -> list[str]:
    """Weights that are there, but are not loaded: reading a pickle runs the code inside."""
    from sinklens.models.weights import PICKLES

    return sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)


def _hub_headers(hub_id: str, revision: str | None) -> list[tuple[str, tuple[int, ...]]] | None:
    """The same, from the first bytes of the files on the hub."""
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, OfflineModeIsEnabled

    try:
        files = get_safetensors_metadata(hub_id, revision=revision).files_metadata.values()
    except NotASafetensorsRepoError:
        return None
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise ModelError(
            f"the headers of {hub_id}'s weights cannot be read from the hub ({hub_reason(error)}); check the network"
        ) from error
    return [(tensor.dtype, tuple(tensor.shape)) for file in files for tensor in file.tensors.values()]


def _bits(dtype: str) -> int:
    """safetensors' dtype names carry their width: BF16, F8_E4M3, I64; BOOL takes a byte."""
    width = re.search(r"\d+", dtype)
    return int(width.group()) if width else 8
