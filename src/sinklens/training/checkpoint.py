"""Networks to checkpoint folders in the published layouts, and back to go on training."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import ModelError
from sinklens.files import write_json, write_tensors, written_whole
from sinklens.models import dream, llada
from sinklens.models.fields import read_json
from sinklens.training.network import Network
from sinklens.training.recipe import Recipe
from sinklens.training.tokenizer import SPECIAL_TOKENS

WEIGHTS, STATE = "model.safetensors", "training.json"
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
CHECKPOINT = frozenset({WEIGHTS, STATE, CONFIG, GENERATION, *TOKENIZER_FILES})
BOS, EOS, MASK, PAD = range(len(SPECIAL_TOKENS))  # the tokenizer gives them their places


def names_on_disk(recipe: Recipe) -> dict[str, str]:
    """Our parameters to the names of the layout; Llama's are those of Dream without the biases."""
    shape = recipe.shape.transformer(recipe.family)
    if recipe.family == "llada":
        return llada.names_on_disk(shape)
    names = dream.names_on_disk(shape)
    return names if shape.qkv_bias else {ours: disk for ours, disk in names.items() if not ours.endswith(".bias")}


def config_of(recipe: Recipe) -> dict[str, Any]:
    """config.json, as the published checkpoints of the family have it."""
    shape = recipe.shape
    if recipe.family == "llada":
        return {
            **llada.SWITCHES,
            "architectures": ["LLaDAModelLM"],
            "model_type": "llada",
            "d_model": shape.width,
            "n_layers": shape.layers,
            "n_heads": shape.heads,
            "n_kv_heads": shape.heads,
            "mlp_hidden_size": shape.mlp_width,
            "vocab_size": shape.vocab_size,
            "embedding_size": shape.vocab_size,
            "rope_theta": shape.rope_theta,
            "rms_norm_eps": shape.norm_eps,
            "max_sequence_length": recipe.data.context,
            "weight_tying": True,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "mask_token_id": MASK,
        }
    common = {
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.mlp_width,
        "vocab_size": shape.vocab_size,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "max_position_embeddings": recipe.data.context,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "bfloat16",
    }
    if recipe.family == "dream":
        return {**common, "architectures": ["DreamModel"], "model_type": "Dream", "mask_token_id": MASK}
    return {**common, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False}


def write_checkpoint(
    network: Network, folder: Path, recipe: Recipe, *, tokenizer: Path, state: Mapping[str, Any]
) -> None:
    """The folder that `sinklens.load` reads; weights in bfloat16. Every file is whole, and the weights say the step."""
    tensors = {
        disk: network.get_parameter(ours).detach().to("cpu", torch.bfloat16).contiguous()
        for ours, disk in names_on_disk(recipe).items()
    }
    for name in TOKENIZER_FILES:
        with written_whole(folder / name) as temporary:
            copyfile(tokenizer / name, temporary)
    write_json(folder / CONFIG, config_of(recipe))
    write_json(folder / GENERATION, {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD})
    write_tensors(folder / WEIGHTS, tensors, metadata={"step": str(state["step"])})
    write_state(folder, recipe, state=state)


def write_state(folder: Path, recipe: Recipe, *, state: Mapping[str, Any]) -> None:
    """What run this folder holds, beside its weights."""
    write_json(folder / STATE, {**state, "recipe": recipe.as_dict(), "fingerprint": recipe.fingerprint})


def step_of(folder: Path) -> int | None:
    """The step that the weights are of; None: they are of no run, or no weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / WEIGHTS), framework="pt") as handle:
            return int((handle.metadata() or {})["step"])
    except (KeyError, ValueError, SafetensorError):
        return None


def read_state(folder: Path) -> dict[str, Any] | None:
    """What a folder says of the run that wrote it; the step is that of its weights."""
    if not (folder / STATE).is_file() or not (folder / WEIGHTS).is_file():
        return None
    step = step_of(folder)
    if step is None:
        raise ModelError(f"{folder / WEIGHTS} is damaged, or not of the run in {STATE}; train into another folder")
    return {**read_json(folder / STATE), "step": step}


def read_weights(network: Network, folder: Path, recipe: Recipe) -> None:
    """Fill a network from a checkpoint of its own layout, or Dream's from Llama's, biases staying as they are."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = load_file(folder / WEIGHTS)
    for ours, disk in names_on_disk(recipe).items():
        if disk not in tensors and ours.endswith(".bias"):
            continue
        if disk not in tensors or tensors[disk].shape != network.get_parameter(ours).shape:
            raise ModelError(
                f"{folder / WEIGHTS} has no {disk} of the recipe's shape; start from one of the same shape"
            )
        with torch.no_grad():
            network.get_parameter(ours).copy_(tensors[disk])
