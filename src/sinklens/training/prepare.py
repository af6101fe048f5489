"""From named packages to what training reads: a tokenizer, a stream of tokens, a held-out stream.

    python -m sinklens.training.prepare --to DIR

fetches the packages of sources.toml, builds the corpus (corpus.py), learns the tokenizer from a sample of it and of the
tasks, and writes the tokens of all documents, each followed by eos. One document in PASSKEY_EVERY is a pass-key
problem with its answer, so that the models have seen the kind.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt16

from sinklens.tasks import task
from sinklens.training.corpus import build, read_documents
from sinklens.training.rows import HELD_OUT, TEXT, write_tokens
from sinklens.training.sources import default_cache, read_sources
from sinklens.training.tokenizer import EOS, save_tokenizer, train_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PASSKEY_EVERY = 6
SAMPLE = 12_000_000  # characters of text that the tokenizer learns from, and as many again of tasks
TASK_SHARES = {"word_problems": 0.6, "small_programs": 0.35, "passkey": 0.05}
BATCH = 1000


def prepare(folder: Path, cache: Path, *, processes: int = 2) -> None:
    """Fill `folder`; what is there already is kept."""
    if not (folder / "card.json").is_file():
        build(read_sources(), cache, folder=folder, processes=processes)
    if not (folder / "tokenizer.json").is_file():
        save_tokenizer(train_tokenizer(_sample(folder)), folder)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, split, file in (("train", "train", TEXT), ("held_out", "test", HELD_OUT)):
        documents = (document.text for document in read_documents(folder / f"{name}.jsonl.xz"))
        write_tokens(folder / file, encode(tokenizer, with_passkeys(documents, split)))


def _sample(folder: Path) -> Iterator[str]:
    """Text from the front of the corpus, which is in the order of hashes, and problems of the training split."""
    yield from _up_to(SAMPLE, (document.text for document in read_documents(folder / "train.jsonl.xz")))
    for name, share in TASK_SHARES.items():
        yield from _up_to(int(SAMPLE * share), (item.prompt + item.answer for item in task(name).items("train")))


def _up_to(characters: int, texts: Iterable[str]) -> Iterator[str]:
    used = 0
    for text in texts:
        if used >= characters:
            return
        used += len(text)
        yield text


def with_passkeys(documents: Iterable[str], split: str) -> Iterator[str]:
    """The documents, every PASSKEY_EVERY-th place taken by a pass-key problem."""
    problems = task("passkey").items(split, words=(20, 300))
    for number, text in enumerate(documents):
        yield text
        if number % PASSKEY_EVERY == PASSKEY_EVERY - 1:
            item = next(problems)
            yield item.prompt + item.answer


def encode(tokenizer: "Tokenizer", documents: Iterable[str]) -> UInt16[np.ndarray, " token"]:
    """All documents one after the other, each followed by eos."""
    eos = tokenizer.token_to_id(EOS)
    parts = []
    texts = iter(documents)
    while some := list(islice(texts, BATCH)):
        for encoded in tokenizer.encode_batch(some, add_special_tokens=False):
            parts.append(np.array([*encoded.ids, eos], dtype=np.uint16))
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder for tokenizer and tokens")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for the downloaded packages")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    print(f"packages in {chosen.cache}, tokens in {chosen.to}: some minutes and 3 GB", file=sys.stderr)
    prepare(chosen.to, chosen.cache, processes=chosen.processes)
    print(chosen.to)


if __name__ == "__main__":
    main()
