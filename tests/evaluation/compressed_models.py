"""A small random decoder with a tokenizer of characters, for caches that are cut."""

from functools import cache
from typing import Any


class Characters:
    """A tokenizer with a token for every character, and a bos."""

    bos_token_id, eos_token_id = 1, 2

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(one) % 128 for one in text]}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(one) for one in ids if one > 2)

    all_special_ids = (1, 2)

    def get_vocab(self) -> dict[str, int]:
        return {chr(number): number for number in range(128)}


@cache
def small_decoder() -> Any:
    """Four layers, two kv heads for four query heads, float64: sums in any order agree."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinklens.models.huggingface import HuggingFaceModel

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.35,
    )
    return HuggingFaceModel(LlamaForCausalLM(config).double().eval(), tokenizer=Characters(), source="small")
