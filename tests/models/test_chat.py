"""Tokenizers and chat formats, on small byte-level tokenizers written in the published layouts."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from sinklens.errors import ModelError, UsageError
from sinklens.models.load import load

HEADERS = ("<|startoftext|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>")
LETTERS = 'abcdefghijklmnopqrstuvwxyzYH.?!"{}0123456789'
HELLO = [{"role": "user", "content": "hi there"}]
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "  hi  "},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "bye {role}"},
]


def vocabulary() -> dict[str, int]:
    """Letters, blank and newline as byte-level BPE spells them: about half of the 128 ids."""
    return {letter: i for i, letter in enumerate((*LETTERS, "Ġ", "Ċ"))}


def write_fast(folder: Path, specials: tuple[str, ...]) -> None:
    tokenizer = Tokenizer(BPE(vocab=vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    start = specials[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, tokenizer.token_to_id(start))]
    )  # which chat must not let in a second time
    tokenizer.save(str(folder / "tokenizer.json"))
    declared = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**declared, "pad_token": "<|endoftext|>"}))


def write_qwen2(folder: Path) -> None:
    """vocab.json, merges.txt and added tokens under the custom class name, as Dream has them."""
    words = vocabulary()
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    added = {
        str(len(words) + i): {"content": token, "special": True, "lstrip": False, "rstrip": False,
                              "normalized": False, "single_word": False}
        for i, token in enumerate(CHATML)
    }  # fmt: skip
    declared = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


def text_of(model, messages) -> str:
    ids = model.chat(messages)
    assert ids.dim() == 1
    return model.tokenizer.decode(ids)


@pytest.mark.parametrize(("family", "gap"), [("llada", "\n\n"), ("mmada", "\n")])
def test_headers(copied, family: str, gap: str) -> None:
    folder = copied(family)
    write_fast(folder, HEADERS)
    model = load(folder)

    def turn(role: str, content: str = "") -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>{gap}{content}"

    end = "<|eot_id|>"
    assert text_of(model, HELLO) == "<|startoftext|>" + turn("user", "hi there") + end + turn("assistant")
    assert text_of(model, TALK) == (
        "<|startoftext|>"
        + turn("system", "be brief")
        + end
        + turn("user", "hi")  # stripped
        + end
        + turn("assistant", "hello")
        + end
        + turn("user", "bye {role}")
        + end
        + turn("assistant")
    )
    start = model.tokenizer.get_vocab()["<|startoftext|>"]
    assert model.chat(TALK).tolist().count(start) == 1
    assert model.spec.eot_id == model.tokenizer.get_vocab()[end]


def test_a_config_may_name_the_end_of_turn(copied) -> None:
    folder = copied("llada", eot_token_id=126)
    write_fast(folder, HEADERS)
    assert load(folder).spec.eot_id == 126


def test_dream_speaks_chatml(copied) -> None:
    folder = copied("dream")
    write_qwen2(folder)
    model = load(folder)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert text_of(model, HELLO) == (system + "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n")
    assert text_of(model, TALK) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n  hi  <|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nbye {role}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    words = model.tokenizer.get_vocab()
    assert (model.spec.bos_id, model.spec.eot_id) == (words["<|beginoftext|>"], words["<|im_end|>"])
    assert model.chat(HELLO)[0] == words["<|im_start|>"]


def test_dream_with_a_tokenizer_file(copied) -> None:
    folder = copied("dream")
    write_fast(folder, CHATML)
    assert text_of(load(folder), HELLO).endswith("user\nhi there<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_without_tokenizer_files(golden: Path, family: str) -> None:
    model = load(golden / family)
    assert model.tokenizer is None
    with pytest.raises(ModelError, match="came without tokenizer files, so it cannot chat"):
        model.chat(HELLO)


def test_marks_must_be_tokens(copied) -> None:
    folder = copied("llada")
    write_fast(folder, HEADERS[:-1])
    with pytest.raises(ModelError, match=r"has no token <\|eot_id\|>, which its chat format needs"):
        load(folder).chat(HELLO)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no messages; expected at least one"),
        ([{"role": "user"}], r"message .* expected a mapping with 'role' and 'content'"),
        (["hi"], r"message 'hi'; expected a mapping"),
        ([{"role": "tool", "content": "x"}], r"one of the roles system, user, assistant"),
        ([{"role": "user", "content": None}], "expected a text content"),
    ],
)
def test_messages_that_cannot_be(copied, messages, message: str) -> None:
    folder = copied("llada")
    write_fast(folder, HEADERS)
    model = load(folder)
    with pytest.raises(UsageError, match=message):
        model.chat_format.render(messages)
    assert model.chat_format.render(HELLO)


def test_broken_tokenizer_file(copied) -> None:
    folder = copied("llada")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"the tokenizer files in .* cannot be read"):
        load(folder)
