"""`sinklens select`: from images to a model, from there to rows, tables, maps and a page; and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sinklens.cli import main
from sinklens.evaluation import selection_run
from sinklens.evaluation.selection_store import SelectionStore
from sinklens.selection.folder import load_selector

Run = Callable[..., Any]
RECIPE = """
name = "small"

[shape]
image = 16
patch = 4
width = 16
blocks = 3
heads = 2
classes = 2

[schedule]
steps = 4
batch = 8
warmup = 1
save_every = 2
"""
SMALL = ("--images", 6, "--alphas", "0.2,0.6", "--device", "cpu")


def write_images(folder: Path) -> None:
    """Two classes: bright above, bright below."""
    draws = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 8)), ("below", slice(8, 16))):
        (folder / name).mkdir(parents=True)
        for number in range(30):
            pixels = draws.integers(0, 120, (16, 16)).astype(np.uint8)
            pixels[rows] += 100
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def run_here(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert not end.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/, small.toml, and what they were trained to: model/, fixed/ and ranked/."""
    folder = tmp_path_factory.mktemp("select")
    write_images(folder / "images")
    (folder / "small.toml").write_text(RECIPE)
    trained = ("select", "train", folder / "small.toml", "--data", folder / "images", "--device", "cpu")
    run_here(*trained, "--to", folder / "model")
    run_here(*trained, "--set", "alpha=0.6", "--to", folder / "fixed")
    run_here(*trained, "--set", "ranking=norm", "--to", folder / "ranked")
    return folder


