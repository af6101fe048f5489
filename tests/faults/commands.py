"""The commands that write folders, each with a small honest job, how it goes on, and what of its folder counts."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sinklens.locks import LOCK
from sinklens.selection.folder import save_selector
from sinklens.selection.recipe import read_selection_recipe
from sinklens.selection.training import build_selector
from training.small import make_data, small_recipe

PROMPTS = (
    "Question: Mia has 12 apples. She finds 5 more apples. How many apples does Mia have now?\nAnswer:",
    "The pass key is 4711. Remember it.",
    "Once upon a time",
)
GRID = """
models = ["tiny-llama"]
tasks = ["word_problems"]
interventions = ["none", "sinks:top=1", "random:top=1"]
seeds = [0]
problems = 4
answering = { length = 8 }
"""
PATIENCE = 120.0  # seconds
KILLS = int(os.environ.get("SINKLENS_KILLS", "3"))
# Of JSON documents: dates, seconds, and what names the folder itself.
VOLATILE = frozenset(
    {
        "created",
        "finished",
        "resumed",
        "written",
        "command",
        "to",
        "timings",
        "seconds",
        "tokens_per_second",
        "images_per_second",
    }
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its job, the folder aside."""

    name: str
    arguments: Callable[[Path], list[object]]  # from the folder of what it reads
    said: str = ""  # where the name says more than the command does
    resume: str | None = None  # an option, given where the file `begun` is there; None: the same command again
    begun: str = ""
    shares: bool = False  # its folder with others: what a killed one left is removed by the next that writes alone

    def line(self, inputs: Path, to: Path) -> list[object]:
        """What somebody types who sees the folder as it is."""
        again = [self.resume] if self.resume is not None and (to / self.begun).exists() else []
        return [*(self.said or self.name).split(), *self.arguments(inputs), "--to", to, *again]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A run that nothing disturbed."""

    contents: dict[str, Any]
    seconds: float  # all of it
    idle: float  # until its folder had something in it
    events: int
    bytes: int  # on a disk of pages


def _trace(inputs: Path) -> list[object]:
    texts = [part for text in PROMPTS for part in ("--prompt", text)]
    return ["tiny-llada", *texts, "--length", 12, "--steps", 8, "--block", 6, "--device", "cpu"]


def _mask(inputs: Path) -> list[object]:
    cells = ["--top", "0,1", "--draws", 1, "--rows-only"]
    return ["tiny-llama", *cells, "--problems", 4, "--batch", 2, "--length", 8, "--device", "cpu"]


def _evaluate(inputs: Path) -> list[object]:
    sizes = ["--problems", 6, "--batch", 2, "--length", 12, "--steps", 4]
    return ["tiny-dream", "--mask", "none", "--mask", "random:top=1", *sizes, "--device", "cpu"]


def _compress(inputs: Path) -> list[object]:
    cells = ["--keep", "50%", "--order", "low,random", "--draws", 1]
    return ["tiny-llama", *cells, "--lengths", "64", "--problems", 4, "--batch", 2, "--device", "cpu"]


def _sweep(inputs: Path) -> list[object]:
    return [inputs / "grid.toml", "--device", "cpu"]


def _sweep_job(inputs: Path) -> list[object]:
    return [*_sweep(inputs), "--job", 2]


def _train(inputs: Path) -> list[object]:
    return [inputs / "small.toml", "--data", inputs / "data", "--problems", 2, "--device", "cpu"]


def _select_train(inputs: Path) -> list[object]:
    short = {"steps": 12, "save_every": 3, "batch": 16, "warmup": 2}
    changes = [part for key, value in short.items() for part in ("--set", f"schedule.{key}={value}")]
    return ["digits", "--data", "digits", "--images", 64, *changes, "--device", "cpu"]


def _select_evaluate(inputs: Path) -> list[object]:
    cells = ["--alphas", "0.3,0.7", "--snr", "0", "--baselines", "random", "--no-speed"]
    return [inputs / "selector", "--data", "digits", "--images", 24, "--batch", 8, *cells, "--device", "cpu"]


COMMANDS = {
    command.name: command
    for command in (
        Command(name="trace", arguments=_trace, resume="--resume", begun="manifest.json"),
        Command(name="mask", arguments=_mask),
        Command(name="evaluate", arguments=_evaluate),
        Command(name="compress", arguments=_compress),
        Command(name="sweep", arguments=_sweep),
        Command(name="sweep job", said="sweep", arguments=_sweep_job, shares=True),
        Command(name="train", arguments=_train, resume="--resume", begun="training.json"),
        Command(name="select train", arguments=_select_train, resume="--resume", begun="training.json"),
        Command(name="select evaluate", arguments=_select_evaluate),
    )
}


def every(*quick: str, but: Sequence[str] = ()) -> list[Any]:
    """All commands `but` some, those that are not `quick` only in `make test-faults`."""
    skipped = pytest.mark.skipif(KILLS <= 3, reason="run by `make test-faults`")
    return [pytest.param(name, marks=() if name in quick else skipped) for name in COMMANDS if name not in but]


def write_inputs(folder: Path) -> Path:
    """What the commands read: a grid, a recipe, the text and tokenizer that it trains on, and a selector."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.toml").write_text(GRID)
    make_data(folder / "data")
    schedule = {"steps": 4, "warmup": 1, "segment": 2, "rewarm": 1, "measure_every": 2}
    values = small_recipe("llama", schedule=schedule).as_dict()
    lines = [f'{key} = "{values[key]}"' for key in ("name", "family")]
    for part in ("shape", "data", "optimizer", "schedule"):
        lines.append(f"[{part}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values[part].items() if key != "tasks"]
    lines += ["[data.tasks]", "word_problems = 1.0"]
    (folder / "small.toml").write_text("\n".join(lines))
    save_selector(build_selector(read_selection_recipe("digits")), folder / "selector")
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a result by its name, what was left unfinished too: bytes, or the JSON of a document without dates
    and seconds. Timings are left out, as is the lock."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name == LOCK or re.search(r"(^|/)timings?(/|\.)", name):
            continue
        found[name] = _plain(path, folder)
    return found


def _plain(path: Path, folder: Path) -> Any:
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text("utf-8").replace(str(folder), "FOLDER")))
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in VOLATILE}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def differing(one: dict[str, Any], other: dict[str, Any]) -> Sequence[str]:
    """The names of files that only one of them has, or that differ."""
    return sorted(
        name for name in one.keys() | other.keys() if name not in one or name not in other or one[name] != other[name]
    )
