"""What compress refuses, in words; caches that come from elsewhere; the marks of "fastgen"."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.cache_utils import DynamicCache, StaticCache

import sinklens as sl
from attention.zoo import SMALL, causal
from attention.zoo import rows as zoo_rows
from cache.reference import hidden_forward, llama, prompt, seen_later
from sinklens.cache.vocabulary import marked_ids
from sinklens.errors import UsageError


def zoo(name: str) -> Any:
    return next(row for row in zoo_rows() if row.name == name).build("sdpa")


def test_models_that_cannot_be_compressed() -> None:
    settings = sl.Compression(keep=3, skip=())
    refused: list[tuple[Any, str]] = [
        ("tiny-llama", "expected a model"),
        (nn.Linear(2, 2), "Linear is none: it keeps no cache of that kind"),
        (zoo("t5"), "is an encoder-decoder"),
        (
            causal(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), "eager"),
            "computes attention outside transformers' attention interface",
        ),
    ]
    for model, words in refused:
        with pytest.raises(UsageError, match=words), sl.compress(model, settings):
            pass
    model = llama()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(UsageError, match="attn_implementation='flex_attention'"), sl.compress(model, settings):
        pass


def test_settings_that_do_not_fit_the_model() -> None:
    model = llama()
    for settings, words in (
        (sl.Compression(keep=3, skip=(0, 3)), "skip names layer 3; the model's go from 0 to 2"),
        (sl.Compression(keep=3, skip=(0, 1, 2)), "names every layer"),
        (sl.Compression(keep=3, order="fastgen"), "pass tokenizer="),
        ("low", "compression is 'low'; expected settings"),
    ):
        with pytest.raises(UsageError, match=words), sl.compress(model, settings):
            pass
    with sl.compress(model, sl.Compression(keep=3)):
        with pytest.raises(UsageError, match="compressed already"), sl.compress(model, sl.Compression(keep=3)):
            pass
        with torch.no_grad():
            model(prompt(1, 4), use_cache=True)


def test_caches_that_cannot_be_cut() -> None:
    model, ids, settings = llama(), prompt(1, 8), sl.Compression(keep=3, skip=())
    caches: list[tuple[Any, str]] = [
        (StaticCache(config=model.config, max_cache_len=16), "layer 0 of the cache is a StaticLayer"),
        (((torch.zeros(1), torch.zeros(1)),), "was given a tuple"),
    ]
    for cache, words in caches:
        attention = model.model.layers[0].self_attn
        cos = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(8)[None])
        with torch.no_grad(), pytest.raises(UsageError, match=words), sl.compress(model, settings):
            attention(
                hidden_states=torch.zeros(1, 8, 32, dtype=torch.float64),
                position_embeddings=cos,
                attention_mask=None,
                past_key_values=cache,
            )
    cache = DynamicCache(config=model.config)
    cache.offloading = True
    with torch.no_grad(), pytest.raises(UsageError, match="offloaded"), sl.compress(model, settings):
        model(ids, past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_sliding_windows_are_refused_or_skipped(name: str) -> None:
    model = zoo("gemma3") if name == "gemma3" else causal(hf.MistralConfig(**(SMALL | {"sliding_window": 5})))
    ids = prompt(1, 16)
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match="layer 0 has a sliding window"),
        sl.compress(model, sl.Compression(keep=4, skip=())),
    ):
        model(ids[:, :14], use_cache=True)
    if name == "mistral":
        return
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=4, skip=(0,))) as cut:
        cache = model(ids[:, :14], use_cache=True).past_key_values
        logits = model(ids[:, 14:], past_key_values=cache, use_cache=True).logits
    assert cut.lengths == [4, 6]  # the window holds one less than its size
    window = torch.ones(16, 16, dtype=torch.bool).triu(-4).expand(1, 2, 16, 16)
    wanted = hidden_forward(model, ids, {1: seen_later(cut.kept, 14, 16)[1], 0: window})
    torch.testing.assert_close(logits, wanted[:, 14:], rtol=1e-4, atol=1e-4)


def test_a_run_without_a_cache_is_reported() -> None:
    model = llama()
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match="ran without a cache"),
        sl.compress(model, sl.Compression(keep=3)),
    ):
        model(prompt(1, 8), use_cache=False)
    with sl.compress(model, sl.Compression(keep=3)) as cut:
        pass
    assert cut.lengths == [] and cut.bytes == 0 and cut.kept == []


def test_a_cut_cache_does_not_leave_its_context() -> None:
    model, ids = llama(), prompt(1, 12)
    settings = sl.Compression(keep=3, skip=())
    with torch.no_grad(), sl.compress(model, settings):
        cache = model(ids[:, :10], use_cache=True).past_key_values
    with torch.no_grad(), pytest.raises(UsageError, match="go on inside the context"):
        model(ids[:, 10:11], past_key_values=cache, use_cache=True)
    with torch.no_grad(), sl.compress(model, settings) as cut:
        logits = model(ids[:, 10:], past_key_values=cache, use_cache=True).logits
    wanted = hidden_forward(model, ids, seen_later(cut.kept, 10, 12))
    torch.testing.assert_close(logits, wanted[:, 10:], rtol=1e-9, atol=1e-9)
    with sl.compress(model, settings), pytest.raises(UsageError, match="cannot be cropped"):
        cache.layers[0].crop(-1)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=30, skip=())):
        whole = model(ids[:, :10], use_cache=True).past_key_values
    with torch.no_grad():  # nothing was evicted: it is a cache like any other
        model(ids[:, 10:], past_key_values=whole, use_cache=True)


def test_a_cache_filled_elsewhere_is_cut_after_the_next_forward() -> None:
    model, ids = llama(), prompt(2, 14)
    for order in ("received", "expected", "fastgen"):
        with torch.no_grad():
            cache = model(ids[:, :10], use_cache=True).past_key_values
        with (
            torch.no_grad(),
            pytest.raises(UsageError, match="holds 10 entries from elsewhere"),
            sl.compress(model, sl.Compression(keep=4, skip=(), order=order), tokenizer=Tokenizer()),
        ):
            model(ids[:, 10:11], past_key_values=cache, use_cache=True)
    with torch.no_grad():
        cache = model(ids[:, :10], use_cache=True).past_key_values
        with sl.compress(model, sl.Compression(keep=4, skip=())) as cut:
            model(ids[:, 10:12], past_key_values=cache, use_cache=True)
            assert cut.lengths == [4, 4, 4]
            logits = model(ids[:, 12:], past_key_values=cache, use_cache=True).logits
    wanted = hidden_forward(model, ids, seen_later(cut.kept, 12, 14))
    torch.testing.assert_close(logits, wanted[:, 12:], rtol=1e-9, atol=1e-9)


def test_masks_and_biases_that_do_not_fit() -> None:
    model, ids = llama(), prompt(1, 9)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=3, skip=())):
        cache = model(ids[:, :8], use_cache=True).past_key_values
        with pytest.raises(UsageError, match="covers 4 positions, but 9 tokens have come by"):
            model(
                ids[:, 8:],
                attention_mask=torch.ones(1, 1, 1, 4, dtype=torch.bool),
                past_key_values=cache,
                use_cache=True,
            )
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=3, skip=())):
        attention = model.model.layers[0].self_attn
        with pytest.raises(UsageError, match="takes position_bias, a bias by the place of a key"):
            attention(
                hidden_states=torch.zeros(1, 2, 32, dtype=torch.float64),
                past_key_values=DynamicCache(),
                position_bias=torch.zeros(1),
            )
        model(ids, use_cache=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"labels": prompt(1, 9)}, "takes neither labels"),
        ({"logits_to_keep": torch.tensor([1])}, "nor logits_to_keep as indices"),
        ({"attention_mask": torch.tensor([[1] * 8 + [0]])}, "pad rows on the left"),
    ],
)
def test_strict_refuses_what_it_cannot_split(more: dict[str, Any], words: str) -> None:
    model = llama()
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match=words),
        sl.compress(model, sl.Compression(keep=3, skip=(), strict=True)),
    ):
        model(prompt(1, 9), use_cache=True, **more)


class Tokenizer:
    all_special_ids = (0, 63)

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 0, ".": 5, ",": 6, "...": 7, "Ġ.": 8, "\\": 9, "a": 10, "</s>": 63, "added": 70}


def test_fastgen_marks_special_tokens_and_single_punctuation() -> None:
    marked = marked_ids(Tokenizer())
    assert marked.nonzero().squeeze(1).tolist() == [0, 5, 6, 9, 63]
    assert marked.numel() == 71


def test_fastgen_keeps_marked_entries_then_recent_ones() -> None:
    model = llama()
    ids = torch.tensor([[0, 20, 21, 5, 22, 23, 6, 24, 25, 26, 27]])
    with (
        torch.no_grad(),
        sl.compress(model, sl.Compression(keep=5, skip=(), order="fastgen"), tokenizer=Tokenizer()) as cut,
    ):
        model(ids, use_cache=True)
        assert cut.kept[1].tolist() == [[[0, 3, 6, 9, 10]] * 2]
        with pytest.raises(UsageError, match="reads token ids"):
            model(inputs_embeds=torch.zeros(1, 4, 32, dtype=torch.float64), use_cache=True)


def test_a_model_without_rope_needs_no_turn() -> None:
    model = causal(hf.GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=None))
    ids = prompt(1, 14)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=6, skip=(), order="expected")) as cut:
        cache = model(ids[:, :13], use_cache=True).past_key_values
        logits = model(ids[:, 13:], past_key_values=cache, use_cache=True).logits
    wanted = hidden_forward(model, ids, seen_later(cut.kept, 13, 14))
    torch.testing.assert_close(logits, wanted[:, 13:], rtol=1e-4, atol=1e-4)


def test_a_native_model_keeps_no_such_cache() -> None:
    model = sl.load("tiny-llada")
    with pytest.raises(UsageError, match="is none: it keeps no cache"), sl.compress(model, sl.Compression(keep=3)):
        pass


def test_tiny_llama_end_to_end() -> None:
    """The embedded model: nothing changes where all is kept, and less is held where it is not."""
    model = sl.load("tiny-llama")
    text = "Ada has 3 apples. Ben gives her 4 more apples. How many apples does Ada have now?"
    sampler = sl.AutoregressiveSampler(length=8)
    free = sl.generate(model, text, sampler)
    with sl.compress(model, sl.Compression(keep=200)) as cut:
        assert torch.equal(sl.generate(model, text, sampler).ids, free.ids)
    length, whole = cut.lengths[0], cut.bytes
    for order, strict in (("low", False), ("fastgen", True), ("received", False), ("expected", True)):
        with sl.compress(model, sl.Compression(keep=10, order=order, strict=strict)) as cut:
            out = sl.generate(model, text, sampler)
        held = 10 + out.steps - 1
        assert cut.lengths == [out.prompt_length + out.steps - 1] * 2 + [held] * (model.spec.layers - 2)
    assert cut.bytes < whole
    assert length == free.prompt_length + free.steps - 1
