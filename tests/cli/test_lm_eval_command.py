"""`sinklens lm-eval`: the harness's own command line, on local tasks, offline."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from sinklens.cli import main
from sinklens.cli.lm_eval import complete

DATA = Path(__file__).parents[1] / "data" / "lm_eval"


def test_our_model_is_the_default_and_nothing_else_is_changed() -> None:
    assert complete(["--tasks", "gsm8k"]) == ["run", "--tasks", "gsm8k", "--model", "sinklens"]
    assert complete(["run", "--tasks", "a", "-L", "2"]) == ["run", "--tasks", "a", "-L", "2", "--model", "sinklens"]
    for named in (["run", "--model", "hf"], ["run", "-M", "hf"], ["run", "--model=hf"], ["run", "-C", "file.yaml"]):
        assert complete(named) == named
    for plain in (["ls", "tasks"], ["validate", "--tasks", "a"], ["run", "--help"]):
        assert complete(plain) == plain


@pytest.mark.parametrize("asked", [(), ("--help",), ("-h",)])
def test_help_says_what_is_ours_and_who_tells_the_rest(
    sinklens, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    """Also where the harness is not installed."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setenv("COLUMNS", "80")
    done = sinklens("lm-eval", *asked)
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    for part in ("Usage: sinklens lm-eval", "--model sinklens", "mask_top=1", "`sinklens lm-eval run --help`"):
        assert part in said
    assert said.endswith("sinklens lm-eval ls tasks")


@pytest.mark.filterwarnings("default")
def test_behind_a_command_help_is_that_of_the_harness(sinklens) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")
    done = sinklens("lm-eval", "run", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: lm-eval run") and "--num_fewshot" in done.stdout


def test_without_the_harness_the_extra_is_named(sinklens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    done = sinklens("lm-eval", "--tasks", "gsm8k")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: lm-evaluation-harness is not installed; install it with the extra: pip install '.[eval]'\n"
    )


@pytest.mark.filterwarnings("default")  # what the harness and its libraries warn of is theirs
def test_the_harness_runs_our_model_on_local_tasks(sinklens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten problems in writing and ten by likelihood; then a model that is not there, and a task that is not."""
    pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")
    import lm_eval.tasks

    without_its_own = partial(lm_eval.tasks.TaskManager, include_defaults=False)  # reading thousands takes seconds
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", without_its_own)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tasks = [str(DATA / "tiny_words.yaml"), str(DATA / "tiny_choice.yaml")]
    shutil.copy(DATA / "problems.jsonl", tmp_path)
    before = sys.argv
    arguments = ("--tasks", ",".join(tasks), "--batch_size", "10", "--output_path", "out", "--log_samples")
    done = sinklens("lm-eval", "--model_args", "pretrained=tiny-llama", *arguments)
    assert done.returncode == 0, done.stderr
    assert sys.argv is before
    assert "tiny_words" in done.stdout and "exact_match" in done.stdout
    (path,) = tmp_path.glob("out/*/results_*.json")
    found = json.loads(path.read_text())
    assert found["results"]["tiny_words"]["exact_match,strict"] >= 0.7  # it solves nearly all of them
    assert 0 <= found["results"]["tiny_choice"]["acc,none"] <= 1
    assert found["config"]["likelihood"] == "exact" and found["config"]["mask"] == "none"
    (samples,) = tmp_path.glob("out/*/samples_tiny_words_*.jsonl")
    assert len(samples.read_text().splitlines()) == 10
    wrong = sinklens("lm-eval", "--model_args", "pretrained=tiny-lama", "--tasks", tasks[0])
    assert wrong.returncode == 2 and "error: " in wrong.stderr and "tiny-lama" in wrong.stderr
    missing = sinklens("lm-eval", "--model_args", "pretrained=tiny-llama", "--tasks", "no_such_task")
    assert missing.returncode == 1 and "error: lm-eval says: Tasks not found: no_such_task" in missing.stderr


def test_nothing_said_behind_two_dashes_is_nothing_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lm-eval", "--"])
    assert end.value.code == 0 and "Usage: sinklens lm-eval" in capsys.readouterr().out


def test_a_shell_that_completes_is_not_told_the_help() -> None:
    asked = {"_SINKLENS_COMPLETE": "complete_bash", "COMP_WORDS": "sinklens lm-eval ", "COMP_CWORD": "2"}
    program = Path(sys.executable).with_name("sinklens")
    done = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert "Usage" not in done.stdout
