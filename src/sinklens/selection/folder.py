"""A selector as a folder: config.json says what it is, model.safetensors holds its weights. No pickle."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import ModelError, UsageError
from sinklens.files import write_json, write_tensors
from sinklens.models.catalog import ZOO, as_path
from sinklens.models.fields import read_json
from sinklens.models.weights import find_tensors
from sinklens.selection.backbone import TransformersBackbone
from sinklens.selection.recipe import read_part
from sinklens.selection.selector import Gating, Selector
from sinklens.selection.vit import SmallViT, ViTShape

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FAMILY = "sinklens-selection"
EMBEDDED = ("tiny-vit-selection",)


def save_selector(selector: Selector, folder: str | Path, *, metadata: Mapping[str, str] | None = None) -> Path:
    """Write a selector; an earlier one in the folder is replaced, file by file, each of them whole."""
    folder = Path(folder)
    write_tensors(folder / WEIGHTS, tensors_of(selector), metadata=metadata or {})
    write_json(folder / CONFIG, config_of(selector))
    return folder


def load_selector(name: "str | os.PathLike[str]", *, device: str | torch.device = "cpu") -> Selector:
    """The selector of a folder, or an embedded one by its name; ready to run."""
    from safetensors.torch import load_file

    folder = _locate(name)
    config = read_json(folder / CONFIG)
    if config.get("model_type") != FAMILY:
        raise ModelError(
            f"{folder / CONFIG} is of a {config.get('model_type')!r} model; expected {FAMILY!r}, as `sinklens select "
            "train` writes it"
        )
    stored = find_tensors(folder)  # worded errors for what is missing or cut short
    selector = _build(config, str(folder / CONFIG))
    tensors = tensors_of(selector)
    knots = stored.get("calibration")
    if knots is not None and len(knots.shape) == 2 and knots.shape[0] == 2 and knots.shape[1] > 1:
        selector.calibration = torch.zeros(knots.shape)
        tensors["calibration"] = selector.calibration
    wrong = [key for key, value in tensors.items() if key not in stored or stored[key].shape != tuple(value.shape)]
    wrong += sorted(stored.keys() - tensors.keys())
    if wrong:
        raise ModelError(f"{folder / WEIGHTS}: {wrong[0]} does not fit {CONFIG}; do the two belong together?")
    fill(selector, load_file(folder / WEIGHTS))
    return selector.to(device).eval()


def tensors_of(selector: Selector) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once, however many paths lead to it."""
    named = [*selector.named_parameters(), *selector.named_buffers()]
    return {name: value.detach().cpu().contiguous() for name, value in named}


@torch.no_grad()
def fill(selector: Selector, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors of the same names and shapes into a selector."""
    for name, value in [*selector.named_parameters(), *selector.named_buffers()]:
        value.copy_(tensors[name])


def config_of(selector: Selector) -> dict[str, Any]:
    """All that is needed to build the same selector with other weights."""
    backbone = selector.backbone
    if isinstance(backbone, SmallViT):
        described: dict[str, Any] = {"kind": "small", "shape": asdict(backbone.shape)}
    elif isinstance(backbone, TransformersBackbone):
        model: Any = backbone.model
        described = {
            "kind": "transformers",
            "class": type(model).__name__,
            "source": backbone.source,
            "config": model.config.to_dict(),
            "mean": list(backbone.mean),
            "std": list(backbone.std),
        }
    else:
        raise UsageError(
            f"a backbone of class {type(backbone).__name__} cannot be saved; expected a SmallViT or a transformers ViT "
            "or DeiT"
        )
    gating = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(selector.gating).items()}
    rate = None if selector.codec is None else selector.codec.rate
    return {
        "model_type": FAMILY,
        "backbone": described,
        "gating": gating,
        "codec_rate": rate,
        "ranking": selector.ranking,
    }


def _build(config: Mapping[str, Any], source: str) -> Selector:
    given = config.get("backbone")
    backbone: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kind = backbone.get("kind")
    try:
        gating: Gating = read_part(Gating, config.get("gating"), f"{source}: gating")
        if kind == "small":
            network: Any = SmallViT(read_part(ViTShape, backbone.get("shape"), f"{source}: shape"))
        elif kind == "transformers":
            network = _from_config(backbone, source)
        else:
            raise ModelError(f"{source}: the backbone's kind is {kind!r}; expected 'small' or 'transformers'")
        return Selector(network, gating, codec_rate=config.get("codec_rate"), ranking=config.get("ranking"))
    except ModelError:
        raise
    except UsageError as error:  # of a file, not of the caller
        raise ModelError(str(error)) from error
    except (RuntimeError, TypeError, ValueError, ArithmeticError, MemoryError) as error:  # sizes that nothing can have
        raise ModelError(
            f"{source} describes no model that can be built ({error}); take the file it came with"
        ) from error


def _from_config(described: Mapping[str, Any], source: str) -> TransformersBackbone:
    """The empty model that a stored config describes; only transformers' own ViT and DeiT classes are built."""
    import transformers

    families = {
        "ViTForImageClassification": "ViTConfig",
        "DeiTForImageClassification": "DeiTConfig",
        "DeiTForImageClassificationWithTeacher": "DeiTConfig",
    }
    name = described.get("class")
    if name not in families:
        raise ModelError(f"{source}: the backbone's class is {name!r}; expected one of {', '.join(families)}")
    config = getattr(transformers, families[name]).from_dict(described.get("config") or {})
    model = getattr(transformers, name)(config)
    moments = {"mean": described.get("mean"), "std": described.get("std")}
    return TransformersBackbone(model, **moments, source=described.get("source"))


def _locate(name: "str | os.PathLike[str]") -> Path:
    if isinstance(name, str) and name in EMBEDDED:
        return ZOO / name
    folder = as_path(os.fspath(name))
    if folder is None or not folder.is_dir():
        raise UsageError(
            f"no folder {os.fspath(name)!r}; expected the folder of a trained selector, or one of {', '.join(EMBEDDED)}"
        )
    return folder
