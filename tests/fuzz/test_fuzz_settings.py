"""Hostile settings: grids of sweeps, recipes of training and selection, and changes to them from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.damage import damaged, mutated, texts, values
from fuzz.held import fuzzed, held, held_command
from sinklens.errors import UsageError
from sinklens.evaluation.conditions import parse_condition
from sinklens.selection.recipe import read_selection_recipe
from sinklens.sweeps.grid import read_grid
from sinklens.training.recipe import read_recipe

GRID = {
    "models": ["tiny-llama", {"name": "some/model", "dtype": "bfloat16", "revision": "main"}],
    "tasks": ["word_problems", {"task": "gsm8k", "data": "test.jsonl", "length": 256, "shots": 2}],
    "interventions": ["none", "sinks:top=5", {"choose": "random", "top": 5, "act": "zero", "draw": 1}],
    "seeds": [0, 1],
    "problems": 64,
    "answering": {"length": 64, "steps": 32, "block": 8, "batch": 4, "threshold": 0.9, "stop_at_eos": True},
}
RECIPE = {
    "name": "tiny",
    "family": "llada",
    "seed": 1,
    "start": "runs/x",
    "anneal": 0.1,
    "shape": {"layers": 2, "width": 16, "heads": 2, "rope_theta": 1e4},
    "data": {"context": 64, "text_rows": 2, "task_weight": 5.0, "tasks": {"word_problems": 0.8, "small_programs": 0.2}},
    "optimizer": {"name": "muon", "lr": 1e-3, "clip": 1.0},
    "schedule": {"steps": 60, "warmup": 10, "decay_from": 0.5, "final": 0.1, "segment": 20, "rewarm": 2},
}
SELECTION = {
    "name": "digits",
    "seed": 1,
    "alpha": 0.5,
    "codec_rate": 0.5,
    "precision": "float32",
    "shape": {"image": 8, "patch": 2, "width": 32, "blocks": 3, "heads": 2, "mlp": 64, "classes": 10},
    "gating": {"split": 3, "gated": [1, 2], "mode": "hard", "budgets": 1},
    "budget": {"kind": "squared", "bins": 4, "margin": 0.1},
    "optimizer": {"lr": 3e-3, "train_backbone": True},
    "schedule": {"steps": 300, "batch": 64, "warmup": 30, "plain": 10, "full_share": 0.1, "save_every": 100},
    "noise": {"snr_low": 0.0, "snr_high": 10.0, "erasure": 0.1},
}


def toml(value: Any, *, inside: bool = False) -> str:
    """A value as TOML writes it; null has no spelling there, and is left out."""
    if isinstance(value, dict):
        entries = [(key, entry) for key, entry in value.items() if entry is not None]
        pairs = [f"{json.dumps(key)} = {toml(entry, inside=True)}" for key, entry in entries]
        return "{ " + ", ".join(pairs) + " }" if inside else "\n".join(pairs)
    if isinstance(value, list):
        return "[" + ", ".join(toml(entry, inside=True) for entry in value if entry is not None) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)  # nan, inf and 1e+308 are TOML too
    return json.dumps(value)


def hostile_toml(document: Any) -> st.SearchStrategy[bytes]:
    """Mostly well-formed with wrong content, sometimes damaged, sometimes nested for ever."""
    well = mutated(document).map(lambda changed: toml(changed).encode("utf-8", "surrogatepass"))
    deep = st.sampled_from(
        (b"x = " + b"[" * 50_000, b"[" + b"a." * 50_000 + b"a]", b"x = " + b"{a=" * 50_000, b"", b"\xff")
    )
    return st.one_of(well, well, well, damaged(toml(document).encode()), deep)


def grid(**changes: Any) -> bytes:
    return toml(GRID | changes).encode()


@example(content=b"x = " + b"[" * 50_000)  # RecursionError of the parser
@example(content=grid(answering={"threshold": 10**400}))  # no float
@example(content=grid(models=[{"name": "a\x00b"}]))
@example(content=grid(tasks=[{"task": [[]]}]))  # no list is a key of a table
@given(content=hostile_toml(GRID))
@fuzzed(80)
def test_grids(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(content)

    def read() -> None:
        _, jobs = read_grid(path)
        json.dumps([job.as_dict() for job in jobs], allow_nan=False)
        assert all(job.fingerprint and str(job) for job in jobs)

    held(read, source=tmp_path, out=tmp_path / "out")


@given(content=hostile_toml(GRID))
@fuzzed(25)
def test_grids_listed_on_the_command_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(content)
    held_command("sweep", str(path), "--list", "--to", str(tmp_path / "out"), out=tmp_path / "out")


def recipe(**changes: Any) -> bytes:
    return toml(RECIPE | changes).encode()


@example(content=b"x = " + b"[" * 50_000)
@example(content=recipe(name=5, start=7))
@example(content=recipe(schedule={"steps": 1, "decay_from": float("nan")}))
@given(content=hostile_toml(RECIPE))
@fuzzed(70)
def test_recipes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)

    def read() -> None:
        wanted = read_recipe(path)
        assert wanted.fingerprint and wanted.tokens > 0
        wanted.shape.transformer(wanted.family)
        for step in (0, wanted.schedule.steps - 1):
            assert wanted.schedule.rate(step) >= 0

    held(read, source=tmp_path, out=tmp_path / "out")


@given(content=hostile_toml(SELECTION))
@fuzzed(60)
def test_selection_recipes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)

    def read() -> None:
        wanted = read_selection_recipe(path)
        assert wanted.fingerprint
        wanted.gating.placed(wanted.shape.blocks)
        for step in (0, wanted.schedule.steps - 1):
            assert wanted.schedule.rate(step) >= 0

    held(read, source=tmp_path, out=tmp_path / "out")


KEYS = ("seed", "schedule.steps", "schedule", "shape.width", "name", "a.b.c.d", "", ".", "seed.x", "data.tasks.x")


@example(change="schedule.steps=" + "[" * 50_000)
@example(change="seed=1\nname = 2")
@given(change=st.builds("{}={}".format, st.sampled_from(KEYS) | texts(), values().map(toml) | texts()) | texts())
@fuzzed(60)
def test_changes_of_a_recipe(change: str) -> None:
    held(lambda: read_recipe("tiny-llama", (change,)).fingerprint)


@given(name=texts())
@fuzzed(30)
def test_names_of_recipes(name: str) -> None:
    held(lambda: read_recipe(name))


CONDITIONS = ("sinks:top=5", "random:top=2,draw=1", "sinks:epsilon=3,keys=cached,act=zero", "none")


@given(text=texts() | st.builds("{}{}{}".format, st.sampled_from(CONDITIONS), st.sampled_from(",:= \0"), texts()))
@fuzzed(40)
def test_conditions(text: str) -> None:
    held(lambda: str(parse_condition(text)))


def test_the_examples_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for content, read, words in (
        (b"x = " + b"[" * 50_000, read_grid, "cannot be read as TOML .*nested too deeply"),
        (b"x = " + b"[" * 50_000, read_recipe, "is no TOML .*nested too deeply"),
        (grid(answering={"threshold": 10**400}), read_grid, "a whole number of 1329 bits; expected at most 64"),
        (recipe(name=5), read_recipe, "name is 5; expected a text"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read(path)
