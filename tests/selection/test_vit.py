"""Backbones, ours and transformers': parts make the whole, masked tokens are as good as gone, attention is seen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sinklens as sl
from sinklens.errors import ModelError, UsageError
from sinklens.selection.backbone import Backbone, TransformersBackbone, wrap_backbone
from sinklens.selection.vit import SmallViT, ViTShape

SHAPE = ViTShape(image=16, patch=4, width=16, blocks=3, heads=2, classes=5)
KINDS = ("small", "vit", "deit", "teacher")


def tiny_config() -> dict[str, Any]:
    return {
        "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40, "image_size": 16,
        "patch_size": 4, "num_channels": 1, "num_labels": 5, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "initializer_range": 0.3,
    }  # fmt: skip


def transformers_model(kind: str) -> Any:
    import transformers

    torch.manual_seed(3)
    if kind == "vit":
        return transformers.ViTForImageClassification(transformers.ViTConfig(**tiny_config())).eval()
    config = transformers.DeiTConfig(**tiny_config())
    if kind == "deit":
        return transformers.DeiTForImageClassification(config).eval()
    return transformers.DeiTForImageClassificationWithTeacher(config).eval()


def backbone_of(kind: str) -> Any:
    return SmallViT(SHAPE, seed=1).eval() if kind == "small" else wrap_backbone(transformers_model(kind))


def images_of(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_backbone_make_the_whole(kind: str) -> None:
    backbone, images = backbone_of(kind), images_of(3)
    assert isinstance(backbone, Backbone)
    x = backbone.embed(images)
    assert x.shape == (3, backbone.prefix + 16, 16) and backbone.grid == (4, 4)
    assert backbone.prefix == (2 if kind in ("deit", "teacher") else 1)
    for block in backbone.blocks:
        x = block(x)
    torch.testing.assert_close(backbone.head(x), backbone(images), atol=1e-6, rtol=1e-5)


def test_a_wrapped_model_computes_what_it_computes_alone() -> None:
    model = transformers_model("vit")
    images = images_of(2)
    assert torch.equal(wrap_backbone(model)(images), model(images).logits)
    normalising = TransformersBackbone(model, mean=[0.5], std=[0.25])
    torch.testing.assert_close(normalising(images), model((images - 0.5) / 0.25).logits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_float", [False, True])
def test_a_masked_token_is_as_good_as_gone(kind: str, as_float: bool) -> None:
    backbone = backbone_of(kind)
    x = backbone.embed(images_of(2))
    alive = torch.ones(x.shape[:2], dtype=torch.bool)
    alive[0, 4:9] = False
    mask = torch.zeros(alive.shape).masked_fill(~alive, -torch.inf) if as_float else alive
    masked, removed = x, x[:1, alive[0]]
    for block in backbone.blocks:
        masked, removed = block(masked, mask), block(removed)
    torch.testing.assert_close(masked[:1, alive[0]], removed, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(masked[0, 0], backbone.blocks[0](x)[0, 0])


@pytest.mark.parametrize("kind", ["small", "vit"])
def test_a_float_mask_weighs_keys(kind: str) -> None:
    """log 2 on a key is that token twice: what merged tokens need."""
    backbone = backbone_of(kind)
    x = backbone.embed(images_of(1))
    twice = torch.cat((x, x[:, 5:6]), dim=1)
    bias = torch.zeros(x.shape[:2])
    bias[:, 5] = torch.log(torch.tensor(2.0))
    expected = backbone.blocks[0](twice)[:, :-1]
    torch.testing.assert_close(backbone.blocks[0](x, bias), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_seen_and_masked_tokens_are_padding(kind: str) -> None:
    backbone = backbone_of(kind)
    x = backbone.embed(images_of(2))
    alive = torch.ones(x.shape[:2], dtype=torch.bool)
    alive[1, 6:] = False
    plain = backbone.blocks[1](x, alive)
    with sl.observe(backbone) as seen:
        observed = backbone.blocks[1](x, alive)
    assert torch.equal(plain, observed)
    (call,) = seen.calls
    assert (call.received[1, :, 6:] == 0).all() and call.fair_share[1, :, 6:].isnan().all()
    torch.testing.assert_close(call.received.sum(dim=-1), alive.sum(dim=1)[:, None].expand(2, 2).float())
    with sl.observe(backbone) as seen:
        backbone(images_of(2))
    assert seen.layers == [0, 1, 2]
    torch.testing.assert_close(seen.received.sum(dim=-1), torch.full((3, 2, 2), float(x.shape[1])))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), patch=st.sampled_from([2, 4, 8]), heads=st.sampled_from([1, 2, 4]))
def test_a_small_vit_is_drawn_from_its_seed(seed: int, patch: int, heads: int) -> None:
    shape = ViTShape(image=16, patch=patch, width=8, heads=heads, blocks=1, mlp=12)
    one, same, other = SmallViT(shape, seed=seed), SmallViT(shape, seed=seed), SmallViT(shape, seed=seed + 1)
    images = images_of(1)
    assert torch.equal(one(images), same(images)) and not torch.equal(one(images), other(images))
    assert one.embed(images).shape == (1, 1 + (16 // patch) ** 2, 8)


def test_what_a_shape_cannot_be() -> None:
    with pytest.raises(UsageError, match="patches of 7 pixels do not tile an image of 64; expected a divisor"):
        ViTShape(patch=7)
    with pytest.raises(UsageError, match="width 96 over 5 heads; expected a multiple"):
        ViTShape(heads=5)
    with pytest.raises(UsageError, match="blocks is 0; expected a whole number from 1"):
        ViTShape(blocks=0)
    assert ViTShape(width=32).hidden == 128 and ViTShape(width=32, mlp=10).hidden == 10


@pytest.mark.parametrize("kind", ["small", "vit"])
def test_images_of_the_wrong_size_or_kind_are_refused(kind: str) -> None:
    backbone = backbone_of(kind)
    wanted = r"expected a float tensor \[batch, 1, 16, 16\] with values from 0 to 1"
    with pytest.raises(UsageError, match=r"images have shape \[2, 3, 16, 16\]; " + wanted):
        backbone.embed(torch.rand(2, 3, 16, 16))
    with pytest.raises(UsageError, match=r"images have shape \[1, 16, 16\]; " + wanted):
        backbone(torch.rand(1, 16, 16))
    with pytest.raises(UsageError, match=r"images are torch.uint8; " + wanted):
        backbone.embed(torch.zeros(2, 1, 16, 16, dtype=torch.uint8))


def test_a_checkpoint_folder_with_its_normalisation(tmp_path: Path) -> None:
    model = transformers_model("teacher")
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.4], "image_std": [0.2]}')
    backbone, images = wrap_backbone(tmp_path), images_of(2)
    assert (backbone.mean, backbone.std) == ((0.4,), (0.2,))
    torch.testing.assert_close(backbone(images), model((images - 0.4) / 0.2).logits)


def test_a_head_for_other_classes_and_weights_that_are_not_there(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = transformers_model("vit")
    model.save_pretrained(tmp_path)
    assert wrap_backbone(tmp_path, classes=7)(images_of(2)).shape == (2, 7)
    assert torch.equal(wrap_backbone(tmp_path, classes=5)(images_of(2)), model(images_of(2)).logits)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks classifier.weight \(1 in all\); expected the weights of an image"):
        wrap_backbone(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read as safetensors"):
        wrap_backbone(tmp_path)


def test_what_is_no_backbone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the backbone is a Linear; expected a SmallViT"):
        wrap_backbone(torch.nn.Linear(2, 2))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="is a 'bert' model; expected model_type 'vit' or 'deit'"):
        wrap_backbone(tmp_path)
    with pytest.raises(UsageError, match="2 values to normalise images of 1 channels"):
        TransformersBackbone(transformers_model("vit"), mean=[0.5, 0.5])
    with pytest.raises(ModelError, match="is no image classifier of transformers' ViT or DeiT layout"):
        wrap_backbone(transformers_model("vit").vit)