def test_training_leaves_a_model_that_says_what_it_was_trained_on(made: Path, sinklens: Run) -> None:
    assert load_selector(made / "model").backbone.classes == 2
    about = json.loads((made / "model" / "data.json").read_text())
    named = {"data": str(made / "images"), "source": str(made / "images")}
    assert about == {**named, "redraw": False, "classes": ["above", "below"]}
    again = (
        "select",
        "train",
        made / "small.toml",
        "--data",
        made / "images",
        "--to",
        made / "model",
        "--device",
        "cpu",
    )
    refused = sinklens(*again)
    assert refused.returncode == 2
    assert "holds a run that reached step 4" in refused.stderr
    resumed = sinklens(*again, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    document = json.loads(resumed.stdout)
    assert [entry["step"] for entry in document["log"]] == [2, 4]
    assert document["recipe"]["schedule"]["steps"] == 4


def test_evaluate_writes_rows_a_result_figures_and_a_table(
    made: Path, sinklens: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (
        "select", "evaluate", made / "model", *SMALL, "--snr", "-10,0", "--erasure", "0,0.5", "--baselines", "norm",
        "--fixed", made / "fixed", "--trained", made / "ranked", "--to", tmp_path / "a",
    )  # fmt: skip
    done = sinklens(*asked)
    assert done.returncode == 0, done.stderr
    assert "Gaussian noise, SNR -10 dB" in done.stdout and "one model a budget (fixed)" in done.stdout
    assert "norm, trained so (ranked)" in done.stdout
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    links = {(cell["channel"], cell["level"]) for cell in result["cells"]}
    assert links == {("wire", None), ("awgn", -10.0), ("awgn", 0.0), ("erasure", 0.5)}
    assert {cell["alpha"] for cell in result["cells"]} == {0.2, 0.6, 1.0}
    assert result["images"] == 6
    assert {one["batch"] for one in result["speed"]} == {1, 64}
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"rows", "speed", "table.md", "figure_accuracy.png"}
    batches = SelectionStore(tmp_path / "a").batches()
    monkeypatch.setattr("sinklens.report.selection.FIGURES", {})
    again = sinklens(*asked, "--json")
    assert json.loads(again.stdout) == {"to": str(tmp_path / "a"), "result": result}
    assert SelectionStore(tmp_path / "a").batches() == batches


def test_an_interrupted_evaluation_says_how_to_go_on(
    made: Path, sinklens: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("select", "evaluate", made / "model", *SMALL, "--baselines", "none", "--no-speed", "--to", tmp_path / "a")
    inner = selection_run._rows

    def stop(experiment: Any, spot: Any, method: Any, **rest: Any) -> Any:
        if spot.alpha == 0.6:
            raise KeyboardInterrupt
        return inner(experiment, spot, method, **rest)

    monkeypatch.setattr("sinklens.report.selection.FIGURES", {})
    with monkeypatch.context() as patch:
        patch.setattr(selection_run, "_rows", stop)
        stopped = sinklens(*asked)
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert f"finished batches in {tmp_path / 'a'}: 1; the same command with --to" in stopped.stderr
    assert SelectionStore(tmp_path / "a").batches() == 1
    again = sinklens(*asked)
    assert again.returncode == 0 and f"batches that were in {tmp_path / 'a'} already: 1;" in again.stderr
    assert SelectionStore(tmp_path / "a").batches() == 3


def test_show_draws_maps_and_a_page(made: Path, sinklens: Run, tmp_path: Path) -> None:
    done = sinklens("select", "show", made / "model", "--images", 2, "--alphas", ".2,1", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["to"] == "runs/select-show-1"
    assert len(document["maps"]) == 2 and all((tmp_path / path).is_file() for path in document["maps"])
    page = (tmp_path / document["page"]).read_text("utf-8")
    assert '"classes":["above","below"]' in page and '"alphas":[0.0,0.05,' in page


def test_show_says_how_far_it_is(made: Path, sinklens: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.cli.live.PATIENCE", 0.0)
    done = sinklens("select", "show", made / "model", "--images", 2, "--alphas", "1", "--device", "cpu")
    assert done.returncode == 0 and "token map 1/2" in done.stderr


def test_show_takes_files(made: Path, sinklens: Run, tmp_path: Path) -> None:
    file = made / "images" / "above" / "3.png"
    done = sinklens("select", "show", made / "model", "--image", file, "--to", tmp_path / "a", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"map-0-3.png", "page.html"}
    Image.new("RGB", (40, 20), (250, 10, 10)).save(tmp_path / "wide.png")
    fitted = ("select", "show", made / "model", "--image", tmp_path / "wide.png", "--to", tmp_path / "b")
    assert sinklens(*fitted, "--fit", "--device", "cpu").returncode == 0


def test_show_takes_the_examples_that_a_model_brings_along(made: Path, sinklens: Run, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(made / "model", model)
    shutil.copyfile(made / "images" / "below" / "3.png", model / "example-0.png")
    about = json.loads((model / "data.json").read_text())
    (model / "data.json").write_text(json.dumps(about | {"data": "gone", "examples": {"example-0.png": 1}}))
    done = sinklens("select", "show", model, "--to", tmp_path / "a", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"map-0-example-0.png", "page.html"}
    assert '"labels":[1]' in (tmp_path / "a" / "page.html").read_text("utf-8")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """Files that are refused."""
    Image.new("L", (20, 20)).save(tmp_path / "large.png")
    Image.new("RGBA", (16, 16)).save(tmp_path / "clear.png")
    (tmp_path / "corrupt.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (16, 16)).save(tmp_path / "pets" / name / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "MODEL", "--alphas", "1.5"), "alpha is 1.5; expected a share of tokens from 0 to 1"),
        (("evaluate", "MODEL", "--alphas", "nan"), "--alphas 'nan' is no list of finite numbers"),
        (("evaluate", "MODEL", "--snr", "nan"), "--snr 'nan' is no list of finite numbers"),
        (("evaluate", "MODEL", "--erasure", "2"), "erasure probability is 2.0; expected a number from 0 to 1"),
        (("evaluate", "MODEL", "--fading", "5"), "--fading with a model that has no codec"),
        (("evaluate", "MODEL", "--baselines", "nearest"), "unknown baseline 'nearest'; expected one of 'random'"),
        (("evaluate", "MODEL", "--baselines", ","), "names nothing; give at least one, or none"),
        (("evaluate", "MODEL", "--fixed", "MODEL"), "was trained for every budget; expected one trained with"),
        (("evaluate", "MODEL", "--trained", "MODEL"), "has gates; expected a model trained with --set ranking=random"),
        (("evaluate", "nowhere"), "no folder 'nowhere'; expected the folder of a trained selector"),
        (("evaluate", "MODEL", "--data", "empty"), "has no PNG or JPEG image"),
        (
            ("evaluate", "MODEL", "--data", "pets"),
            "was trained on above, below, the images are of cat, dog; give images of its classes",
        ),
        (("evaluate", "MODEL", "--data", "nothing"), "there are no images 'nothing'"),
        (("evaluate", "MODEL", "--data-revision", "v1"), "revision 'v1' is for sets of the hub; "),
        (("show", "MODEL", "--data-revision", "v1"), "revision 'v1' is for sets of the hub; "),
        (("evaluate", "MODEL", "--device", "toaster"), "--device toaster: "),
        (("show", "MODEL", "--to", "large.png"), "large.png is a file; give a folder"),
        (("show", "MODEL", "--image", "large.png"), "has 20 x 20 pixels; expected 16 x 16"),
        (("show", "MODEL", "--image", "clear.png"), "has the mode RGBA, with transparency; expected 1 channel"),
        (("show", "MODEL", "--image", "corrupt.png"), "corrupt.png is "),
        (("show", "MODEL", "--image", "missing.png"), "there is no file missing.png"),
        (("show", "MODEL", "--alphas", "-0.1"), "--alphas is -0.1; expected a share of tokens from 0 to 1"),
        (("train", "nothing"), "no recipe 'nothing'; expected a TOML file or one of"),
        (("train", "RECIPE", "--set", "schedule.stepz=1", "--data", "DATA"), "has no setting stepz"),
    ],
)
def test_refusals_say_what_is_accepted(
    made: Path, wrong: Path, sinklens: Run, arguments: tuple[str, ...], message: str
) -> None:
    names = {"MODEL": made / "model", "RECIPE": made / "small.toml", "DATA": made / "images"}
    refused = sinklens("select", *(names.get(one, one) for one in arguments))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: ") and message in refused.stderr
    assert not (wrong / "runs").exists()


def test_help_names_the_three_commands(sinklens: Run) -> None:
    shown = sinklens("select", "--help").stdout
    assert all(f" {name} " in shown for name in ("train", "evaluate", "show"))
    assert "{" not in sinklens("select", "show", "--help").stdout
