"""What ran, said so that it can be recognised: the model, its weights, the sampler, the prompts, the versions."""

import json
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from pathlib import Path
from threading import local
from typing import Any

import torch
from torch import nn

from sinklens.sinks.tokens import classify_token
from sinklens.verification.certificate import certificate_for

PIECE = 2**23  # bytes that are hashed at a time
PACKAGES = ("torch", "transformers", "numpy", "pyarrow")


def describe_model(model: Any, name: str | None) -> dict[str, Any]:
    """The manifest's `model`: the spec, what to call it, and hashes of config and weights as they are in memory."""
    spec = asdict(model.spec)
    source = spec.pop("source")
    config: Any = getattr(getattr(model, "model", None), "config", None)
    told = config.to_dict() if hasattr(config, "to_dict") else {}
    told.pop("_name_or_path", None)  # where it lay says nothing about what it is
    return {
        "name": name or short_name(source) or spec["family"],
        "source": source,
        **spec,
        "dtype": dtype_of(model),
        "config_sha256": hash_json({"spec": spec, "config": told}),
        "weights_sha256": hash_weights(model),
    }


def short_name(source: str) -> str:
    """`GSAI-ML/LLaDA-8B-Instruct@1a2b` and `models/LLaDA-8B-Instruct` are both LLaDA-8B-Instruct."""
    return Path(source.split("@", maxsplit=1)[0]).name if source else ""


def hash_weights(model: nn.Module) -> str | None:
    """sha256 over names, shapes, dtypes and the sha256 of every piece of all parameters and buffers.

    None where some are not in memory. Pieces are hashed side by side: a model of 16 GB takes a second or two.
    """
    state = sorted(model.state_dict(keep_vars=True).items())
    if any(not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta" for _, tensor in state):
        return None
    if any(tensor.is_cuda for _, tensor in state):
        torch.cuda.synchronize()  # each thread copies on a stream of its own
    pieces = [(tensor.detach().contiguous().flatten().view(torch.uint8)).split(PIECE) for _, tensor in state]
    digest = sha256()
    with ThreadPoolExecutor() as threads:
        digests = threads.map(_Hasher().digest, chain.from_iterable(pieces))
        for (name, tensor), parts in zip(state, pieces, strict=True):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            for part in islice(digests, len(parts)):
                digest.update(part)
    return digest.hexdigest()


class _Hasher(local):
    """Of bytes; those of a card pass through a place of each thread's own."""

    def __init__(self) -> None:
        self._place: torch.Tensor | None = None

    def digest(self, piece: torch.Tensor) -> bytes:
        if not piece.is_cuda:
            return sha256(piece.cpu().numpy().data).digest()
        if self._place is None:
            self._place = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
            self._stream: Any = torch.cuda.Stream(piece.device)  # type: ignore[no-untyped-call]
        place = self._place[: len(piece)]
        with torch.cuda.stream(self._stream):
            place.copy_(piece, non_blocking=True)
            self._stream.synchronize()
        return sha256(place.numpy().data).digest()


def hash_json(document: Any) -> str:
    return sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def describe_sampler(sampler: Any) -> dict[str, Any]:
    """Its name and its settings, as JSON holds them."""
    settings = asdict(sampler) if is_dataclass(sampler) and not isinstance(sampler, type) else vars(sampler)
    plain = json.loads(json.dumps(settings, default=repr))
    return {"name": type(sampler).__name__, **plain}


def describe_versions() -> dict[str, str | None]:
    import sinklens

    found: dict[str, str | None] = {"sinklens": sinklens.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def dtype_of(model: Any) -> str | None:
    """Of the first parameter: what the model computes in."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else str(first.dtype).removeprefix("torch.")


def find_certificate(source: str) -> dict[str, Any] | None:
    """What `sinklens verify` wrote for exactly these files, if it did."""
    folder = Path(source)
    if not source or not folder.is_dir():
        return None
    return certificate_for(folder)


def describe_tokens(model: Any, ids: Sequence[int]) -> Mapping[int, tuple[str | None, str | None]]:
    """Text and class of every id; without a tokenizer only the ids that the spec names have a class."""
    spec = model.spec
    named = {token for token in (spec.bos_id, spec.eos_id, spec.eot_id, spec.pad_id) if token is not None}
    special = named | set(getattr(model.tokenizer, "all_special_ids", ()))
    found: dict[int, tuple[str | None, str | None]] = {}
    for token in sorted(set(ids)):
        mask = token == spec.mask_id
        if model.tokenizer is None:
            found[token] = (None, "mask" if mask else "special" if token in special else None)
            continue
        text = str(model.tokenizer.decode([token]))
        found[token] = (text, classify_token(text, special=token in special, mask=mask))
    return found
