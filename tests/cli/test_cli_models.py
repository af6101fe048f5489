"""`sinklens models`: the catalog, and what a checkpoint says without its weights."""

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from sinklens.cli.models import _size
from sinklens.models.catalog import EMBEDDED, KNOWN, ZOO


def test_the_catalog(sinklens) -> None:
    done = sinklens("models", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["name"]: row for row in json.loads(done.stdout)["models"]}
    assert set(KNOWN) <= set(rows)
    assert rows["dream-v0-instruct-7b"] == {
        "name": "dream-v0-instruct-7b",
        "hub_id": "Dream-org/Dream-v0-Instruct-7B",
        "family": "dream",
        "parameters": 7_615_616_512,
        "bf16_gigabytes": 15.2,
        "context": 2048,
        "sampler": "DreamSampler",
    }
    for name in EMBEDDED:
        with safe_open(ZOO / name / "model.safetensors", framework="pt") as file:
            parameters = sum(file.get_tensor(tensor).numel() for tensor in file.keys())  # noqa: SIM118 (no mapping)
        size = {"parameters": parameters, "bf16_gigabytes": 0.013, "context": 512}
        assert rows[name].items() >= size.items()
    text = sinklens("models").stdout
    assert all(row["hub_id"] in text for row in rows.values() if row["hub_id"])


def test_one_checkpoint(sinklens, llada: Path) -> None:
    done = sinklens("models", llada, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["sampler"] == "LLaDASampler" and found["tokenizer"] is None
    assert found["weights"] == {"parameters": 167_360, "bytes": 669_440, "dtypes": ["F32"]}
    expected = {"family": "llada", "layers": 3, "heads": 4, "kv_heads": 4, "mask_id": 125, "eos_id": 121}
    assert expected.items() <= found["spec"].items()
    text = sinklens("models", llada).stdout
    assert "parameters         167,360" in text and "mask id            125" in text


def test_shards_count_as_one_model(sinklens, llada: Path) -> None:
    whole, sharded = (
        json.loads(sinklens("models", folder, "--json").stdout)["weights"]
        for folder in (llada, llada.parent / "llada_sharded")
    )
    assert whole == sharded


def test_a_transformers_model(sinklens, tiny_llama: Path) -> None:
    done = sinklens("models", tiny_llama, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["spec"]["family"], found["spec"]["causal"]) == ("llama", True)
    assert found["sampler"] == "AutoregressiveSampler" and found["tokenizer"] is not None
    assert found["weights"]["dtypes"] == ["F32"]


def test_a_config_without_weights_is_described_all_the_same(sinklens, dream: Path, tmp_path: Path) -> None:
    shutil.copy(dream / "config.json", tmp_path / "config.json")
    done = sinklens("models", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["weights"] is None and found["spec"]["shift"] is True
    assert "weights            none" in sinklens("models", tmp_path).stdout


def test_a_model_in_the_hub_cache_is_read_there(process, llada: Path, tmp_path: Path, monkeypatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--someone--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    (cached / "snapshots" / commit).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(llada / name, cached / "snapshots" / commit / name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    done = process("models", "someone/tiny", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"] == f"someone/tiny@{commit}"
    assert found["weights"]["parameters"] == 167_360
    (cached / "snapshots" / commit / "model.safetensors").unlink()
    without = process("models", "someone/tiny")
    assert without.returncode == 1
    assert "the headers of someone/tiny's weights cannot be read from the hub" in without.stderr


def test_what_cannot_be_described(process, tmp_path: Path) -> None:
    unknown = process("models", "tiny-lada", "--json")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "unknown model 'tiny-lada'; expected a checkpoint folder, a hub id" in unknown.stderr
    offline = process("models", "nobody/nothing")
    assert offline.returncode == 1
    assert offline.stderr == (
        "error: nobody/nothing is no folder here, not in the local cache, and the hub cannot be reached "
        "(HF_HUB_OFFLINE is set); check the network, or give a folder\n"
    )
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoModel": "a.B"}}')
    custom = process("models", tmp_path)
    assert custom.returncode == 1
    assert "names code of its own (auto_map), which is not run to describe a model" in custom.stderr


def test_damaged_weights_are_an_error_and_pickles_are_named(sinklens, llada: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llada, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    done = sinklens("models", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be read as safetensors" in done.stderr and "truncated: download it again" in done.stderr
    weights.rename(folder / "pytorch_model.bin")
    shown = sinklens("models", folder).stdout
    assert "weights            pytorch_model.bin (pickle, not loaded)" in shown
    assert "parameters" not in shown  # they are not known, which is not none
    found = json.loads(sinklens("models", folder, "--json").stdout)
    assert (found["weights"], found["pickles"]) == (None, ["pytorch_model.bin"])


def test_sizes_are_in_units_that_can_be_read(sinklens, llada: Path) -> None:
    assert "weights            0.669 MB in F32" in sinklens("models", llada).stdout
    assert [_size(count) for count in (40, 99_999, 100_000, 53_000_000, 16_031_162_368)] == [
        "0.04 kB",
        "100 kB",
        "0.1 MB",
        "53 MB",
        "16 GB",
    ]


def test_a_name_that_is_none_is_misuse(sinklens) -> None:
    for name, message in (
        ("./none", "no folder ./none"),
        ("a/b/c", "no folder a/b/c"),
        ("", "the model name is empty"),
    ):
        done = sinklens("models", name)
        assert done.returncode == 2 and done.stderr.startswith(f"error: {message}")
        assert sinklens("generate", name, "--prompt-ids", "1").stderr == done.stderr
