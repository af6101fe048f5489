"""Dream (v0 Base and Instruct 7B): config, names on disk, chat format.

Qwen2 without its causal mask. It kept the next-token head, so the output at p predicts position p + 1
(`spec.shift`); logits are given as the checkpoint computes them and the sampler shifts. cos and sin are
rounded to the activations' dtype before the rotation, which in bfloat16 is visible.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sinklens.models.fields import Fields
from sinklens.models.layers import TransformerShape
from sinklens.models.native import Blueprint, block_names, sizes
from sinklens.models.tokenization import ChatFormat, qwen2_tokenizer, token_id

SWITCHES: dict[str, Any] = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "use_mrope": False,
    "attention_dropout": 0.0,
    "rope_scaling": None,
}
IN_A_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.q.bias": "self_attn.q_proj.bias",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.k.bias": "self_attn.k_proj.bias",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.v.bias": "self_attn.v_proj.bias",
    "attention.o.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
EOT = "<|im_end|>"
CHAT = ChatFormat(
    turn="<|im_start|>{role}\n{content}" + EOT + "\n",
    reply="<|im_start|>assistant\n",
    marks=("<|im_start|>", EOT),
    system="You are a helpful assistant.",
)


@dataclass(frozen=True, kw_only=True)
class DreamConfig:
    """The fields of config.json that say something."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    mask_token_id: int  # generation_config.json has null here
    tie_word_embeddings: bool

    @classmethod
    def read(cls, fields: Fields) -> "DreamConfig":
        for name, accepted in SWITCHES.items():
            fields.only(name, accepted)
        heads = fields.integer("num_attention_heads")
        return cls(
            hidden_size=fields.integer("hidden_size"),
            num_hidden_layers=fields.integer("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=fields.integer("num_key_value_heads", heads),
            intermediate_size=fields.integer("intermediate_size"),
            vocab_size=fields.integer("vocab_size"),
            rope_theta=fields.number("rope_theta"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            mask_token_id=fields.integer("mask_token_id"),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        )

    def shape(self) -> TransformerShape:
        return TransformerShape(
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            width=self.hidden_size,
            mlp_width=self.intermediate_size,
            rows=self.vocab_size,
            norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            tied=self.tie_word_embeddings,
            qkv_bias=True,
            full_precision_rotation=False,
            padding="pairs",
            positions_skip_padding=True,
        )


def names_on_disk(shape: TransformerShape) -> dict[str, str]:
    """Our parameter names to the published ones, which are Qwen2's."""
    names = {
        "embed.weight": "model.embed_tokens.weight",
        **block_names(shape.layers, IN_A_BLOCK, "model.layers"),
        "final_norm.weight": "model.norm.weight",
    }
    return names if shape.tied else {**names, "head.weight": "lm_head.weight"}


def plan(folder: Path, fields: Fields, source: str) -> Blueprint:
    config = DreamConfig.read(fields)
    shape = config.shape()
    tokenizer = qwen2_tokenizer(folder)
    bos_id = None if tokenizer is None else tokenizer.bos_token_id  # the config names eos here
    spec = replace(
        sizes(shape, "dream", source),
        shift=True,
        mask_id=config.mask_token_id,
        bos_id=fields.optional_integer("bos_token_id") if bos_id is None else bos_id,
        eos_id=fields.optional_integer("eos_token_id"),
        eot_id=token_id(tokenizer, EOT),
        pad_id=fields.optional_integer("pad_token_id"),
        max_length=config.max_position_embeddings,
    )
    return Blueprint(shape=shape, spec=spec, tokenizer=tokenizer, chat_format=CHAT, names=names_on_disk(shape))
