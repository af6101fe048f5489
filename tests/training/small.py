"""A training set-up small enough for a test: a tokenizer, some text, a recipe of two layers."""

from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from sinklens.models.catalog import ZOO
from sinklens.tasks import task
from sinklens.training.checkpoint import TOKENIZER_FILES
from sinklens.training.recipe import Recipe, recipe_of
from sinklens.training.rows import HELD_OUT, TEXT, write_tokens

TOKENIZER = ZOO / "tiny-llama"


def small_recipe(family: str, **changes: object) -> Recipe:
    """Two layers of width 32, twelve steps in segments of four."""
    values = {
        "name": f"small-{family}",
        "family": family,
        "shape": {"layers": 2, "width": 32, "heads": 2, "mlp_width": 48},
        "data": {"context": 224, "text_rows": 4, "task_context": 160, "task_rows": 4, "pool": 20},
        "optimizer": {"lr": 3e-3},
        "schedule": {"steps": 12, "warmup": 2, "segment": 4, "rewarm": 2, "measure_every": 6},
    }
    return recipe_of({**values, **changes}, source="test")


def make_data(folder: Path) -> Path:
    """The folder of a corpus, made of problems in place of natural text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for file, split in ((TEXT, "train"), (HELD_OUT, "templates")):
        texts = [item.prompt + item.answer for item in islice(task("word_problems").items(split), 60)]
        ids = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]
        write_tokens(folder / file, np.array(ids, dtype=np.uint16))
    return folder
