"""Names, devices and dtypes: what `load` and the catalog accept and refuse."""

import os
import re
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


@pytest.mark.parametrize("name", ["llada-8b", "https://hub/a"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown model .* expected a checkpoint folder, a hub id such as"):
        load(name)


@pytest.mark.parametrize("name", ["../nowhere", "./nowhere", "a/b/c", "owner/", "owner/..", "~nobody", Path("nowhere")])
def test_folders_that_are_not_there(name: str | Path) -> None:
    with pytest.raises(UsageError, match=rf"^no folder {re.escape(os.fspath(name))}; expected a checkpoint folder"):
        load(name)


def test_what_is_no_name_at_all() -> None:
    with pytest.raises(UsageError, match="the model name is empty; expected a folder, a hub id"):
        load("")
    # Without the run-time checks of annotations, which would come first here.
    run = python("import sinklens as sl\ntry: sl.load(None)\nexcept sl.SinklensError as error: print(error)")
    assert run.stdout.startswith("the model name is None; expected a folder"), run.stderr


def test_a_file_is_no_folder(golden: Path) -> None:
    with pytest.raises(UsageError, match=r"is a file; expected a checkpoint folder"):
        load(golden / "llada" / "model.safetensors")


def test_folders_have_no_revision(golden: Path) -> None:
    with pytest.raises(UsageError, match="revision 'v1' is for hub ids"):
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
    with pytest.raises(UsageError, match="expected one of float64, float32, float16, bfloat16; leave it out for"):
        load(golden / "llada", dtype=dtype)


def test_devices(golden: Path) -> None:
    assert load(golden / "llada", device=torch.device("cpu")).device == torch.device("cpu")
    with pytest.raises(UsageError, match="device is 'gpu'; expected 'cpu', 'cuda'"):
        load(golden / "llada", device="gpu")
    if not torch.cuda.is_available():
        assert load(golden / "llada", device="auto").device == torch.device("cpu")
        with pytest.raises(UsageError, match="torch sees no GPU here; choose 'cpu'"):
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
    assert run.stderr.splitlines()[-1] == (
        "sinklens.errors.ModelError: owner/name at revision 'v1' is no folder here, not in the local cache, and the "
        "hub cannot be reached (HF_HUB_OFFLINE is set); check the network, or give a folder"
    )


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    code = "from sinklens.models.load import load\nload('owner/name')"
    run = python(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0", HF_ENDPOINT="http://localhost:9")
    assert re.fullmatch(
        r"sinklens.errors.ModelError: owner/name is no folder here, not in the local cache, and the hub cannot be "
        r"reached \([^()]*refused\); check the network, or give a folder",
        run.stderr.splitlines()[-1],
    ), run.stderr


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("RepositoryNotFoundError", UsageError, "owner/name is no folder here, and the hub has no such model"),
        ("GatedRepoError", ModelError, "owner/name is gated on the hub; ask for access"),
        (
            "RevisionNotFoundError",
            ModelError,
            r"cannot be downloaded from the hub \(told so\); check the name, the rev",
        ),
    ],
)
def test_what_the_hub_refuses(kind: str, error: type, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def refuse(*_: object, **__: object) -> None:
        said = getattr(errors, kind).__new__(getattr(errors, kind))
        said.args = ("told so\nat length",)
        raise said

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(error, match=message):
        locate("owner/name")


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
    with pytest.raises(UsageError, match="tiny is already on this machine"):
        load("tiny", revision="v1")


def test_mmada_is_known_by_its_class_where_its_config_names_llada(copied) -> None:
    folder = copied("mmada", model_type="llada")
    model = load(folder)
    assert model.spec.family == "mmada"
    assert load(copied("llada")).spec.family == "llada"
