"""What ran, said so that it can be recognised: the model, its weights, the sampler, the prompts, the versions."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from functools import partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import local
from typing import Any

import torch
from jaxtyping import UInt8
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
    for card in {tensor.device for _, tensor in state if tensor.is_cuda}:
        torch.cuda.synchronize(card)  # each thread copies on a stream of its own
    digest, hasher = sha256(), _Hasher()
    coming: list[Callable[[], bytes]] = []
    with ThreadPoolExecutor() as threads:
        for name, tensor in state:
            if not tensor.is_contiguous():
                digest.update(_settled(coming))  # one copy at a time
            coming.append(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode)
            coming.extend(_begun(threads, hasher.digest, piece) for piece in torch.split(_bytes(tensor), PIECE))
        digest.update(_settled(coming))
    return digest.hexdigest()


def _begun(
    threads: ThreadPoolExecutor, digest: Callable[[torch.Tensor], bytes], piece: UInt8[torch.Tensor, " byte"]
) -> Callable[[], bytes]:
    """By a thread; by whoever asks for it where memory is too short for one."""
    try:
        return threads.submit(digest, piece).result
    except RuntimeError:
        return partial(digest, piece)


def _settled(coming: list[Callable[[], bytes]]) -> bytes:
    """All that was coming, in order; nothing is then."""
    come = b"".join(one() for one in coming)
    coming.clear()
    return come


def _bytes(tensor: torch.Tensor) -> UInt8[torch.Tensor, " byte"]:
    """In the order of its axes, however it lies: then they are a copy, which is there when this returns."""
    lined = tensor.detach().contiguous()
    if tensor.is_cuda and not tensor.is_contiguous():
        torch.cuda.synchronize(tensor.device)
    return lined.flatten().view(torch.uint8)


class _Hasher(local):
    """Of bytes; those of a card pass through a place of each thread's own."""

    def __init__(self) -> None:
        self._ways: dict[torch.device, tuple[torch.Tensor, Any]] = {}  # by card: the place, a stream to it

    def digest(self, piece: UInt8[torch.Tensor, " byte"]) -> bytes:
        if not piece.is_cuda:
            return sha256(piece.cpu().numpy().data).digest()
        if piece.device not in self._ways:
            stream = torch.cuda.Stream(piece.device)  # type: ignore[no-untyped-call]
            self._ways[piece.device] = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True), stream
        whole, stream = self._ways[piece.device]
        place = whole[: len(piece)]
        with torch.cuda.stream(stream):
            place.copy_(piece, non_blocking=True)
            stream.synchronize()
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
