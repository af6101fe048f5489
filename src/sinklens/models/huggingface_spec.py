"""The ModelSpec of a transformers model, read from its config, its modules and its tokenizer."""

from typing import Any

from torch import nn

from sinklens.models.tokenization import token_id
from sinklens.types import ModelSpec

POSITION_TABLES = ("wpe", "position_embeddings", "position_embedding", "embed_positions")
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")


def read_spec(model: Any, tokenizer: Any, source: str) -> ModelSpec:
    """What its config says, in our words."""
    config = model.config.get_text_config()
    heads, width = config.num_attention_heads, config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None)
    head_dim = getattr(config, "head_dim", None)
    table = _position_table(model)
    causal = _is_causal(model)
    masks = (getattr(config, "mask_token_id", None), getattr(tokenizer, "mask_token_id", None))
    return ModelSpec(
        family=model.config.model_type,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=width // heads if head_dim is None else head_dim,
        width=width,
        vocab_size=_rows(model, config),
        causal=causal,
        mask_id=None if causal else next((mask for mask in masks if mask is not None), None),
        bos_id=_special(model, tokenizer, "bos_token_id"),
        eos_id=_special(model, tokenizer, "eos_token_id"),
        eot_id=next((found for mark in TURN_ENDS if (found := token_id(tokenizer, mark)) is not None), None),
        pad_id=_special(model, tokenizer, "pad_token_id"),
        max_length=getattr(config, "max_position_embeddings", None) if table is None else table,
        learned_positions=table is not None,
        source=source,
    )


def _is_causal(model: nn.Module) -> bool:
    """Whether its attention modules say they are; BERT's class for causal LM, say, is not."""
    flags = [module.is_causal for module in model.modules() if isinstance(getattr(module, "is_causal", None), bool)]
    if flags:
        return any(flags)
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    # Before transformers 5, encoders say nothing; as decoders they are causal where their config says so.
    config: Any = model.config
    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) and not encoder


def _position_table(model: nn.Module) -> int | None:
    """How many positions a learned table has room for; None: there is no such table."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(module, nn.Embedding):
            # RoBERTa counts positions from its padding index, OPT from an offset.
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return int(module.num_embeddings) - max(reserved, int(getattr(module, "offset", 0)))
    return None


def _rows(model: Any, config: Any) -> int:
    """Rows of the embedding, which a resized model has more of than its config says."""
    embedding = model.get_input_embeddings()
    return int(embedding.num_embeddings) if isinstance(embedding, nn.Embedding) else int(config.vocab_size)


def _special(model: Any, tokenizer: Any, name: str) -> int | None:
    """A special id of the config, the generation config or the tokenizer; of several, the first."""
    for holder in (model.config, getattr(model, "generation_config", None), tokenizer):
        value = getattr(holder, name, None)
        if isinstance(value, list):
            value = value[0] if value else None
        if value is not None:
            return int(value)
    return None
