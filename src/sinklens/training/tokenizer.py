"""The tokenizer of the embedded models: byte-level BPE with 4096 entries.

Four special tokens take the ids 0 to 3, the 256 bytes follow, merges fill the rest. Every byte has an entry, so any
text can be written and read back unchanged. Each digit is a token of its own: numbers of equal length take equally
many tokens, and a column of digits keeps its place.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sinklens.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY_SIZE = 4096
MODEL_MAX_LENGTH = 1024
BOS, EOS, MASK, PAD = "<|startoftext|>", "<|endoftext|>", "<|mask|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, MASK, PAD)  # their ids are their places here


def untrained_tokenizer() -> "Tokenizer":
    """Digits one by one, then the words of GPT-2's pattern, then bytes; no normaliser and no space put in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str]) -> "Tokenizer":
    """Learn the merges from `texts`. The same texts in the same order give the same tokenizer, byte for byte.

    Too little text leaves fewer entries than a model with 4096 embeddings needs: that is a UsageError.
    """
    from tokenizers import pre_tokenizers, processors, trainers

    tokenizer = untrained_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=16,  # rulers of dashes and deep indentation would else take entries from words
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    size = tokenizer.get_vocab_size()
    if size != VOCABULARY_SIZE:
        raise UsageError(f"the texts gave {size} entries, {VOCABULARY_SIZE} are needed; train on more text")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B:1",
        special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))],
    )
    return tokenizer


def save_tokenizer(tokenizer: "Tokenizer", folder: Path) -> None:
    """Write the three files from which `transformers.AutoTokenizer.from_pretrained(folder)` loads it, offline."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": EOS, "mask_token": MASK, "pad_token": PAD}
    settings = {
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL_MAX_LENGTH,
    }
    for name, document in (("tokenizer_config.json", settings), ("special_tokens_map.json", named)):
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", "utf-8")
