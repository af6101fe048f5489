"""Training: what is kept follows alpha, a killed run ends with the same bits, recipes are read or refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_vit import transformers_model

from downloaded import SOURCE, as_download
from sinklens.errors import ModelError, UsageError
from sinklens.evaluation.selection_experiment import SelectionExperiment
from sinklens.locks import LOCK
from sinklens.selection.calibration import calibrate
from sinklens.selection.data import Images, load_images
from sinklens.selection.folder import load_selector
from sinklens.selection.recipe import RECIPES, Noise, SelectionRecipe, read_selection_recipe, selection_recipe_of
from sinklens.selection.selector import Gating, Selector
from sinklens.selection.training import build_selector, train
from sinklens.selection.vit import ViTShape

SMALL: dict[str, Any] = {
    "name": "small",
    "shape": {"image": 8, "patch": 2, "width": 16, "blocks": 3, "heads": 2},
    "gating": {"split": 2},
    "schedule": {"steps": 6, "batch": 8, "warmup": 2, "save_every": 2},
}


def recipe_of(**changes: Any) -> SelectionRecipe:
    return selection_recipe_of({**SMALL, **changes}, source="test")


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_images("digits", split="train", limit=100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Selector, Path]:
    to = tmp_path_factory.mktemp("runs") / "digits"
    recipe = read_selection_recipe("digits", ("schedule.steps=80", "schedule.save_every=40", "schedule.warmup=10"))
    images, held = load_images("digits", split="train"), load_images("digits", split="validation")
    return train(recipe, images, to=to, validation=held), to


def test_what_is_kept_follows_alpha(trained: tuple[Selector, Path]) -> None:
    selector, _ = trained
    test = load_images("digits", split="test")
    with torch.no_grad():
        found = {alpha: selector(test.images, alpha) for alpha in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)}
    shares = {alpha: float(selected.shares.mean()) for alpha, selected in found.items()}
    assert all(abs(share - alpha) < 0.1 for alpha, share in shares.items()), shares
    right = {alpha: float((one.logits.argmax(1) == test.labels).float().mean()) for alpha, one in found.items()}
    assert right[1.0] > 0.3 and right[0.5] > 0.3, right  # chance is 0.1; the run is short
    log = [json.loads(line) for line in (trained[1] / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == [40, 80]
    assert log[1]["task"] < log[0]["task"] and log[1]["budget"] < log[0]["budget"]


def test_the_folder_of_a_run_holds_the_selector(trained: tuple[Selector, Path], digits: Images) -> None:
    selector, to = trained
    names = sorted(path.name for path in to.iterdir())
    assert names == ["config.json", "log.jsonl", "model.safetensors", "training.json", LOCK]
    again = load_selector(to)
    assert again.calibration.shape[1] > 2 and torch.equal(again.calibration, selector.calibration)
    with torch.no_grad():
        assert torch.equal(again(digits.images[:9], 0.3).logits, selector(digits.images[:9], 0.3).logits)
    about = json.loads((to / "training.json").read_text())
    assert about["step"] == 80 and about["recipe"]["name"] == "digits"


def weights(selector: Selector) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in selector.state_dict().items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noise": {"snr_low": -5.0, "snr_high": 10.0, "erasure": 0.1}, "codec_rate": 0.5},
        {"ranking": "random", "precision": "tf32"},
    ],
)
def test_a_killed_run_ends_with_the_same_bits(changes: dict[str, Any], digits: Images, tmp_path: Path) -> None:
    recipe = recipe_of(**changes)
    whole = weights(train(recipe, digits, to=tmp_path / "whole"))

    def kill(step: int, entry: Any) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, digits, to=tmp_path / "killed", stepped=kill)
    with pytest.raises(UsageError, match="holds a run that reached step 4; ask to resume it"):
        train(recipe, digits, to=tmp_path / "killed")
    with pytest.raises(UsageError, match="was trained by another recipe; train this one into another folder"):
        train(replace(recipe, seed=1), digits, to=tmp_path / "killed", resume=True)
    steps: list[int] = []
    resumed = train(recipe, digits, to=tmp_path / "killed", resume=True, stepped=lambda step, _: steps.append(step))
    assert steps == [5, 6]
    for name, value in weights(resumed).items():
        assert torch.equal(value, whole[name]), name
    done = train(recipe, digits, to=tmp_path / "killed", resume=True)  # nothing left to do
    assert all(torch.equal(value, whole[name]) for name, value in weights(done).items())
    log = [json.loads(line)["step"] for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert log == [2, 4, 6]


def test_a_state_that_cannot_be_read(digits: Images, tmp_path: Path) -> None:
    def kill(step: int, entry: Any) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe_of(), digits, to=tmp_path, stepped=kill)
    state = (tmp_path / "state.safetensors").read_bytes()
    (tmp_path / "state.safetensors").write_bytes(state[:200])
    with pytest.raises(ModelError, match=r"state.safetensors cannot be read .*; remove its folder and train again"):
        train(recipe_of(), digits, to=tmp_path, resume=True)


def changed(before: dict[str, torch.Tensor], selector: Selector) -> set[str]:
    return {name for name, value in selector.named_parameters() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("gating", [{"mode": "soft"}, {"budgets": 2, "gated": [0, 2]}])
def test_every_weight_learns(precision: str, gating: dict[str, Any], digits: Images, tmp_path: Path) -> None:
    recipe = recipe_of(precision=precision, gating=gating, codec_rate=0.5, noise={"snr_low": 0.0, "snr_high": 0.0})
    before = weights(build_selector(recipe))
    selector = train(recipe, digits, to=tmp_path)
    assert changed(before, selector) == {name for name, _ in selector.named_parameters()}


def test_a_frozen_backbone_and_plain_steps(digits: Images, tmp_path: Path) -> None:
    recipe = recipe_of(optimizer={"train_backbone": False})
    before = weights(build_selector(recipe))
    learnt = changed(before, train(recipe, digits, to=tmp_path / "frozen"))
    assert {"gates.0.score.weight", "budget.low", "backbone.cls", "backbone.classifier.weight"} <= learnt
    assert not any("blocks" in name or "positions" in name or "projection" in name for name in learnt)
    plain = recipe_of(schedule={**SMALL["schedule"], "plain": 6})
    learnt = changed(weights(build_selector(plain)), train(plain, digits, to=tmp_path / "plain"))
    assert learnt and all(name.startswith("backbone.") for name in learnt)


def test_a_fixed_budget_and_images_that_are_new_in_every_epoch(digits: Images, tmp_path: Path) -> None:
    asked: list[int] = []

    def data(epoch: int) -> Images:
        asked.append(epoch)
        return digits.take(slice(17 * epoch, 17 * epoch + 17))

    selector = train(recipe_of(alpha=0.3), data, to=tmp_path)
    assert asked == [0, 0, 1, 2]  # 6 steps, two batches of 8 an epoch; the first call asks how many there are
    assert selector.calibration.tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("ranking", ["random", "norm", "key_norm", "cls", "avit", "tome"])
def test_a_backbone_is_trained_with_a_ranking(ranking: str, digits: Images, tmp_path: Path) -> None:
    recipe = recipe_of(ranking=ranking)
    before = weights(build_selector(recipe))
    selector = train(recipe, digits, to=tmp_path)
    learnt = changed(before, selector)
    assert learnt == {name for name, _ in selector.named_parameters() if name.startswith("backbone.")}
    again = load_selector(tmp_path)
    assert again.ranking == ranking and torch.equal(again.calibration, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    with torch.no_grad():
        alphas = torch.tensor([0.1, 0.5, 0.9, 1.0])
        found = again(digits.images[:4], alphas)
        assert found.kept.sum(dim=2).tolist() == [[2, 8, 14, 16]] * 2  # of 16 patches, behind both gates
        assert found.sent.tolist() == [3, 9, 15, 17]  # and the class token
        wanted = [again(digits.images[i : i + 1], float(alpha)).logits[0] for i, alpha in enumerate(alphas)]
        if ranking != "random":  # which draws by the image's number
            torch.testing.assert_close(found.logits, torch.stack(wanted))


def test_random_patches_are_drawn_anew_in_every_step(digits: Images) -> None:
    selector = build_selector(recipe_of(ranking="random"))
    with torch.no_grad():
        kept = [
            selector(digits.images[:4], 0.5, generator=torch.Generator().manual_seed(seed)).kept for seed in (0, 0, 1)
        ]
    assert torch.equal(kept[0], kept[1]) and not torch.equal(kept[0], kept[2])
    with pytest.raises(UsageError, match="ranking 'norm' with budgets = 2; rankings take one budget"):
        Selector(selector.backbone, Gating(budgets=2), ranking="norm")


def test_a_transformers_backbone_is_trained_too(digits: Images, tmp_path: Path) -> None:
    model = transformers_model("vit")
    model.save_pretrained(tmp_path / "vit")
    images = torch.nn.functional.interpolate(digits.images, size=16)
    data = SimpleNamespace(images=(images * 255).to(torch.uint8), labels=digits.labels % 5)
    selector = train(recipe_of(start=str(tmp_path / "vit")), data, to=tmp_path / "run")
    again = load_selector(tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(again(images[:4], 0.5).logits, selector(images[:4], 0.5).logits)


def test_the_commit_of_a_backbone_of_the_hub(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken at the revision that is asked for, and the commit that came stays with the selector."""
    transformers_model("vit").save_pretrained(tmp_path / "vit")
    asked = as_download(monkeypatch, tmp_path / "vit", tmp_path)
    data = SimpleNamespace(images=torch.nn.functional.interpolate(digits.images, size=16), labels=digits.labels % 5)
    train(recipe_of(start="owner/name", revision="v1"), data, to=tmp_path / "run")
    assert asked() == ["v1"]
    backbone = json.loads((tmp_path / "run" / "config.json").read_text())["backbone"]
    again = load_selector(tmp_path / "run")
    assert backbone["source"] == again.backbone.source == SOURCE
    images = Images(images=data.images[:2], labels=data.labels[:2], classes=())
    told = SelectionExperiment(selector=again, name="x", images=images, spots=[]).document()
    assert told["backbone"] == SOURCE
    with pytest.raises(UsageError, match="revision is 'v1', and nothing to start from is named; give start too"):
        recipe_of(revision="v1")
    with pytest.raises(UsageError, match="revision 'v1' is for hub ids"):
        build_selector(recipe_of(start=str(tmp_path / "vit"), revision="v1"))


