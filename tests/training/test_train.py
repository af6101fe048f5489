"""A whole run on a CPU: it learns, repeats to the bit, and goes on from where it was killed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sinklens as sl
from sinklens.cli import main
from sinklens.errors import ModelError, UsageError
from sinklens.training.log import read_log
from sinklens.training.train import Effort, train
from training.small import make_data, small_recipe

EFFORT = Effort(problems=0, rows=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class KilledError(Exception):
    """Stands for whatever ends a process in the middle of a step."""


@pytest.mark.parametrize("family", ["llama", "llada", "dream"])
def test_a_killed_run_goes_on_to_the_same_bits(family: str, data: Path, tmp_path: Path) -> None:
    recipe = small_recipe(family)
    whole = train(recipe, data=data, to=tmp_path / "whole", effort=EFFORT)

    def die(step: int) -> None:
        if step == 7:
            raise KilledError

    with pytest.raises(KilledError):
        train(recipe, data=data, to=tmp_path / "killed", effort=EFFORT, stepped=die)
    assert [entry["step"] for entry in read_log(tmp_path / "killed")] == [4, 6]
    resumed = train(recipe, data=data, to=tmp_path / "killed", effort=EFFORT, resume=True)
    assert same(whole, resumed)
    assert [entry["step"] for entry in read_log(resumed)] == [4, 6, 8, 12]
    timeless = [
        [{key: value for key, value in entry.items() if key != "tokens_per_second"} for entry in read_log(folder)]
        for folder in (whole, resumed)
    ]
    assert timeless[0] == timeless[1]
    model = sl.load(resumed)
    assert model.spec.family == family
    other = train(small_recipe(family, seed=1), data=data, to=tmp_path / "other", effort=EFFORT)
    assert not same(whole, other)


def test_it_learns(data: Path, tmp_path: Path) -> None:
    schedule = {"steps": 60, "warmup": 5, "segment": 60, "measure_every": 20}
    folder = train(small_recipe("llama", schedule=schedule), data=data, to=tmp_path, effort=EFFORT)
    losses = [entry["task_loss"] for entry in read_log(folder)]
    assert losses[0] > losses[1] > losses[2]


def test_it_starts_from_another_model(data: Path, tmp_path: Path) -> None:
    llama = train(small_recipe("llama"), data=data, to=tmp_path / "llama", effort=EFFORT)
    schedule = {"steps": 1, "warmup": 1, "segment": 1, "measure_every": 1}
    recipe = small_recipe("dream", start=str(llama), anneal=0.5, schedule=schedule, optimizer={"lr": 1e-9})
    dream = train(recipe, data=data, to=tmp_path / "dream", effort=EFFORT)
    before, after = weights(llama), weights(dream)
    for name, value in before.items():  # but for a step of 1e-9
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-7)
    assert {name for name in after if name not in before} == {name for name in after if name.endswith(".bias")}


def test_a_used_folder_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    train(small_recipe("llama"), data=data, to=tmp_path, effort=EFFORT)
    with pytest.raises(UsageError, match=r"holds a run that reached step 12; add --resume"):
        train(small_recipe("llama"), data=data, to=tmp_path)
    with pytest.raises(UsageError, match="was trained by another recipe"):
        train(small_recipe("llama", seed=1), data=data, to=tmp_path, resume=True)


@pytest.mark.parametrize("there", [("log.jsonl",), ("log.jsonl", "notes.txt"), ("config.json", "model.safetensors")])
def test_somebody_elses_files_are_left_alone(data: Path, tmp_path: Path, there: tuple[str, ...]) -> None:
    """Also a model that was not trained here."""
    for name in there:
        (tmp_path / name).write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"is not empty and holds no training run \((log|config)"):
            train(small_recipe("llama"), data=data, to=tmp_path, resume=resume)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(there, "mine")


def test_a_model_of_somebody_else_beside_a_log_is_left_alone(data: Path, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="holds no training run"):
        train(small_recipe("llama"), data=data, to=tmp_path)
    assert (tmp_path / "log.jsonl").read_text() == "mine"


@pytest.mark.parametrize("step", ["many", None])
def test_weights_that_are_none_beside_a_log_are_left_alone(data: Path, tmp_path: Path, step: str | None) -> None:
    if step is None:
        (tmp_path / "model.safetensors").write_text("mine")
    else:
        save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"step": step})
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UsageError, match=r"holds no training run \(log.jsonl, model.safetensors\)"):
        train(small_recipe("llama"), data=data, to=tmp_path, resume=True)
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(ModelError, match=r"model.safetensors is damaged, or not of the run in training.json"):
        train(small_recipe("llama"), data=data, to=tmp_path, resume=True)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_what_a_run_says_of_itself_may_be_damaged(data: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(ModelError, match=r"training.json (cannot be read as JSON|holds a list)"):
        train(small_recipe("llama"), data=data, to=tmp_path, resume=True)


def test_a_run_of_another_kind_is_left_alone(data: Path, tmp_path: Path) -> None:
    """A selector's, which has a file of the same name."""
    (tmp_path / "training.json").write_text('{"step": 4, "fingerprint": "b"}')
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="holds a run of another kind or recipe"):
        train(small_recipe("llama"), data=data, to=tmp_path, resume=True)
    assert (tmp_path / "log.jsonl").read_text() == "mine"


