"""From a corpus to what training reads."""

from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from sinklens.tasks import task
from sinklens.training.corpus import write_documents
from sinklens.training.extract import Document
from sinklens.training.prepare import PASSKEY_EVERY, encode, prepare, with_passkeys
from sinklens.training.rows import HELD_OUT, TEXT, read_tokens
from training.small import TOKENIZER

EOS = 1
TEXTS = [f"Document {number}: the quick brown fox is {number} years old." for number in range(15)]


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def test_documents_are_joined_by_eos() -> None:
    tokens = encode(tokenizer(), TEXTS)
    assert tokens.dtype == np.uint16
    ends = np.flatnonzero(tokens == EOS)
    starts = [0, *(ends[:-1] + 1)]
    assert [tokenizer().decode(tokens[a:b].tolist()) for a, b in zip(starts, ends, strict=True)] == TEXTS


def test_every_sixth_document_is_followed_by_a_pass_key() -> None:
    texts = list(with_passkeys(TEXTS, "train"))
    problems = list(islice(task("passkey").items("train", words=(20, 300)), 2))
    assert [text for text in texts if text in TEXTS] == TEXTS
    assert [(texts.index(item.prompt + item.answer) + 1) % (PASSKEY_EVERY + 1) for item in problems] == [0, 0]


def test_a_folder_that_has_its_corpus_and_tokenizer_is_only_encoded(tmp_path: Path) -> None:
    for name, texts in (("train", TEXTS), ("held_out", TEXTS[:3])):
        documents = [Document(text=text, kind="prose", source="x", path="y") for text in texts]
        write_documents(tmp_path / f"{name}.jsonl.xz", documents)
    (tmp_path / "card.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    prepare(tmp_path, tmp_path / "nothing is fetched")
    np.testing.assert_array_equal(read_tokens(tmp_path / TEXT), encode(tokenizer(), with_passkeys(TEXTS, "train")))
    np.testing.assert_array_equal(read_tokens(tmp_path / HELD_OUT), encode(tokenizer(), TEXTS[:3]))
