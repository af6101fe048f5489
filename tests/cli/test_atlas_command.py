"""`sinklens atlas`: from a command line to a figure and a page, for both kinds of model, and on where it stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinklens.evaluation import denoising_norms, key_norms

CAUSAL = ("atlas", "tiny-llama", "--problems", 2, "--chunk", 48, "--draws", 1, "--device", "cpu")
DIFFUSION = ("atlas", "tiny-dream", "--problems", 2, "--length", 12, "--steps", 12, "--device", "cpu")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(CAUSAL, tmp_path_factory.mktemp("atlas") / "causal")


@pytest.fixture(scope="module")
def diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(DIFFUSION, tmp_path_factory.mktemp("atlas") / "diffusion")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure takes seconds, and is looked at elsewhere."""
    for name in ("atlas.draw_atlas", "key_norms.draw_key_norms"):
        monkeypatch.setattr(f"sinklens.report.{name}", lambda _, to, *, name: [to / f"{name}.png", to / f"{name}.svg"])


def made(arguments: tuple[Any, ...], folder: Path) -> Path:
    from sinklens.cli import main

    with pytest.raises(SystemExit) as end:
        main([str(part) for part in (*arguments, "--to", folder)])
    assert end.value.code in (None, 0)
    return folder


def test_a_causal_model_gets_a_figure_a_page_and_tables(causal: Path) -> None:
    document = json.loads((causal / "result.json").read_text("utf-8"))
    assert (document["causal"], document["units"], document["decides"]["tokens"]) == (True, 2, 48)
    assert len(document["heads"]) == 32 and len(document["findings"]) == 10
    page = (causal / "atlas.md").read_text("utf-8")
    assert page.startswith("# Atlas of tiny-llama\n")
    assert "**2 units only: intervals are too narrow.**" in page and "the text that comes with sinklens" in page
    for one in document["findings"]:
        assert one["claim"] in page and one["says"] in page
    assert page.count("\n| 7 | ") == 1  # the last layer
    assert (causal / "atlas.png").stat().st_size > 50_000 and (causal / "atlas.svg").exists()
    assert sorted(path.name for path in (causal / "heads").iterdir()) == ["000000.parquet", "000001.parquet"]


def test_a_diffusion_model_too(diffusion: Path) -> None:
    document = json.loads((diffusion / "result.json").read_text("utf-8"))
    assert (document["causal"], document["units"]) == (False, 2)
    assert {one["kind"] for one in document["kinds"]} == {"prompt", "committed", "masked", "all"}
    page = (diffusion / "atlas.md").read_text("utf-8")
    assert "2 prompts from word_problems, split test; 12 tokens generated behind each, greedy, 12 steps." in page
    assert page.count("\n| masked | key | ") == 1
    assert (diffusion / "atlas.png").stat().st_size > 50_000


@pytest.mark.usefixtures("undrawn")
def test_a_rerun_measures_nothing_and_one_with_more_only_what_is_new(
    sinklens: Run, causal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    look = key_norms.look
    monkeypatch.setattr(key_norms, "look", lambda model, ids: looked.append(len(ids)) or look(model, ids))
    again = sinklens(*CAUSAL, "--to", causal, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert looked == []
    assert found["to"] == str(causal) and found["units"] == 2
    more = sinklens(*CAUSAL[:3], 3, *CAUSAL[4:], "--to", causal)
    assert more.returncode == 0, more.stderr
    assert looked == [48]
    assert "low key norms go with high attention of the next query" in more.stdout and "written: " in more.stdout
    few = json.loads(sinklens(*CAUSAL, "--to", causal, "--json").stdout)
    assert few["heads"] == found["heads"]  # of the first two, as before


@pytest.mark.usefixtures("undrawn")
def test_ctrl_c_keeps_what_is_finished(
    sinklens: Run, tmp_path: Path, diffusion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = denoising_norms.measure_run

    def once(*arguments: Any, unit: int, **settings: Any) -> Any:
        if unit == 1:
            raise KeyboardInterrupt
        return measure(*arguments, unit=unit, **settings)

    monkeypatch.setattr(denoising_norms, "measure_run", once)
    stopped = sinklens(*DIFFUSION, "--to", tmp_path / "b")
    assert stopped.returncode == 130
    assert "interrupted: finished units are in" in stopped.stderr and "goes on" in stopped.stderr
    monkeypatch.setattr(denoising_norms, "measure_run", measure)
    assert sinklens(*DIFFUSION, "--to", tmp_path / "b").returncode == 0
    theirs, ours = (json.loads((folder / "result.json").read_text()) for folder in (diffusion, tmp_path / "b"))
    assert {**theirs, "told": None} == {**ours, "told": None}


@pytest.mark.usefixtures("undrawn")
def test_prompts_may_come_from_a_text(sinklens: Run, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("The cat sat on the mat, and the dog looked at it from the door. " * 20)
    done = sinklens(
        "atlas", "tiny-llada", "--text", "words.txt", "--problems", 1, "--chunk", 16, "--length", 8, "--json",
        "--device", "cpu", "--to", "c",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["told"]["source"].startswith("words.txt (sha256 ")
    assert document["kinds"][0]["mean"]["low"] is None  # one prompt: no interval
    assert all(one["holds"] is None for one in document["findings"])
    assert "**One unit: no interval, and nothing is decided.**" in (tmp_path / "c" / "atlas.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("tiny-llama", "--steps", 4),
            "--steps generates with a diffusion model, but the family of tiny-llama is 'llama'",
        ),
        (("tiny-dream", "--peak-dims", 4, "--draws", 1), "--peak-dims, --draws edits the cache of a causal model"),
        (("tiny-dream", "--chunk", 32), "--chunk 32 cuts prompts from a text; give one with --text"),
        (("tiny-dream", "--block", 4), "block=4 is for LLaDA and MMaDA"),
        (("tiny-llama", "--prompts", 5000), "chunks of 255 tokens; 5000 are asked for: give more text"),
        (("tiny-llama", "--text", "nowhere.txt"), "nowhere.txt cannot be read as a text"),
        (("tiny-llama", "--seed", -1), "--seed -1; expected 0 or more"),
        (("tiny-lama",), "tiny-lama"),
    ],
)
def test_what_cannot_be_meant_is_refused(sinklens: Run, arguments: tuple[Any, ...], message: str) -> None:
    done = sinklens("atlas", *arguments, "--device", "cpu")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not Path("runs").exists()


def test_a_folder_of_something_else_is_left_alone(sinklens: Run, causal: Path, tmp_path: Path) -> None:
    other = sinklens(*DIFFUSION, "--to", causal)
    assert other.returncode == 2
    assert "holds another atlas" in other.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("mine")
    used = sinklens(*CAUSAL, "--to", tmp_path / "mine")
    assert used.returncode == 2
    assert "is not empty and holds no atlas (notes.md); give a new or an empty folder" in used.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.md"]