def test_a_run_killed_in_its_first_checkpoint_is_begun_anew(data: Path, tmp_path: Path) -> None:
    whole = train(small_recipe("llama"), data=data, to=tmp_path / "whole", effort=EFFORT)
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("log.jsonl", "tokenizer.json", "config.json"):
        (killed / name).write_bytes((whole / name).read_bytes())

    def kill(step: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # once more, before anything is logged
        train(small_recipe("llama"), data=data, to=killed, effort=EFFORT, resume=True, stepped=kill)
    train(small_recipe("llama"), data=data, to=killed, effort=EFFORT, resume=True)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_what_a_kill_leaves_between_two_files_is_put_right(data: Path, tmp_path: Path) -> None:
    """Weights are written before the file that tells of them, and a line of the log may lack its end."""
    schedule = {"steps": 2, "warmup": 1, "segment": 1, "rewarm": 1, "measure_every": 1}
    recipe = small_recipe("llama", schedule=schedule)
    train(recipe, data=data, to=tmp_path, effort=EFFORT)
    state, log = (tmp_path / name for name in ("training.json", "log.jsonl"))
    whole = state.read_bytes(), log.read_bytes()
    state.write_text(json.dumps({**json.loads(whole[0]), "step": 1}))
    log.write_bytes(whole[1] + b'{"step": 3, "tok')
    train(recipe, data=data, to=tmp_path, effort=EFFORT, resume=True)
    assert (state.read_bytes(), log.read_bytes()) == whole


def test_the_command_trains_and_says_what_it_measured(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "small.toml"
    values = small_recipe("llada").as_dict()
    lines = [f'{key} = "{values[key]}"' for key in ("name", "family")]
    for part in ("shape", "data", "optimizer", "schedule"):
        lines.append(f"[{part}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values[part].items() if key != "tasks"]
    recipe.write_text("\n".join(lines))
    arguments = ["train", str(recipe), "--data", str(data), "--problems", "2", "--unsafe", "--device", "cpu"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--to", str(tmp_path / "run"), "--set", "schedule.steps=4", "--json"])
    assert not end.value.code
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["measured"][-1]["step"] == 4
    assert 0 <= document["measured"][-1]["sinks"]["sink_share"] <= 1
    assert document["measured"][-1]["word_problems"] in (0, 0.5, 1)
    assert "step 4" in shown.err
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--to", str(tmp_path / "run"), "--set", "schedule.steps=4"])
    assert end.value.code == 2
