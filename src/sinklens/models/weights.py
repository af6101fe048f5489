"""Weights from safetensors files to a module, tensor by tensor.

The module is built on the meta device; each parameter is then allocated where and as it is wanted and filled
from its file, which is mapped for that one tensor only. Peak memory is the weights plus the largest tensor.
Names and shapes are compared before the first byte of weights is read. Pickle files are refused: loading one
runs the code inside.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor, nn

from sinklens.errors import ModelError
from sinklens.files import is_file
from sinklens.models.fields import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor on disk, as its file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # safetensors' name: "BF16", "F32", ...


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder by its name, sharded or not; only headers are read."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if not (folder / SINGLE).is_file():
        raise ModelError(_no_weights(folder))
    return _header(folder / SINGLE)


def load_weights(
    module: nn.Module,
    folder: Path,
    names: Mapping[str, str],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Fill `module`, now on the meta device, from `folder`; `names`: its parameters to names on disk."""
    stored = find_tensors(folder)
    parameters = dict(module.named_parameters())
    assert parameters.keys() == names.keys(), "every parameter has a name on disk"
    _compare(folder, stored, {names[ours]: tuple(value.shape) for ours, value in parameters.items()})
    if dtype is None:
        dtype = _common_dtype(folder, stored)
    for ours, on_disk in names.items():
        owner, _, name = ours.rpartition(".")
        tensor = _read(stored[on_disk], on_disk, device, dtype)
        setattr(module.get_submodule(owner), name, nn.Parameter(tensor))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} cannot be read as safetensors ({error}); it may be truncated: download it again"
        ) from error


def _header(file: Path) -> dict[str, Stored]:
    with _opened(file) as handle:
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        return {
            name: Stored(file=file, shape=tuple(part.get_shape()), dtype=part.get_dtype())
            for name, part in slices.items()
        }


def _indexed(folder: Path) -> dict[str, Stored]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelError(f"{folder / INDEX} has no weight_map from tensor names to files; download it again")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        _check_inside(folder, shard)
    missing = [shard for shard in shards if not is_file(folder / shard)]
    if missing:
        raise ModelError(
            f"{folder} lacks {_some(missing)} of the {len(shards)} files that {INDEX} names; download the rest"
        )
    headers = {shard: _header(folder / shard) for shard in shards}
    lost = [name for name, shard in weight_map.items() if name not in headers[shard]]
    if lost:
        raise ModelError(
            f"{folder / INDEX} places {_some(lost)} in files that do not hold them; index and shards are of "
            "different checkpoints: download them again"
        )
    unlisted = {name: stored for header in headers.values() for name, stored in header.items()}
    return unlisted | {name: headers[shard][name] for name, shard in weight_map.items()}


def _check_inside(folder: Path, shard: str) -> None:
    """By its spelling: inside a hub cache every file is a link that leads out of the folder."""
    for path in (PurePosixPath(shard), PureWindowsPath(shard)):
        if path.is_absolute() or path.drive or ".." in path.parts or path.suffix != ".safetensors":
            raise ModelError(
                f"{folder / INDEX} names the file {shard!r}; expected a .safetensors file inside the folder"
            )


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        return (
            f"{folder} has its weights in {_some(pickles)}: pickle, which runs code when it is loaded, is "
            "refused; convert them to safetensors (safetensors.torch.save_file) or take a checkpoint that "
            "has them"
        )
    return f"{folder} has no weights; expected {SINGLE}, or {INDEX} and the files it names"


def _compare(folder: Path, stored: Mapping[str, Stored], expected: Mapping[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    if missing or extra:
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"holds {_some(extra)} that this model has no place for"] if extra else []
        raise ModelError(f"{folder} {' and '.join(parts)}; do config.json and the weights belong together?")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ModelError(
                f"{stored[name].file}: {name} has shape {list(stored[name].shape)}; config.json makes it "
                f"{list(shape)}: do they belong together?"
            )
        if stored[name].dtype not in DTYPES:
            raise ModelError(
                f"{stored[name].file}: {name} is {stored[name].dtype}; expected one of {', '.join(DTYPES)}: "
                "quantised checkpoints of this family are not supported"
            )


def _common_dtype(folder: Path, stored: Mapping[str, Stored]) -> torch.dtype:
    found = sorted({tensor.dtype for tensor in stored.values()})
    if len(found) > 1:
        raise ModelError(f"{folder} holds tensors of several dtypes ({', '.join(found)}); say which dtype to use")
    return DTYPES[found[0]]


def _read(stored: Stored, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One tensor in memory of its own. The file is opened for it alone: pages of a mapping that stays open
    count
    as memory of the process, and a model that lived in the file would die with it."""
    tensor = torch.empty(stored.shape, device=device, dtype=dtype)
    with _opened(stored.file) as handle:
        tensor.copy_(handle.get_tensor(name))
    return tensor


def _some(names: Iterable[str]) -> str:
    """Up to five names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more
