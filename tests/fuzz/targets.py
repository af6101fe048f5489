"""Who reads hostile bytes: for each name a file, what a sound one holds, and the function of sinklens that takes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import held, sound, test_fuzz_settings
from sinklens.models import fields, load, weights
from sinklens.sampling import prompt_list
from sinklens.selection import recipe as selection_recipe
from sinklens.sweeps import grid
from sinklens.traces import read
from sinklens.training import recipe


def _index(folder: Path) -> bytes:
    """All tensors, in the one file there is."""
    return json.dumps({"weight_map": dict.fromkeys(weights.find_tensors(folder), weights.SINGLE)}).encode()


TARGETS: dict[str, tuple[str, Callable[[dict[str, Path]], bytes], Callable[[Path], Any]]] = {
    "config": ("config.json", lambda made: (made["llada"] / "config.json").read_bytes(), load.load),
    "weights": (
        weights.SINGLE,
        lambda made: (made["llada"] / weights.SINGLE).read_bytes(),
        weights.find_tensors,
    ),
    "index": (
        weights.INDEX,
        lambda made: _index(made["llada"]),
        weights.find_tensors,
    ),
    "manifest": (
        "manifest.json",
        lambda made: (made["trace"] / "manifest.json").read_bytes(),
        read.open_trace,
    ),
    "grid": (
        "grid.toml",
        lambda made: test_fuzz_settings.toml(test_fuzz_settings.GRID).encode(),
        lambda at: grid.read_grid(at / "grid.toml"),
    ),
    "recipe": (
        "recipe.toml",
        lambda made: test_fuzz_settings.toml(test_fuzz_settings.RECIPE).encode(),
        lambda at: recipe.read_recipe(at / "recipe.toml"),
    ),
    "selection": (
        "recipe.toml",
        lambda made: test_fuzz_settings.toml(test_fuzz_settings.SELECTION).encode(),
        lambda at: selection_recipe.read_selection_recipe(at / "recipe.toml"),
    ),
    "prompts": (
        "prompts.jsonl",
        lambda made: b'{"prompt": "w1"}\n{"prompt_ids": [1, 2]}\n{"messages": [{"role": "user", "content": "x"}]}',
        lambda at: prompt_list.read_prompt_file(str(at / "prompts.jsonl")),
    ),
    "fields": ("x.json", lambda made: b'{"a": 1}', lambda at: fields.read_json(at / "x.json")),
}


def place(name: str, made: dict[str, Path], at: Path) -> Path:
    """A sound folder, whose file will be replaced."""
    return sound.fresh(made["trace" if name == "manifest" else "llada"], at)


def hold(name: str, data: bytes, folder: Path, *, out: Path) -> held.Held:
    """One case: the file holds these bytes, and is read."""
    file, _, use = TARGETS[name]
    (folder / file).write_bytes(data)
    return held.held(lambda: use(folder), source=folder, out=out)
