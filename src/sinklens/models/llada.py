"""LLaDA (8B Base and Instruct, 1.5): config, names on disk, chat format.

OLMo's configuration with one setting of its many switches; the others change the arithmetic and are refused.
MMaDA shares all of it but the chat format and what padding does (mmada.py).
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sinklens.errors import ModelError
from sinklens.models.fields import Fields, read_json
from sinklens.models.layers import TransformerShape
from sinklens.models.native import Blueprint, block_names, sizes
from sinklens.models.tokenization import ChatFormat, fast_tokenizer, token_id

# Absent or null means the published value.
SWITCHES = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "rope": True,
    "rope_full_precision": True,
    "alibi": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "flash_attention": False,
    "multi_query_attention": False,
    "block_group_size": 1,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "residual_dropout": 0.0,
}
IN_A_BLOCK = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.q.weight": "q_proj.weight",
    "attention.k.weight": "k_proj.weight",
    "attention.v.weight": "v_proj.weight",
    "attention.o.weight": "attn_out.weight",
    "mlp_norm.weight": "ff_norm.weight",
    "mlp.gate.weight": "ff_proj.weight",
    "mlp.up.weight": "up_proj.weight",
    "mlp.down.weight": "ff_out.weight",
}
PREFIX = "model.transformer"
EOT = "<|eot_id|>"


def header_chat(newlines: str) -> ChatFormat:
    """Llama 3's headers; LLaDA and MMaDA differ in the newlines after each."""
    return ChatFormat(
        opening="<|startoftext|>",
        turn="<|start_header_id|>{role}<|end_header_id|>" + newlines + "{content}" + EOT,
        reply="<|start_header_id|>assistant<|end_header_id|>" + newlines,
        marks=("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", EOT),
        strip=True,
    )


@dataclass(frozen=True, kw_only=True)
class LLaDAConfig:
    """The fields of config.json that say something."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    mlp_hidden_size: int
    vocab_size: int
    embedding_size: int  # at least vocab_size; the width of the logits
    rope_theta: float
    rms_norm_eps: float
    max_sequence_length: int  # what the model was trained for; rotary positions go on
    mask_token_id: int
    weight_tying: bool

    def __post_init__(self) -> None:
        if self.embedding_size < self.vocab_size:
            raise ModelError(
                f"embedding_size {self.embedding_size} is below vocab_size {self.vocab_size}; expected at least that"
            )

    @classmethod
    def read(cls, fields: Fields) -> "LLaDAConfig":
        for name, accepted in SWITCHES.items():
            fields.only(name, accepted)
        width, heads = fields.integer("d_model"), fields.integer("n_heads")
        vocab_size = fields.integer("vocab_size")
        return cls(
            d_model=width,
            n_layers=fields.integer("n_layers"),
            n_heads=heads,
            n_kv_heads=fields.integer("n_kv_heads", heads),
            mlp_hidden_size=fields.integer("mlp_hidden_size", fields.integer("mlp_ratio", 4) * width),
            vocab_size=vocab_size,
            embedding_size=fields.integer("embedding_size", vocab_size),
            rope_theta=fields.number("rope_theta"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            max_sequence_length=fields.integer("max_sequence_length"),
            mask_token_id=fields.integer("mask_token_id"),
            weight_tying=fields.flag("weight_tying", False),
        )

    def shape(self, padding: str) -> TransformerShape:
        return TransformerShape(
            layers=self.n_layers,
            heads=self.n_heads,
            kv_heads=self.n_kv_heads,
            width=self.d_model,
            mlp_width=self.mlp_hidden_size,
            rows=self.embedding_size,
            norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
            tied=self.weight_tying,
            full_precision_rotation=True,
            padding=padding,
        )


def names_on_disk(shape: TransformerShape) -> dict[str, str]:
    """Our parameter names to the published ones; `ff_out` is both the head and a block's down projection."""
    names = {
        "embed.weight": f"{PREFIX}.wte.weight",
        **block_names(shape.layers, IN_A_BLOCK, f"{PREFIX}.blocks"),
        "final_norm.weight": f"{PREFIX}.ln_f.weight",
    }
    return names if shape.tied else {**names, "head.weight": f"{PREFIX}.ff_out.weight"}


def plan(folder: Path, fields: Fields, source: str) -> Blueprint:
    return plan_family("llada", folder, fields, source, padding="keys", chat_format=header_chat("\n\n"))


def plan_family(
    family: str, folder: Path, fields: Fields, source: str, *, padding: str, chat_format: ChatFormat
) -> Blueprint:
    """What LLaDA and MMaDA share."""
    config = LLaDAConfig.read(fields)
    shape = config.shape(padding)
    tokenizer = fast_tokenizer(folder)
    spec = replace(
        sizes(shape, family, source),
        mask_id=config.mask_token_id,
        bos_id=_bos_id(folder, fields, tokenizer),
        eos_id=fields.optional_integer("eos_token_id"),
        eot_id=_first(fields.optional_integer("eot_token_id"), token_id(tokenizer, EOT)),
        pad_id=fields.optional_integer("pad_token_id"),
        max_length=config.max_sequence_length,
    )
    return Blueprint(shape=shape, spec=spec, tokenizer=tokenizer, chat_format=chat_format, names=names_on_disk(shape))


def _bos_id(folder: Path, fields: Fields, tokenizer: object) -> int | None:
    """The published config.json leaves it to generation_config.json and the tokenizer."""
    path = folder / "generation_config.json"
    generation = Fields(values=read_json(path) if path.is_file() else {}, path=path)
    return _first(
        fields.optional_integer("bos_token_id"),
        generation.optional_integer("bos_token_id"),
        token_id(tokenizer, "<|startoftext|>"),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
