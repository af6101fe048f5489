"""Folders with nothing wrong in them, as small as they can be, and what a copy of one gets to betray code that runs."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fuzz.held import BAIT
from talking import write_tokenizer
from traces.synthetic import write_trace

LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 1,
    "mlp_hidden_size": 8,
    "vocab_size": 128,
    "embedding_size": 128,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_sequence_length": 64,
    "mask_token_id": 127,
    "eos_token_id": 126,
    "weight_tying": False,
    "rope": True,
    "include_bias": False,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 128,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "mask_token_id": 127,
    "eos_token_id": 126,
    "tie_word_embeddings": False,
    "rope_scaling": None,
}


def make_models(folder: Path) -> dict[str, Path]:
    """One checkpoint of each family, with a tokenizer."""
    made = {name: folder / name for name in ("llada", "dream", "mmada", "llama", "gpt2", "vit", "selector")}
    _native(made["llada"], LLADA)
    _native(made["dream"], DREAM)
    _native(made["mmada"], LLADA | {"model_type": "mmada", "architectures": ["MMadaModelLM"]})
    _transformers(made)
    for name in ("llada", "dream", "mmada", "llama", "gpt2"):
        write_tokenizer(made[name])
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
        (made[name] / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


def _native(folder: Path, config: dict[str, Any]) -> None:
    from importlib import import_module

    from sinklens.models.diffusion_transformer import DiffusionTransformer
    from sinklens.models.fields import Fields

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "mask_token_id": None}))
    family = str(config["model_type"]).lower()
    plan = import_module(f"sinklens.models.{family}").plan(folder, Fields.of_folder(folder), str(folder))
    torch.manual_seed(0)
    model = DiffusionTransformer(plan.shape, plan.spec, chat_format=plan.chat_format)
    torch.nn.init.normal_(model.embed.weight)
    tensors = {plan.names[name]: value.detach().contiguous() for name, value in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _transformers(made: dict[str, Path]) -> None:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    from sinklens.selection.folder import save_selector
    from sinklens.selection.selector import Gating, Selector
    from sinklens.selection.vit import SmallViT, ViTShape

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    llama = LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=128, max_position_embeddings=64, bos_token_id=1)
    LlamaForCausalLM(llama).save_pretrained(made["llama"])
    gpt2 = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=128, n_positions=64, bos_token_id=1, eos_token_id=126)
    GPT2LMHeadModel(gpt2).save_pretrained(made["gpt2"])
    vit = ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    ViTForImageClassification(vit).save_pretrained(made["vit"])
    (made["vit"] / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5], "image_std": [0.5]}))
    small = SmallViT(ViTShape(image=8, patch=4, width=8, blocks=2, heads=2, classes=3))
    save_selector(Selector(small, Gating()), made["selector"])


def make_traces(folder: Path) -> dict[str, Path]:
    """Traces of a recorder without a model, two samples each."""
    made = {name: folder / name for name in ("full", "sinks", "causal")}
    folder.mkdir(exist_ok=True)
    sizes = {"layers": 2, "heads": 2, "keys": 6, "steps": 2}
    write_trace(made["full"], with_maps=False, **sizes)
    write_trace(made["sinks"], detail="sinks", **sizes)
    write_trace(made["causal"], causal=True, **sizes)
    return made


class _Touch:
    """Leaves BAIT beside itself when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def lay_bait(folder: Path) -> None:
    """Code and pickles such as checkpoints bring: none of it may run."""
    trap = f"open({str(folder / BAIT)!r}, 'w').close()\n"
    for name in ("configuration_evil.py", "modeling_evil.py", "tokenization_evil.py", "custom_generate.py", "setup.py"):
        (folder / name).write_text(trap + "class Evil:\n    pass\n")
    (folder / "__init__.py").write_text(trap)
    for name in ("pytorch_model.bin", "training_args.bin", "model.pkl"):
        (folder / name).write_bytes(pickle.dumps(_Touch(folder / BAIT)))


def fresh(source: Path, target: Path) -> Path:
    """A copy of a sound folder to damage, with bait in it, in the place of the one before."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    lay_bait(target)
    return target
