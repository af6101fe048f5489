"""`sinklens verify` against a stand-in for the original code, right and wrong on purpose."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from sinklens.errors import UsageError, VerificationError
from sinklens.verification import Reference, certificate_for, verify
from sinklens.verification.compare import compare_canvases, compare_logits

STAND_IN = Path(__file__).parent / "reference_llada.py"


def changed(folder: Path, old: str, new: str) -> Path:
    """A copy of the stand-in with one thing wrong."""
    source = STAND_IN.read_text()
    assert source.count(old) == 1
    path = folder / "changed.py"
    path.write_text(source.replace(old, new))
    return path


def scripted(folder: Path, source: str) -> Reference:
    path = folder / "script.py"
    path.write_text(source)
    return Reference(script=path, timeout=60.0)


def test_the_stand_in_agrees_and_its_certificate_is_found(sinklens, llada: Path, tmp_path: Path) -> None:
    done = sinklens("verify", llada, "--reference", STAND_IN, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    certificate = json.loads(done.stdout)
    assert certificate == json.loads((tmp_path / "runs" / "verify-llada" / "certificate.json").read_text())
    assert (certificate["verdict"], certificate["disagreements"]) == ("agrees", [])
    assert 0 < certificate["logits"]["largest_difference"] < certificate["logits"]["tolerance"] < 1e-3
    assert [(one["equal"], one["history"]) for one in certificate["canvases"]] == [(True, True)] * 3
    assert certificate["versions"]["reference"]["reference"] == "stand-in"
    assert certificate["versions"]["sinklens"]["torch"] == torch.__version__
    assert set(certificate["files"]) == {"config.json", "model.safetensors"}
    assert certificate_for(llada, runs=tmp_path / "runs") == certificate
    assert certificate_for(llada.parent / "dream", runs=tmp_path / "runs") is None


def test_a_certificate_is_for_the_bytes_of_the_weights_and_the_newest_counts(llada: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(llada / name, model / name)
    first = verify(str(model), Reference(script=STAND_IN), to=tmp_path / "runs" / "one")
    later = {**first, "date": "9999-01-01T00:00:00+00:00"}
    (tmp_path / "runs" / "two").mkdir()
    (tmp_path / "runs" / "two" / "certificate.json").write_text(json.dumps(later))
    (tmp_path / "runs" / "certificate.json").write_text("damaged")
    assert certificate_for(model, runs=tmp_path / "runs") == later
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert certificate_for(model, runs=tmp_path / "runs") is None


def test_another_rope_is_caught_in_the_logits(sinklens, llada: Path, tmp_path: Path) -> None:
    script = changed(tmp_path, 'theta = config["rope_theta"]', "theta = 10000.0")
    done = sinklens("verify", llada, "--reference", script, "--to", tmp_path / "out", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "and the reference disagree: logits differ by up to" in done.stderr
    assert "first at row 0, position 0" in done.stderr
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["verdict"] == "disagrees"
    assert certificate["logits"]["largest_difference"] > 100 * certificate["logits"]["tolerance"]


def test_another_order_is_caught_at_its_first_step(llada: Path, tmp_path: Path) -> None:
    script = changed(tmp_path, "proposal.gather(1, chosen)", "proposal.gather(1, chosen - 1)")
    with pytest.raises(VerificationError, match=r"canvas0 differs first after step 1, position \d+: ours \d+, ref"):
        verify(str(llada), Reference(script=script), to=tmp_path / "out")
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["logits"]["largest_difference"] < certificate["logits"]["tolerance"]
    assert not any(one["equal"] for one in certificate["canvases"])


def test_finished_canvases_are_enough(llada: Path, tmp_path: Path) -> None:
    script = changed(tmp_path, "return torch.stack(history)", "return canvas")
    certificate = verify(str(llada), Reference(script=script), to=tmp_path / "out")
    assert [(one["equal"], one["history"]) for one in certificate["canvases"]] == [(True, False)] * 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit('no GPU here')", r"failed with exit code 1\. It printed:\nno GPU here"),
        ("print('on stdout'); 1 / 0", r"(?s)on stdout.*ZeroDivisionError"),
        ("pass", r"ended without answer\.safetensors; it must write"),
        ("import sys; open(sys.argv[2] + '/answer.safetensors', 'w').write('x')", "cannot be read"),
    ],
)
def test_a_script_that_fails_is_quoted(llada: Path, tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(str(llada), scripted(tmp_path, source), to=tmp_path / "out")
    assert not (tmp_path / "out" / "certificate.json").exists()


def test_an_answer_of_an_earlier_run_is_not_taken_for_one(llada: Path, tmp_path: Path) -> None:
    verify(str(llada), Reference(script=STAND_IN), to=tmp_path / "out")
    with pytest.raises(VerificationError, match="ended without"):
        verify(str(llada), scripted(tmp_path, "pass"), to=tmp_path / "out")
    assert not (tmp_path / "out" / "certificate.json").exists()


def test_missing_canvases_are_named(llada: Path, tmp_path: Path) -> None:
    script = changed(tmp_path, 'answers[run["name"]] = sample', 'answers["sample"] = sample')
    with pytest.raises(VerificationError, match="lacks canvas0, canvas1, canvas2; it holds logits, sample"):
        verify(str(llada), Reference(script=script), to=tmp_path / "out")


def test_a_slow_script_is_stopped(llada: Path, tmp_path: Path) -> None:
    script = scripted(tmp_path, "import time; print('loading', flush=True); time.sleep(60)").script
    with pytest.raises(VerificationError, match=r"(?s)did not finish in 2 s and was stopped.*--timeout.*loading"):
        verify(str(llada), Reference(script=script, timeout=2.0), to=tmp_path / "out")


def test_a_python_that_is_not_there(llada: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python at nowhere/python; see --python"):
        verify(str(llada), Reference(script=STAND_IN, python="nowhere/python"), to=tmp_path / "out")


def test_what_cannot_be_asked_is_misuse(sinklens, llada: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no reference script at"):
        Reference(script=tmp_path / "none.py")
    with pytest.raises(UsageError, match="timeout must be a positive number of seconds, got 0"):
        Reference(script=STAND_IN, timeout=0.0)
    with pytest.raises(UsageError, match="unknown dtype 'int8'; expected one of 'float32', 'bfloat16', 'float16'"):
        verify(str(llada), Reference(script=STAND_IN), to=tmp_path, dtype="int8")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="'llama' model, which runs in transformers' own classes"):
        verify(str(tmp_path), Reference(script=STAND_IN), to=tmp_path / "out")
    done = sinklens("verify", llada, "--reference", tmp_path / "none.py")
    assert done.returncode == 2


def test_logits_are_compared_by_the_tolerance_of_their_dtype() -> None:
    ours = torch.zeros(1, 2, 3)
    theirs = torch.tensor([[[0.0, 0.0, 100.0], [0.0, 0.0, 0.0]]])
    ours[0, 0, 2], ours[0, 1, 1] = 100.0, 4e-3
    compared, wrong = compare_logits(ours, theirs, dtype="float32")
    assert (compared["scale"], wrong) == (100.0, None)
    ours[0, 1, 1] = 6e-3
    _, wrong = compare_logits(ours, theirs, dtype="float32")
    assert wrong == "logits differ by up to 0.006 (tolerance 0.005), first at row 0, position 1"
    assert compare_logits(ours, theirs, dtype="bfloat16")[1] is None


def test_logits_that_cannot_be_compared() -> None:
    good, bad = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    bad[0, 1, 2] = torch.nan
    with pytest.raises(
        VerificationError,
        match="the reference's logits hold NaN or infinity, first at row 0, position 1, id 2",
    ):
        compare_logits(good, bad, dtype="float32")
    with pytest.raises(VerificationError, match="our logits hold NaN"):
        compare_logits(bad, good, dtype="float32")
    with pytest.raises(VerificationError, match=r"logits have shape \[2, 3\], expected \[1, 2, 3\]"):
        compare_logits(good, good[0], dtype="float32")


def test_without_a_history_the_position_that_we_filled_first_is_named() -> None:
    ours = torch.tensor([[[1, 9, 9, 9]], [[1, 9, 5, 9]], [[1, 4, 5, 6]]])
    theirs = torch.tensor([[1, 3, 7, 6]])
    _, wrong = compare_canvases("canvas2", ours, theirs)
    assert wrong == "canvas2 differs at position 2, which we fill in step 1: ours 5, reference 7"
    with pytest.raises(VerificationError, match=r"expected integers of shape \[1, 4\] .* or \[3, 1, 4\]"):
        compare_canvases("canvas2", ours, theirs[:, :3])


def test_the_reference_runs_in_its_own_python(llada: Path, tmp_path: Path) -> None:
    """`--python` is what runs the script: here a wrapper that leaves a mark."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\ntouch "{tmp_path}/mark"\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    verify(str(llada), Reference(script=STAND_IN, python=str(wrapper)), to=tmp_path / "out")
    assert (tmp_path / "mark").exists()


def test_canvases_that_differ_in_bfloat16_are_said_to_be_expected(llada: Path, tmp_path: Path) -> None:
    script = changed(tmp_path, "proposal.gather(1, chosen)", "proposal.gather(1, chosen - 1)")
    with pytest.raises(VerificationError, match=r"canvas0 differs .* \(expected in bfloat16: compare in float32\)$"):
        verify(str(llada), Reference(script=script), to=tmp_path / "out", dtype="bfloat16")
    with pytest.raises(VerificationError) as exact:
        verify(str(llada), Reference(script=script), to=tmp_path / "out")
    assert "expected in" not in str(exact.value)
    rope = changed(tmp_path, 'theta = config["rope_theta"]', "theta = 10000.0")
    with pytest.raises(VerificationError, match="logits differ") as wrong:  # which no rounding explains
        verify(str(llada), Reference(script=rope), to=tmp_path / "out", dtype="bfloat16")
    assert "expected in" not in str(wrong.value)
