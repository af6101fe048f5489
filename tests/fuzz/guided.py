"""Hostile bytes, guided by coverage: `python tests/fuzz/guided.py NAME RUNS`, with atheris. `make test-fuzz` runs all.

Where hypothesis changes what a document says, atheris changes its bytes, and keeps what reaches a new line of sinklens.
Every case has to hold as in held.py; one that does not ends the run with its bytes in the current folder (crash-*).
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["sinklens"]):
    from sinklens.models import fields, load, weights
    from sinklens.sampling import prompt_list
    from sinklens.selection import recipe as selection_recipe
    from sinklens.sweeps import grid
    from sinklens.traces import read
    from sinklens.training import recipe

from fuzz import held, sound, test_fuzz_settings

# Name to the file that is written, what a sound one holds, and who reads it.
TARGETS: dict[str, tuple[str, Callable[[dict[str, Path]], bytes], Callable[[Path], Any]]] = {
    "config": ("config.json", lambda made: (made["llada"] / "config.json").read_bytes(), load.load),
    "weights": (
        weights.SINGLE,
        lambda made: (made["llada"] / weights.SINGLE).read_bytes(),
        weights.find_tensors,
    ),
    "index": (
        weights.INDEX,
        lambda made: b'{"weight_map": {"a": "model.safetensors"}}',
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


def main(name: str, runs: int) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="sinklens-fuzz-"))
    made = sound.make_models(scratch)
    made["trace"] = sound.make_traces(scratch / "traces")["full"]
    file, first, use = TARGETS[name]
    folder = sound.fresh(made["trace" if name == "manifest" else "llada"], scratch / "in" / "case")
    corpus = scratch / "corpus"
    corpus.mkdir()
    (corpus / "sound").write_bytes(first(made))

    def once(data: bytes) -> None:
        (folder / file).write_bytes(data)
        held.held(lambda: use(folder), source=folder, out=scratch / "out")

    print(f"guided: {name}, {runs} cases", flush=True)
    options = [f"-runs={runs}", "-max_len=20000", "-timeout=0", "-rss_limit_mb=0", "-verbosity=0", str(corpus)]
    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
