"""From a checkpoint folder of a native family to a model.

A family is one module with one function, `plan(folder, fields, source) -> Blueprint`: everything that is read
before the weights are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sinklens.errors import ModelError
from sinklens.models.diffusion_transformer import DiffusionTransformer
from sinklens.models.layers import TransformerShape
from sinklens.models.tokenization import ChatFormat
from sinklens.models.weights import load_weights
from sinklens.types import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A model without its weights."""

    shape: TransformerShape
    spec: ModelSpec
    chat_format: ChatFormat
    names: Mapping[str, str]  # our parameters to the names on disk
    tokenizer: Any = None

    def __post_init__(self) -> None:
        for name in ("mask_id", "eos_id", "pad_id", "bos_id", "eot_id"):
            value = getattr(self.spec, name)
            if value is not None and not 0 <= value < self.shape.rows:
                raise ModelError(
                    f"{self.spec.source}: {name} is {value}; expected an id from 0 to {self.shape.rows - 1}"
                )


def build(
    blueprint: Blueprint, folder: Path, *, device: torch.device, dtype: torch.dtype | None
) -> DiffusionTransformer:
    """The model with the weights of `folder`, in evaluation mode."""
    with torch.device("meta"):
        model = DiffusionTransformer(
            blueprint.shape,
            blueprint.spec,
            tokenizer=blueprint.tokenizer,
            chat_format=blueprint.chat_format,
        )
    load_weights(model, folder, blueprint.names, device=device, dtype=dtype)
    return model.eval()


def sizes(shape: TransformerShape, family: str, source: str) -> ModelSpec:
    """What a spec takes from the shape; a family adds its ids and what it promises (`dataclasses.replace`)."""
    return ModelSpec(
        family=family,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        width=shape.width,
        vocab_size=shape.rows,
        causal=False,
        source=source,
    )


def block_names(layers: int, ours_to_disk: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The names of all blocks from those of one: "attention.q.weight" -> f"{prefix}.{i}.{name on disk}"."""
    return {
        f"blocks.{layer}.{ours}": f"{prefix}.{layer}.{on_disk}"
        for layer in range(layers)
        for ours, on_disk in ours_to_disk.items()
    }
