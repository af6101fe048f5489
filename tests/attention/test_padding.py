"""Which positions are padding: read where the attention is, never from another sequence."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import sinklens as sl
from attention.zoo import PLAIN, causal, ids, right_padding, row_sums, seeded


def test_a_text_mask_is_not_applied_to_the_image_tower() -> None:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
        "patch_size": 4, "num_channels": 1,
    }  # fmt: skip
    model = seeded(lambda: hf.CLIPModel(hf.CLIPConfig(text_config=PLAIN, vision_config=vision)), "sdpa")
    pixels = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), sl.observe(model) as seen:
        model(input_ids=ids(), attention_mask=right_padding(), pixel_values=pixels)
    assert row_sums(seen, "vision") == [[17.0, 17.0]] * 2
    assert row_sums(seen, "text") == [[12.0, 8.0]] * 2


def test_a_decoder_that_stands_alone_has_the_mask_of_its_own_call() -> None:
    config = hf.OPTConfig(
        vocab_size=64, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, dropout=0.0,
        max_position_embeddings=64, word_embed_proj_dim=32, pad_token_id=0,
    )  # fmt: skip
    model = causal(config)
    with torch.no_grad(), sl.observe(model) as seen:
        model(ids(), attention_mask=right_padding())
    assert row_sums(seen) == [[12.0, 8.0]] * 2


def test_padded_queries_of_cross_attention_do_not_count() -> None:
    config = hf.BertConfig(**PLAIN, is_decoder=True, add_cross_attention=True)
    model = seeded(lambda: hf.BertLMHeadModel(config), "sdpa")
    other = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), sl.observe(model) as seen:
        model(ids(), attention_mask=right_padding(), encoder_hidden_states=other)
    assert row_sums(seen, "crossattention") == [[12.0, 8.0]] * 2


def test_an_encoder_called_by_generate_has_its_padding() -> None:
    config = hf.BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, dropout=0.0,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    model = seeded(lambda: hf.BartForConditionalGeneration(config), "sdpa")
    with sl.observe(model) as seen:
        model.generate(ids(), attention_mask=right_padding(), max_new_tokens=3, num_beams=1, do_sample=False)
    encoder = [r for r in seen.calls if ".encoder." in f".{r.site.module}." and r.site.kind == "self"]
    assert [r.received.sum(-1)[:, 0].round(decimals=3).tolist() for r in encoder] == [[12.0, 8.0]] * 2
    cross = [r for r in seen.calls if r.site.kind == "cross"]
    assert cross
    assert all(not r.received[1, :, 8:].any() for r in cross)


def test_a_model_in_a_wrapper_has_its_padding(llama: Any) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = llama

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.inner(batch["ids"], batch["mask"]).logits

    wrapper = Wrapper()
    with torch.no_grad(), sl.observe(wrapper) as seen:
        wrapper({"ids": ids(), "mask": right_padding()})
    assert row_sums(seen) == [[12.0, 8.0]] * 2


@pytest.mark.parametrize("shape", [(2, 5), (2, 20), (1, 12), (3, 12)])
def test_a_given_mask_must_fit(llama: Any, shape: tuple[int, int]) -> None:
    with pytest.raises(sl.SinklensError, match=r"attention_mask has shape .*; the sequence of model.* is 2 x 12"):  # noqa: SIM117
        with torch.no_grad(), sl.observe(llama, attention_mask=torch.ones(shape)):
            llama(ids())
