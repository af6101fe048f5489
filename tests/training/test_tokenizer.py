"""The tokenizer: exactly 4096 entries, lossless, the same each time, and loadable by transformers without a network."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sinklens.errors import UsageError
from sinklens.training.tokenizer import SPECIAL_TOKENS, VOCABULARY_SIZE, save_tokenizer, train_tokenizer


def texts() -> list[str]:
    """Made-up words with skewed frequencies: enough different pairs for all merges."""
    generator = random.Random(0)
    syllables = [first + second for first in "bcdfghklmnprstvwz" for second in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(6000)]
    return [" ".join(generator.choices(words, k=400)) + ". It's 2026!\n    x = 10\n" for _ in range(200)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(iter(texts()))


def test_size_and_special_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE == 4096
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert max(map(len, tokenizer.get_vocab())) <= 16


@limits(deadline=None, max_examples=300)
@given(text=st.text(max_size=80))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assume(not any(token in text for token in SPECIAL_TOKENS))  # these are read as what they stand for
    encoded = tokenizer.encode(text)
    assert encoded.ids[0] == 0
    assert tokenizer.decode(encoded.ids) == text


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("in 20265 and 7.25x", add_special_tokens=False).tokens
    assert [token for token in tokens if any(mark.isdigit() for mark in token)] == list("20265725")


def test_no_space_is_put_in_front(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("ba", add_special_tokens=False).tokens[0][0] == "b"


def test_special_tokens_are_found_in_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a<|mask|>b<|endoftext|>", add_special_tokens=False).ids[1::2] == [2, 1]


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(iter(texts())).to_str() == tokenizer.to_str()


def test_too_little_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gave \d+ entries, 4096 are needed; train on more text"):
        train_tokenizer(["too short"])


def test_transformers_loads_the_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path / "new")
    settings = json.loads((tmp_path / "new" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["clean_up_tokenization_spaces"] is False  # the default of older releases is true, and loses spaces
    loaded = AutoTokenizer.from_pretrained(tmp_path / "new", local_files_only=True)
    assert len(loaded) == 4096
    assert [loaded.bos_token_id, loaded.eos_token_id, loaded.mask_token_id, loaded.pad_token_id] == [0, 1, 2, 3]
    assert loaded.model_max_length == 1024
    text = "It 's 12 , isn't it ?\n\n    naïve 日本"  # spaces that a clean-up would remove
    ids = loaded(text)["input_ids"]
    assert ids == tokenizer.encode(text).ids
    assert loaded.decode(ids, skip_special_tokens=True) == text
