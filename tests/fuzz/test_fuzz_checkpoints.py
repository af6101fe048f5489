"""Hostile model folders: whatever stands in config.json and its neighbours, a model is loaded or refused in words."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import sinklens as sl
from fuzz.damage import damaged, damaged_json, nested
from fuzz.held import fuzzed, held, held_command
from fuzz.sound import DREAM, LLADA, fresh
from sinklens.errors import ModelError
from sinklens.selection.backbone import wrap_backbone
from sinklens.selection.folder import load_selector

KEYS = (
    "auto_map",
    "quantization_config",
    "rope_scaling",
    "_attn_implementation",
    "torch_dtype",
    "is_decoder",
    "head_dim",
)
EVIL = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "dtype": "float32",
}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2}
GPT2 |= {"vocab_size": 128, "n_positions": 64, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 8, "intermediate_size": 8}
VIT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4, "num_channels": 1}
VIT |= {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}, "hidden_act": "gelu"}


def put(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    return folder


def speak(folder: Path) -> None:
    """Load it and let it say something; what was refused by then is out of the question."""
    model = sl.load(folder)
    prompt = torch.tensor([[1, 2, 3]])
    sampler: Any = {
        "llada": sl.LLaDASampler(steps=2, length=2, block=2),
        "mmada": sl.LLaDASampler(steps=2, length=2, block=2),
        "dream": sl.DreamSampler(steps=2, length=2),
    }.get(model.spec.family, sl.AutoregressiveSampler(length=2))
    sl.generate(model, prompt, sampler)


def said(**changes: Any) -> bytes:
    return json.dumps(LLADA | changes).encode()


def told(**changes: Any) -> bytes:
    return json.dumps(LLAMA | changes).encode()


@example(content=b"[" * 100_000)  # RecursionError of the parser
@example(content=said(n_layers=10**9))  # built one by one, until memory ends
@example(content=said(d_model=2**63, n_heads=1))
@example(content=said(rope_theta=10**400))  # below infinity, and no float
@example(content=said(max_sequence_length=-1))
@given(content=damaged_json(LLADA, keys=KEYS))
@fuzzed(70)
def test_config_of_llada(content: bytes, models: dict[str, Path], tmp_path: Path) -> None:
    folder = put(fresh(models["llada"], tmp_path / "in" / "model"), "config.json", content)
    held(lambda: speak(folder), source=folder, out=tmp_path / "out")


@given(content=damaged_json(DREAM, keys=KEYS))
@fuzzed(50)
def test_config_of_dream(content: bytes, models: dict[str, Path], tmp_path: Path) -> None:
    folder = put(fresh(models["dream"], tmp_path / "in" / "model"), "config.json", content)
    held(lambda: speak(folder), source=folder, out=tmp_path / "out")


@example(content=told(num_attention_heads=0))
@example(content=told(num_hidden_layers=10**9))
@example(content=told(_attn_implementation=[]))
@example(content=told(auto_map=EVIL))
@example(content=told(auto_map=EVIL, model_type="evil"))
@given(content=damaged_json(LLAMA, keys=KEYS))
@fuzzed(60)
def test_config_of_a_transformers_model(content: bytes, models: dict[str, Path], tmp_path: Path) -> None:
    folder = put(fresh(models["llama"], tmp_path / "in" / "model"), "config.json", content)
    held(lambda: speak(folder), source=folder, out=tmp_path / "out")


@given(content=damaged_json(GPT2, keys=KEYS))
@fuzzed(30)
def test_config_of_a_model_with_learned_positions(content: bytes, models: dict[str, Path], tmp_path: Path) -> None:
    folder = put(fresh(models["gpt2"], tmp_path / "in" / "model"), "config.json", content)
    held(lambda: speak(folder), source=folder, out=tmp_path / "out")


@given(family=st.sampled_from(("llada", "llama")), data=st.data())
@fuzzed(40)
def test_a_folder_described_on_the_command_line(
    family: str, data: Any, models: dict[str, Path], tmp_path: Path
) -> None:
    content = data.draw(damaged_json(LLADA if family == "llada" else LLAMA, keys=KEYS))
    folder = put(fresh(models[family], tmp_path / "in" / "model"), "config.json", content)
    held_command("models", str(folder), source=folder, out=tmp_path / "out")


def test_an_attention_that_is_no_name(models: dict[str, Path], tmp_path: Path) -> None:
    """Found by the one before."""
    folder = put(fresh(models["llama"], tmp_path / "in" / "model"), "config.json", told(_attn_implementation=[[]]))
    held_command("models", str(folder), source=folder, out=tmp_path / "out")


@given(
    name=st.sampled_from(("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")), data=st.data()
)
@fuzzed(40)
def test_the_neighbours_of_config_json(name: str, data: Any, models: dict[str, Path], tmp_path: Path) -> None:
    family = data.draw(st.sampled_from(("llada", "dream", "llama")))
    sound = {"bos_token_id": 1, "eos_token_id": [2], "mask_token_id": None, "max_length": 20, "do_sample": False}
    sound |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "w1", "chat_template": "{{ messages }}"}
    content = data.draw(damaged_json(sound, keys=("auto_map", "added_tokens_decoder", "custom_generate", "use_cache")))
    folder = put(fresh(models[family], tmp_path / "in" / "model"), name, content)
    held(lambda: speak(folder), source=folder, out=tmp_path / "out")


@given(data=st.data(), family=st.sampled_from(("llada", "dream", "llama")))
@fuzzed(60)
def test_tokenizer_json(data: Any, family: str, models: dict[str, Path], tmp_path: Path) -> None:
    content = (models[family] / "tokenizer.json").read_bytes()
    hostile = data.draw(st.one_of(damaged_json(json.loads(content)), damaged(content)))
    folder = put(fresh(models[family], tmp_path / "in" / "model"), "tokenizer.json", hostile)

    def talk() -> None:
        model = sl.load(folder)
        if model.tokenizer is not None:
            sl.generate(model, "w1 w2", sl.AutoregressiveSampler(length=1) if family == "llama" else shortest(family))

    held(talk, source=folder, out=tmp_path / "out")


def shortest(family: str) -> Any:
    return sl.DreamSampler(steps=1, length=1) if family == "dream" else sl.LLaDASampler(steps=1, length=1, block=1)


@given(template=st.sampled_from((
    "{{ messages[0].content.__class__.__mro__[1].__subclasses__() }}",
    "{% for x in range(10**9) %}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% include '/etc/passwd' %}",
    "{{ cycler.__init__.__globals__.os.mkdir('BAIT') }}",
    "{{ 1 / 0 }}",
    "{{ undefined.x }}",
    "{% if %}",
    "",
)) | st.text(max_size=30))  # fmt: skip
@fuzzed(25)
def test_a_chat_template_is_no_program(template: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(models["llama"], tmp_path / "in" / "model")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    put(folder, "tokenizer_config.json", json.dumps(settings).encode())
    held(lambda: sl.load(folder).chat([{"role": "user", "content": "w1"}]), source=folder, out=tmp_path / "out")


@given(content=damaged_json(VIT, keys=KEYS), name=st.sampled_from(("config.json", "preprocessor_config.json")))
@fuzzed(40)
def test_a_vision_backbone(content: bytes, name: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = put(fresh(models["vit"], tmp_path / "in" / "model"), name, content)
    images = torch.zeros(1, 1, 8, 8)
    held(lambda: wrap_backbone(folder)(images), source=folder, out=tmp_path / "out")


@given(data=st.data())
@fuzzed(50)
def test_config_of_a_selector(data: Any, models: dict[str, Path], tmp_path: Path) -> None:
    sound = json.loads((models["selector"] / "config.json").read_bytes())
    folder = fresh(models["selector"], tmp_path / "in" / "model")
    put(folder, "config.json", data.draw(damaged_json(sound)))
    held(lambda: load_selector(folder), source=folder, out=tmp_path / "out")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "nowhere"])
@pytest.mark.parametrize("family", ["llada", "llama"])
def test_what_is_no_file(name: str, kind: str, family: str, models: dict[str, Path], tmp_path: Path) -> None:
    """A pipe would be waited for and a device be read without end."""
    folder = fresh(models[family], tmp_path / "in" / "model")
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": name, "nowhere": "/nowhere/at/all"}[kind])
    outcome = held(lambda: speak(folder), source=folder, out=tmp_path / "out")
    assert outcome.error is not None or name in ("generation_config.json", "tokenizer.json")


def test_the_examples_are_refused_in_words(models: dict[str, Path], tmp_path: Path) -> None:
    for content, words in (
        (b"[" * 100_000, "cannot be read as JSON .*nested too deeply"),
        (said(n_layers=10**9), "layers is 1000000000"),
        (said(rope_theta=10**400), "rope_theta"),
        (said(vocab_size=nested(3)), "vocab_size is .* expected a whole number"),
        (told(num_attention_heads=0), "transformers cannot load"),
        (told(num_hidden_layers=10**9), "1000000000 layers"),
    ):
        folder = fresh(models["llama" if b"llama" in content[:30] else "llada"], tmp_path / "in" / "model")
        with pytest.raises(ModelError, match=words):
            sl.load(put(folder, "config.json", content))
