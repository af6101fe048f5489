"""`sinklens models`: the catalog, and what a checkpoint says without its weights."""

import json
import shutil
from pathlib import Path

from sinklens.models.catalog import KNOWN


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
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "unknown model 'tiny-lada'; expected a checkpoint folder, a hub id" in unknown.stderr
    offline = process("models", "nobody/nothing")
    assert offline.returncode == 1
    assert "nobody/nothing is no folder here and its config cannot be downloaded" in offline.stderr
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoModel": "a.B"}}')
    custom = process("models", tmp_path)
    assert custom.returncode == 1
    assert "names code of its own (auto_map), which is not run to describe a model" in custom.stderr