def test_calibration_meets_alpha(digits: Images) -> None:
    selector = Selector(build_selector(recipe_of()).backbone, Gating(gated=(1,), split=2), seed=4).eval()
    with torch.no_grad():
        selector.gates[0].score.weight.mul_(20.0)
        selector.gates[0].level.add_(1.0)  # still spends too much
        off = float(selector(digits.images, 0.5).shares.mean())
    calibrate(selector, digits)
    with torch.no_grad():
        met = float(selector(digits.images, 0.5).shares.mean())
    assert abs(off - 0.5) > 0.15 and abs(met - 0.5) < 0.02


def test_recipes_are_read_whole() -> None:
    for path in RECIPES.glob("*.toml"):
        recipe = read_selection_recipe(path.stem)
        assert recipe.name == path.stem and recipe == read_selection_recipe(path)
        assert selection_recipe_of(recipe.as_dict(), source="again") == recipe
        assert "start" not in recipe.as_dict()  # TOML has no word for what is not set
        Selector(build_selector(recipe).backbone, recipe.gating)
    changed_one = read_selection_recipe(
        "digits", ("seed=3", "gating.gated=[0, 1]", "noise.snr_low=-5", "noise.snr_high=5")
    )
    assert (changed_one.seed, changed_one.gating.gated) == (3, (0, 1)) and changed_one.noise == Noise(
        snr_low=-5.0, snr_high=5.0
    )
    assert changed_one.fingerprint != read_selection_recipe("digits").fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("schedule.stepz=3", "schedule has no setting stepz; expected some of steps, batch"),
        ("schedule.steps=many", "schedule: steps is 'many'; expected a whole number"),
        ("schedule.steps=0", "steps 0, batch 64, .*; expected whole numbers from 1"),
        ("gating.gated=3", "gating: gated is 3; expected a list of whole numbers"),
        ("optimizer.lr=true", "optimizer: lr is True; expected a number"),
        ("precision=half", "unknown precision 'half'; expected one of 'float32', 'tf32', 'bfloat16'"),
        ("ranking=best", "unknown ranking 'best'; expected one of 'random'"),
        ("gates.spread=0.0", "gates start with reach 4.0, opening 2.0, spread 0.0; expected finite numbers"),
        ("noise.snr_low=3", "noise of 3.0 to None dB; expected two finite ends"),
        ("noise.erasure=2", "erasure is 2.0; expected a probability from 0 to 1"),
        ("alpha=1.0", "alpha is 1.0; expected a share from 0, below 1"),
        ("seed", "setting 'seed'; expected KEY=VALUE"),
        ("seed.deep=1", "seed is a single value, not a part of a recipe"),
        ("schedule.full_share=1.0", "full_share is 1.0; expected a share of the batches from 0, below 1"),
    ],
)
def test_settings_that_cannot_be_meant(change: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_selection_recipe("digits", ("seed=0", change))


def test_recipes_and_images_that_are_not_there(tmp_path: Path, digits: Images) -> None:
    with pytest.raises(
        UsageError, match="no recipe 'digitz'; expected a TOML file or one of digits, tiny-vit-selection"
    ):
        read_selection_recipe("digitz")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(UsageError, match=r"bad.toml is no TOML"):
        read_selection_recipe(tmp_path / "bad.toml")
    with pytest.raises(UsageError, match="there are no images to train on; expected at least one"):
        train(recipe_of(), digits.take(slice(0, 0)), to=tmp_path / "run")
    with pytest.raises(UsageError, match=r"labels up to 9, the model 4 classes; set shape.classes"):
        train(recipe_of(shape={**SMALL["shape"], "classes": 4}), digits, to=tmp_path / "run")


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = read_selection_recipe("digits").schedule
    rates = [schedule.rate(step) for step in range(schedule.steps)]
    top = rates.index(max(rates))
    assert schedule.warmup - 1 <= top <= schedule.warmup and max(rates) == pytest.approx(1.0)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(schedule.final, abs=1e-3)
    assert ViTShape() == read_selection_recipe("tiny-vit-selection").shape


@pytest.mark.parametrize("there", [("log.jsonl",), ("state.safetensors",), ("log.jsonl", "notes.txt")])
def test_somebody_elses_files_are_left_alone(digits: Images, tmp_path: Path, there: tuple[str, ...]) -> None:
    for name in there:
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=rf"is not empty and holds no training run \({there[0]}"):
        train(recipe_of(), digits, to=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(there, "mine")
