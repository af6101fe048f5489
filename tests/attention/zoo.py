"""Tiny random transformers models, one row each: how to build it, what to feed it, which attention it offers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

import sinklens as sl

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BATCH, LENGTH, PADDED = 2, 12, 4


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    build: Callable[[str], Any]  # attn_implementation -> model
    implementations: tuple[str, ...] = ("sdpa", "eager")
    padding: str | None = "left"  # side on which row 1 is padded; None: the model takes no padding
    generates: bool = False


def seeded(make: Callable[[], Any], implementation: str) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from uniform attention
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
            elif "sinks" in "".join(n for n, p in model.named_parameters() if p is parameter):
                parameter.normal_(0, 1)
    model.set_attn_implementation(implementation)
    return model


def _causal(config: Any) -> Callable[[str], Any]:
    return lambda implementation: seeded(lambda: hf.AutoModelForCausalLM.from_config(config), implementation)


def _model(config: Any) -> Callable[[str], Any]:
    return lambda implementation: seeded(lambda: hf.AutoModel.from_config(config), implementation)


def _bert() -> dict[str, Any]:
    return {key: SMALL[key] for key in SMALL if key not in ("num_key_value_heads", "head_dim")}


def _gemma(**more: Any) -> dict[str, Any]:
    return SMALL | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]} | more


def rows() -> list[Row]:
    table = [
        Row(name="llama", build=_causal(hf.LlamaConfig(**SMALL)), generates=True),
        Row(name="qwen2", build=_causal(hf.Qwen2Config(**SMALL)), generates=True),
        Row(name="qwen3", build=_causal(hf.Qwen3Config(**SMALL)), generates=True),
        Row(name="gemma3", build=_causal(hf.Gemma3TextConfig(**_gemma())), generates=True),
        Row(
            name="gemma2",
            build=_causal(hf.Gemma2Config(**_gemma(attn_logit_softcapping=2.0))),
            implementations=("eager",),
            generates=True,
        ),
        Row(
            name="gpt_oss",
            build=_causal(hf.GptOssConfig(**_gemma(num_local_experts=2, num_experts_per_tok=1, rope_parameters=None))),
            implementations=("eager",),
            generates=True,
        ),
        Row(
            name="gpt2",
            build=_causal(
                hf.GPT2Config(
                    vocab_size=64,
                    n_positions=64,
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    bos_token_id=1,
                    eos_token_id=2,
                    pad_token_id=0,
                    attn_pdrop=0.0,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                )
            ),
            generates=True,
        ),
        Row(name="bert", build=_model(hf.BertConfig(**_bert())), padding="right"),
        Row(
            name="modernbert",
            build=_model(
                hf.ModernBertConfig(
                    **_bert(), global_attn_every_n_layers=2, local_attention=6, cls_token_id=1, sep_token_id=2
                )
            ),
            padding="right",
        ),
        Row(
            name="vit",
            build=_model(
                hf.ViTConfig(
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    image_size=16,
                    patch_size=4,
                    num_channels=1,
                )
            ),
            padding=None,
        ),
        Row(
            name="t5",
            build=lambda implementation: seeded(
                lambda: hf.T5ForConditionalGeneration(
                    hf.T5Config(
                        vocab_size=64,
                        d_model=32,
                        d_kv=8,
                        d_ff=48,
                        num_layers=2,
                        num_heads=4,
                        decoder_start_token_id=0,
                        dropout_rate=0.0,
                    )
                ),
                implementation,
            ),
            padding="right",
        ),
    ]
    if hasattr(hf, "DiffusionGemmaConfig"):
        table.append(Row(name="diffusion_gemma", build=_diffusion_gemma, padding=None))
    return table


def _diffusion_gemma(implementation: str) -> Any:
    text = hf.DiffusionGemmaTextConfig(
        **_gemma(num_experts=2, top_k_experts=1, moe_intermediate_size=16, num_global_key_value_heads=2)
    )
    vision = hf.Gemma4VisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
    )
    config = hf.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=6)
    return seeded(lambda: hf.DiffusionGemmaModel(config), implementation)


def inputs(row: Row, *, padded: bool) -> dict[str, Tensor]:
    """What to feed the model; with padding, row 1 has PADDED padding tokens."""
    generator = torch.Generator().manual_seed(1)
    if row.name == "vit":
        return {"pixel_values": torch.randn(BATCH, 1, 16, 16, generator=generator)}
    ids = torch.randint(3, 64, (BATCH, LENGTH), generator=generator)
    feed = {"input_ids": ids}
    if padded:
        mask = torch.ones_like(ids)
        where = slice(0, PADDED) if row.padding == "left" else slice(LENGTH - PADDED, LENGTH)
        mask[1, where] = 0
        feed["attention_mask"] = mask
        feed["input_ids"] = ids.masked_fill(mask == 0, 0)
    if row.name == "t5":
        decoder = torch.randint(3, 64, (BATCH, 9), generator=generator)
        feed["decoder_input_ids"] = decoder
        if padded:
            mask = torch.ones_like(decoder)
            mask[1, -2:] = 0
            feed["decoder_attention_mask"] = mask
    if row.name == "diffusion_gemma":
        feed["decoder_input_ids"] = torch.randint(3, 64, (BATCH, 6), generator=generator)
    return feed


PLAIN = {key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "head_dim")}


def ids() -> Tensor:
    return torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(1))


def right_padding() -> Tensor:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return mask


def causal(config: Any, implementation: str = "sdpa") -> Any:
    return seeded(lambda: hf.AutoModelForCausalLM.from_config(config), implementation)


def row_sums(seen: sl.Observation, name: str = "") -> list[list[float]]:
    return [r.received.sum(-1)[:, 0].round(decimals=3).tolist() for r in seen.calls if name in r.site.module]
