"""Random transformers models, small and causal."""

from typing import Any

import torch


def tiny_causal(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A random transformers model: sharp enough that arg-maxes are clear."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    special = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": None, **changes}
    if kind == "gpt2":
        config = GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, initializer_range=0.3, **special
        )
        return GPT2LMHeadModel(config).eval()
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        initializer_range=0.3,
        **special,
    )
    return LlamaForCausalLM(config).eval()
