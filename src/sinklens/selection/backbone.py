"""What a selector needs of a vision transformer, and transformers' ViT and DeiT in that form.

The tokens are [prefix | patches]: the prefix (class token; DeiT: also the distillation token) is never dropped.
Position embeddings are added before the first block, so a token that stays carries its place with it.
"""

import os
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinklens.errors import ModelError, UsageError
from sinklens.models.catalog import DOWNLOADED, download, locate_here
from sinklens.models.fields import read_json
from sinklens.models.huggingface import cannot_load, read_folder_config
from sinklens.models.weights import find_tensors
from sinklens.selection.vit import SmallViT, TokenMask, alive_of, check_images, key_bias

PREPROCESSOR = "preprocessor_config.json"


@runtime_checkable
class Backbone(Protocol):
    """A vision transformer in three parts: `head(blocks(embed(images)))` is what it computes whole."""

    width: int
    heads: int
    hidden: int  # width of the MLP's middle
    classes: int
    channels: int  # of the images
    patch: tuple[int, int]  # pixels: height, width
    grid: tuple[int, int]  # patches: rows, columns
    prefix: int  # tokens before the patches
    blocks: nn.ModuleList  # each block(x, mask=None) -> x; see vit.py for masks

    def embed(self, images: Any) -> Tensor: ...

    def head(self, x: Tensor) -> Tensor: ...

    def __call__(self, images: Any) -> Tensor: ...


class _Layer(nn.Module):
    """A transformers layer. The parameter `attention_mask` is where observers read which tokens are real."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self,
        x: Float[Tensor, "batch token width"],
        attention_mask: Bool[Tensor, "batch token"] | None = None,
        bias: Float[Tensor, "batch 1 1 token"] | None = None,
    ) -> Float[Tensor, "batch token width"]:
        output = self.layer(x, bias)
        return output[0] if isinstance(output, tuple) else output  # type: ignore[no-any-return]


class TransformersBlock(nn.Module):
    """A transformers layer as a block: one mask over the tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = _Layer(layer)

    def forward(
        self, x: Float[Tensor, "batch token width"], mask: TokenMask | None = None
    ) -> Float[Tensor, "batch token width"]:
        if mask is None:
            output: Tensor = self.inner(x)
        else:
            output = self.inner(x, attention_mask=alive_of(mask), bias=key_bias(mask, x.dtype))
        return output


class TransformersBackbone(nn.Module):
    """transformers' ViT or DeiT with a classifier. Images come in [0, 1] and are normalised here."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Iterable[float] | None = None,
        std: Iterable[float] | None = None,
        source: str | None = None,
    ) -> None:
        super().__init__()
        self.source = source  # the folder, or the hub id with its commit; None: it was there already
        base = getattr(model, getattr(model, "base_model_prefix", "") or "-", None)
        parts = ("embeddings", "layers", "layernorm")
        heads = [name for name in ("classifier", "cls_classifier") if hasattr(model, name)]
        if base is not None and heads and hasattr(getattr(base, "encoder", None), "layer"):
            raise ModelError(
                f"{type(model).__name__} of transformers {version('transformers')} has its layers elsewhere; upgrade "
                "transformers (5 or newer)"
            )
        if base is None or not all(hasattr(base, part) for part in parts) or not heads:
            raise ModelError(
                f"{type(model).__name__} is no image classifier of transformers' ViT or DeiT layout; expected "
                "ViTForImageClassification, DeiTForImageClassification or DeiTForImageClassificationWithTeacher"
            )
        config: Any = model.config
        self.model = model
        self.width, self.heads, self.hidden = (
            config.hidden_size, config.num_attention_heads, config.intermediate_size,
        )  # fmt: skip
        self.classes, self.channels = config.num_labels, config.num_channels
        self.patch, self.image = _pair(config.patch_size), _pair(config.image_size)
        self.grid = (self.image[0] // self.patch[0], self.image[1] // self.patch[1])
        self.prefix = base.embeddings.position_embeddings.shape[1] - self.grid[0] * self.grid[1]
        self.blocks = nn.ModuleList([TransformersBlock(layer) for layer in base.layers])
        self.mean, self.std = _statistics(mean, self.channels, 0.0), _statistics(std, self.channels, 1.0)
        self._moments = (_column(self.mean, torch.empty(0)), _column(self.std, torch.empty(0)))

    @property
    def _base(self) -> Any:
        return getattr(self.model, str(self.model.base_model_prefix))

    def _normalised(self, images: Any) -> Float[Tensor, "batch channels height width"]:
        check_images(images, channels=self.channels, height=self.image[0], width=self.image[1])
        mean, std = self._moments
        if (mean.device, mean.dtype) != (images.device, images.dtype):  # once: a captured forward cannot make them
            mean, std = self._moments = (_column(self.mean, images), _column(self.std, images))
        normalised: Tensor = (images - mean) / std
        return normalised

    def embed(self, images: Any) -> Float[Tensor, "batch token width"]:
        """Prefix and patches, with their positions."""
        tokens: Tensor = self._base.embeddings(self._normalised(images))
        return tokens

    def head(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch classes"]:
        """Logits, from the class token; with a teacher's head, the mean of both heads."""
        model: Any = self.model
        normed = self._base.layernorm(x[:, : self.prefix])
        if hasattr(model, "cls_classifier"):
            both = model.cls_classifier(normed[:, 0]) + model.distillation_classifier(normed[:, 1])
            return both / 2  # type: ignore[no-any-return]
        logits: Tensor = model.classifier(normed[:, 0])
        return logits

    def forward(self, images: Any) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.model(self._normalised(images)).logits
        return logits


