"""Configs of the native families: what they may say, and what is refused by name."""

import json
import re
from pathlib import Path

import pytest
import torch

from sinklens.errors import ModelError
from sinklens.models.load import load

LLADA_SWITCHES = {
    "block_type": "sequential",
    "activation_type": "swiglu",
    "layer_norm_type": "default",
    "layer_norm_with_affine": False,
    "rope": False,
    "rope_full_precision": False,
    "alibi": True,
    "attention_layer_norm": True,
    "input_emb_norm": True,
    "scale_logits": True,
    "flash_attention": True,
    "multi_query_attention": True,
    "block_group_size": 2,
    "include_bias": True,
    "include_qkv_bias": True,
    "bias_for_layer_norm": True,
    "residual_dropout": 0.1,
}
DREAM_SWITCHES = {
    "hidden_act": "gelu",
    "use_sliding_window": True,
    "use_mrope": True,
    "rope_scaling": {"rope_type": "yarn"},
    "attention_dropout": 0.1,
}


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [("llada", *item) for item in LLADA_SWITCHES.items()]
    + [("mmada", "alibi", True)]
    + [("dream", *item) for item in DREAM_SWITCHES.items()],
)
def test_unsupported_switches_are_refused_by_name(copied, family: str, name: str, value: object) -> None:
    message = f"{name} is {re.escape(json.dumps(value))}; only .* is supported"
    with pytest.raises(ModelError, match=message):
        load(copied(family, **{name: value}))


@pytest.mark.parametrize(
    ("family", "name"),
    [("llada", "d_model"), ("llada", "mask_token_id"), ("mmada", "vocab_size"), ("dream", "vocab_size")],
)
def test_missing_fields(copied, family: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"has no {name}; expected a whole number"):
        load(copied(family, remove=(name,)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_layers": "3"}, "n_layers is '3'; expected a whole number"),
        ({"n_layers": 0}, "layers is 0; expected 1 to 10000"),
        ({"n_heads": True}, "n_heads is True; expected a whole number"),
        ({"rope_theta": None}, "rope_theta is None; expected a positive number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; expected a positive number"),
        ({"weight_tying": "no"}, "weight_tying is 'no'; expected true or false"),
        ({"n_heads": 5, "n_kv_heads": 5}, "width 64 over 5 heads; expected an even whole number"),
        ({"n_kv_heads": 3}, "4 heads cannot share 3 kv heads; expected a divisor"),
        ({"embedding_size": 100}, "embedding_size 100 is below vocab_size 128"),
        ({"mask_token_id": 128}, "mask_id is 128; expected an id from 0 to 127"),
    ],
)
def test_values_that_cannot_be(copied, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(copied("llada", **fields))


def test_config_that_is_not_json(copied) -> None:
    folder = copied("llada")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds a list; expected a JSON object"):
        load(folder)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config.json; expected a checkpoint folder"):
        load(tmp_path)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_null_kv_heads_are_the_query_heads(copied, golden: Path, family: str, rewritten) -> None:
    name = {"llada": "n_kv_heads", "dream": "num_key_value_heads"}[family]
    folder = copied(family, **{name: None})
    if family == "dream":  # stored with 2 of 4

        def repeat(tensors: dict[str, torch.Tensor]) -> None:
            for key, value in tensors.items():
                if "k_proj" in key or "v_proj" in key:
                    tensors[key] = value.unflatten(0, (2, 16)).repeat_interleave(2, dim=0).flatten(0, 1).clone()

        rewritten(folder, repeat)
    model = load(folder)
    assert model.spec.kv_heads == 4
    ids = torch.arange(100)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids), load(golden / family)(ids), atol=5e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "switch", "head", "embedding"),
    [
        ("llada", "weight_tying", "model.transformer.ff_out.weight", "model.transformer.wte.weight"),
        ("dream", "tie_word_embeddings", "lm_head.weight", "model.embed_tokens.weight"),
    ],
)
def test_tied_head(copied, rewritten, *, family: str, switch: str, head: str, embedding: str) -> None:
    folder = copied(family)
    rewritten(folder, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    ids = torch.arange(100)[None]
    with torch.no_grad():
        untied = load(folder)(ids)
        rewritten(folder, lambda tensors: tensors.pop(head))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, switch: True}))
        tied = load(folder)
        assert torch.equal(tied(ids), untied)
    assert sum(p.numel() for p in tied.parameters()) == sum(
        p.numel() for p in {id(p): p for p in tied.parameters()}.values()
    )


def test_embedding_wider_than_the_vocabulary(copied, rewritten, golden: Path) -> None:
    folder = copied("llada", embedding_size=160)

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.transformer.wte.weight", "model.transformer.ff_out.weight"):
            tensors[name] = torch.cat((tensors[name], torch.ones(32, 64)))

    rewritten(folder, widen)
    model = load(folder)
    ids = torch.arange(100)[None]
    with torch.no_grad():
        logits = model(ids)
        assert logits.shape == (1, 100, 160)
        torch.testing.assert_close(logits[..., :128], load(golden / "llada")(ids), atol=5e-5, rtol=0)
    assert model.spec.vocab_size == 160


def test_mlp_width_from_the_ratio(copied, rewritten) -> None:
    folder = copied("llada", mlp_hidden_size=None, mlp_ratio=2)

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        for name, value in tensors.items():
            if "ff_proj" in name or "up_proj" in name:
                tensors[name] = value[:128].clone()
            elif "blocks" in name and "ff_out" in name:
                tensors[name] = value[:, :128].clone()

    rewritten(folder, cut)
    assert load(folder).shape.mlp_width == 128
