"""Names, devices and dtypes: what `load` and the catalog accept and refuse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sinklens.errors import ModelError, UsageError
from sinklens.models.catalog import EMBEDDED, KNOWN, ZOO, locate
from sinklens.models.language_model import LanguageModel
from sinklens.models.load import load

SOURCE = Path(__file__).parent.parent.parent / "src"


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own: the hub's settings are read when it is imported."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("name", ["llada-8b", "../nowhere", "a/b/c", "owner/", "owner/..", "https://hub/a"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ModelError, match=r"unknown model .* expected a checkpoint folder, a hub id such as"):
        load(name)


def test_a_file_is_no_folder(golden: Path) -> None:
    with pytest.raises(ModelError, match=r"is a file; expected a checkpoint folder"):
        load(golden / "llada" / "model.safetensors")


def test_folders_have_no_revision(golden: Path) -> None:
    with pytest.raises(ModelError, match="revision='v1' is for hub ids"):
        load(golden / "llada", revision="v1")


def test_folders_as_text_and_as_path(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden.parent)
    assert load("golden/dream").spec.source == "golden/dream"
    model = load(golden / "dream")
    assert isinstance(model, LanguageModel) and not model.training


@pytest.mark.parametrize("dtype", ["float32", torch.float32, "torch.float32"])
def test_dtypes(golden: Path, dtype: str | torch.dtype) -> None:
    assert load(golden / "llada", dtype=dtype)(torch.tensor([[1]])).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float", "int8", torch.int8])
def test_dtypes_that_cannot_be(golden: Path, dtype: str | torch.dtype) -> None:
    with pytest.raises(UsageError, match="expected one of float64, float32, float16, bfloat16, or None"):
        load(golden / "llada", dtype=dtype)


def test_devices(golden: Path) -> None:
    assert load(golden / "llada", device=torch.device("cpu")).device == torch.device("cpu")
    with pytest.raises(UsageError, match="device is 'gpu'; expected 'cpu', 'cuda'"):
        load(golden / "llada", device="gpu")
    if not torch.cuda.is_available():
        assert load(golden / "llada", device="auto").device == torch.device("cpu")
        with pytest.raises(UsageError, match="torch sees no GPU here"):
            load(golden / "llada", device="cuda:0")


def test_native_models_refuse_what_transformers_does(golden: Path) -> None:
    with pytest.raises(ModelError, match="quantization_config is transformers' way"):
        load(golden / "llada", quantization_config={"load_in_8bit": True})
    with pytest.raises(ModelError, match=r"attn_implementation is 'eager'; .* natively"):
        load(golden / "dream", attn_implementation="eager")


def test_the_catalog() -> None:
    assert KNOWN["llada-8b-instruct"].bf16_gigabytes == pytest.approx(16.031162368)  # its index says so
    assert KNOWN["dream-v0-instruct-7b"].bf16_gigabytes == pytest.approx(15.231233024)
    assert all((ZOO / folder / "config.json").is_file() for folder in EMBEDDED.values())
    assert not set(EMBEDDED) & set(KNOWN)


def test_the_catalog_needs_no_torch() -> None:
    heavy = "{'torch', 'transformers', 'huggingface_hub'}"
    code = f"import sys, sinklens.models.catalog; print({heavy} & set(sys.modules))"
    assert python(code).stdout == "set()\n"


def test_a_hub_id_that_cannot_be_had(tmp_path: Path) -> None:
    code = "import sys\nfrom sinklens.models.load import load\nload('owner/name', revision='v1')"
    run = python(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert "ModelError: owner/name at revision 'v1' is no folder here and cannot be downloaded" in run.stderr


def test_a_hub_id_in_the_cache_remembers_its_commit(tmp_path: Path, golden: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hub" / "models--owner--name"
    shutil.copytree(golden / "llada", cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    code = "from sinklens.models.load import load\nprint(load('owner/name').spec.source)"
    run = python(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert run.stdout == f"owner/name@{commit}\n", run.stderr


def test_embedded_names_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Path) -> None:
    monkeypatch.setattr("sinklens.models.catalog.ZOO", golden)
    monkeypatch.setattr("sinklens.models.catalog.EMBEDDED", {"tiny": "llada"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert locate("tiny").folder == golden / "llada"
    assert load("tiny").spec.source == "tiny"
    assert locate("./tiny").folder == Path("tiny")
    assert locate(Path("tiny")).folder == Path("tiny")
    with pytest.raises(ModelError, match="tiny is already on this machine"):
        load("tiny", revision="v1")