def wrap_backbone(model: Any, *, classes: int | None = None, revision: str | None = None) -> Any:
    """A backbone from one, from a transformers classifier, or from the name of its folder or hub repository.

    classes: with a name, how many to tell apart; a checkpoint with a head for another number gets a new one, untrained.
    revision: commit, tag or branch of a hub repository.
    """
    if isinstance(model, str | os.PathLike):
        return _load(model, classes, revision)
    if isinstance(model, SmallViT | TransformersBackbone):
        return model
    if isinstance(model, nn.Module) and hasattr(model, "config"):
        return TransformersBackbone(model)
    if isinstance(model, nn.Module) and isinstance(model, Backbone):
        return model
    raise UsageError(
        f"the backbone is a {type(model).__name__}; expected a SmallViT, a transformers ViT or DeiT classifier, or the "
        "folder or hub id of one"
    )


def _load(name: "str | os.PathLike[str]", classes: int | None, revision: str | None) -> TransformersBackbone:
    """A checkpoint folder or hub id, with the normalisation that it asks for."""
    from transformers import AutoModelForImageClassification

    found = locate_here(name, revision=revision)
    if isinstance(found, str):
        found = download(found, revision, [*DOWNLOADED, PREPROCESSOR])
    family = read_json(found.folder / "config.json").get("model_type")
    if family not in ("vit", "deit"):
        raise ModelError(
            f"{found.source} is a {family!r} model; expected model_type 'vit' or 'deit' in its config.json"
        )
    find_tensors(found.folder)  # worded errors for weights that are missing, cut short or pickled
    config = read_folder_config(found.folder)
    new_head = classes is not None and classes != config.num_labels
    if new_head:
        config.num_labels = classes
    try:
        model, report = AutoModelForImageClassification.from_pretrained(
            found.folder,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=new_head,
            output_loading_info=True,
        )
    except Exception as error:  # a config that makes no sense fails wherever transformers first uses it
        raise cannot_load(found.source, error) from error
    missing = sorted(key for key in report["missing_keys"] if not (new_head and "classifier" in key))
    if missing:
        raise ModelError(
            f"{found.source} lacks {missing[0]} ({len(missing)} in all); expected the weights of an image classifier"
        )
    asked = read_json(found.folder / PREPROCESSOR) if (found.folder / PREPROCESSOR).is_file() else {}
    wanted = asked if asked.get("do_normalize", True) else {}
    try:
        moments = {"mean": wanted.get("image_mean"), "std": wanted.get("image_std")}
        return TransformersBackbone(model, **moments, source=found.source)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise cannot_load(found.source, error) from error


def _column(values: tuple[float, ...], like: Tensor) -> Float[Tensor, "channel 1 1"]:
    return like.new_tensor(values)[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    height, width = value if isinstance(value, Iterable) else (value, value)
    return int(height), int(width)


def _statistics(values: Iterable[float] | None, channels: int, default: float) -> tuple[float, ...]:
    given = (default,) * channels if values is None else tuple(float(value) for value in values)
    if len(given) != channels:
        raise UsageError(f"{len(given)} values to normalise images of {channels} channels; expected one a channel")
    return given
