"""A folder that is no trace, where a trace is wanted: what it is, and which command reads it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sinklens as sl
from sinklens.cli import folders
from sinklens.cli.demo_folder import claim_folder
from sinklens.evaluation import atlas, store
from sinklens.evaluation.store import Store
from sinklens.report import card_plan
from sinklens.sweeps.folder import SweepFolder
from sinklens.sweeps.grid import jobs_of
from sinklens.traces import manifest

READERS = [("sinks",), ("figures",), ("explore",)]
SAMPLER = sl.LLaDASampler(steps=2, length=4, block=4)


def sweep(folder: Path) -> None:
    grid = {"models": ["tiny-llama"], "tasks": ["word_problems"], "problems": 2}
    SweepFolder(path=folder).claim(grid, jobs_of(grid))


def experiment(command: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with Store(folder).claimed({"fingerprint": "f", "problems": 1, "command": command}):
            pass

    return make


def written(name: str, document: dict[str, object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / name).write_text(json.dumps(document))

    return make


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "demo": (
        lambda folder: claim_folder(folder, traces=(), marker={}),
        "the folder of `sinklens demo`; it has no trace yet",
    ),
    "card": (
        written(card_plan.PLAN, {"card": card_plan.FORMAT}),
        "the card of a model (`sinklens card`): card.html shows it; its trace is d/trace: give that folder",
    ),
    "sweep": (
        sweep,
        "a sweep, which holds results and no attention; `sinklens sweep GRID --to d --list` reads it",
    ),
    "mask": (
        experiment("sinklens mask tiny-llama"),
        "an experiment of `sinklens mask`, which holds results and no attention; `sinklens mask` with the same "
        "settings and --to d reads it and reports",
    ),
    "evaluate": (experiment("sinklens --debug evaluate tiny-llama"), "an experiment of `sinklens evaluate`, which"),
    "compress": (experiment("sinklens compress tiny-llama"), "an experiment of `sinklens compress`, which"),
    "text": (written(store.EXPERIMENT, {"text": "a hash"}), "an experiment on text, which holds results"),
    "checkpoint": (
        written("config.json", {"model_type": "llama"}),
        "the checkpoint of a model; `sinklens trace d` makes a trace of what it generates",
    ),
    "sinks": (written("sinks.json", {"traces": []}), "what `sinklens sinks --to` wrote of a trace; give that trace"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_another_folder_of_ours_is_named(sinklens, kind: str, tmp_path: Path) -> None:
    make, message = FOLDERS[kind]
    make(tmp_path / "d")
    for command in READERS:
        done = sinklens(*command, "d")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: d is no trace but {message}"), done.stderr


@pytest.mark.parametrize("name", ["demo.json", "plan.json", "sweep.json", "experiment.json", "config.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"format": "other"}'])
def test_a_file_of_the_same_name_tells_nothing(sinklens, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_text(text)
    done = sinklens("sinks", "d")
    assert done.returncode == 1 and "d is not a trace: it has no manifest.json" in done.stderr


def test_the_traces_in_a_folder_are_named(sinklens, llada: Path, tmp_path: Path) -> None:
    assert folders.MANIFEST == manifest.MANIFEST
    assert folders.MARKS == {"atlas": atlas.PLAN, "card": card_plan.PLAN, "experiment": store.EXPERIMENT}
    model = sl.load(llada)
    for name in ("a", "b"):
        sl.trace(model, [[1, 2]], SAMPLER, to=tmp_path / "d" / name)
    done = sinklens("sinks", "d")
    assert done.returncode == 2 and "d is no trace but a folder with traces in it; give one: d/a, d/b\n" in done.stderr
    claim_folder(tmp_path / "demo", traces=(), marker={})
    (tmp_path / "d").rename(tmp_path / "demo" / "traces")
    done = sinklens("explore", "demo")
    assert "the folder of `sinklens demo`; its traces are: demo/traces/a, demo/traces/b\n" in done.stderr


def test_nothing_else_is_written_into_a_trace(sinklens, llada: Path, tmp_path: Path) -> None:
    sl.trace(sl.load(llada), [[1, 2]], SAMPLER, to=tmp_path / "my trace")
    before = sorted(tmp_path.rglob("*"))
    for command in ("figures", "sinks"):
        done = sinklens(command, "my trace", "--to", "my trace")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--to my trace is the folder of a trace, which holds nothing else; choose another one" in done.stderr
        assert f"such as --to 'my trace-{command}', or leave --to out" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mask", "--length", 0), "--length"),
        (("mask", "--problems", 0), "--problems"),
        (("mask", "--batch", 0), "--batch"),
        (("evaluate", "--length", 0), "--length"),
        (("evaluate", "--steps", 0), "--steps"),
        (("evaluate", "--problems", 0), "--problems"),
        (("card", "--block", 0), "--block"),
        (("compress", "--stride", 0), "--stride"),
        (("compress", "--lengths", "0"), "lengths are (0,)"),
        (("compress", "--wording", "loud"), "unknown wording 'loud'"),
        (("trace", "--prompt", "a", "--length", 0), "--length"),
        (("trace", "--prompt", "a", "--every", 0), "--every"),
        (("trace", "--prompt", "a", "--detail", "most"), "unknown detail 'most'"),
        (("trace", "--prompt", "a", "--to", "new", "--resume"), "there is nothing to resume in new"),
        (("trace", "--prompt", "a", "--to", "mine"), "mine is not empty and holds no trace (thesis.tex)"),
        (("evaluate", "--task", "gsm8k"), "gsm8k reads its problems from a file and was given none"),
        (("mask", "--task", "gsm8k", "--data", "new"), "data of gsm8k is new, which is not there"),
        (("mask", "--to", "mine"), "mine is not empty and holds no experiment (thesis.tex)"),
        (("evaluate", "--to", "mine"), "mine is not empty and holds no experiment (thesis.tex)"),
        (("compress", "--to", "mine"), "mine is not empty and holds no experiment (thesis.tex)"),
        (("card", "--to", "mine"), "mine is not empty and holds no card (thesis.tex)"),
        (("atlas", "--to", "mine"), "mine is not empty and holds no atlas (thesis.tex)"),
    ],
)
def test_mistakes_are_told_before_weights_are_loaded(
    sinklens, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr("sinklens.models.load.load", loaded)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    command, *rest = arguments
    done = sinklens(command, "tiny-llama", *rest)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "thesis.tex"]
