"""A word-level tokenizer for the golden LLaDA, which comes without one."""

import shutil
from pathlib import Path

WORDS = 128
MARKS = ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def write_tokenizer(folder: Path) -> None:
    """Words w0, w1, ... as ids 0, 1, ...; from 98 on LLaDA's roles and chat marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {f"w{number}": number for number in range(WORDS)}
    spoken = {"user": 98, "assistant": 99} | {mark: 100 + number for number, mark in enumerate(MARKS)}
    for name, number in spoken.items():
        del vocabulary[f"w{number}"]
        vocabulary[name] = number
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))


def make_talking_llada(golden: Path, folder: Path) -> Path:
    """The golden LLaDA with a tokenizer."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden / "llada" / name, folder / name)
    write_tokenizer(folder)
    return folder
