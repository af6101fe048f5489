"""The program as a whole: what it loads, exit codes, the two streams."""

import os
import sys
from pathlib import Path

import pytest

from sinklens import __version__
from sinklens.cli import main

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "matplotlib",
    "lm_eval",
    "ray",
    "anywidget",
    "kvpress",
    "triton",
)
SLOW = ("transformers.modeling_utils", "torch._dynamo")  # three seconds and one
LOADED = f"""
import sys
from sinklens.cli import main
try:
    main({{arguments}})
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", *(name for name in {HEAVY + SLOW} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["--version"], ["models"], ["models", "--json"]]
)
def test_light_commands_load_neither_torch_nor_an_extra(shell, arguments: list[str]) -> None:
    code = LOADED.replace("{arguments}", repr(arguments))
    done = shell(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_models_of_our_own_need_neither_those_of_transformers_nor_a_compiler(
    shell, golden: Path, tmp_path: Path, family: str
) -> None:
    arguments = ["trace", str(golden / family), "--prompt-ids", "1,2", "--length", "2", "--to", str(tmp_path / "t")]
    done = shell(sys.executable, "-c", LOADED.replace("{arguments}", repr(arguments)))
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert "torch" in loaded and not set(SLOW) & set(loaded)


def test_version(sinklens) -> None:
    done = sinklens("--version")
    assert (done.returncode, done.stdout) == (0, f"sinklens {__version__}\n")


def test_help_names_the_commands_that_exist(sinklens) -> None:
    done = sinklens("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("models", "generate", "verify", "doctor"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paint"], "paint"),
        (["generate"], "MODEL"),
        (["generate", "x", "--lenght", "3"], "--lenght"),
        (["generate", "x", "--length", "three", "--prompt", "a"], "--length"),
        (["generate", "x"], "error: give prompts with exactly one of"),
    ],
)
def test_misuse_leaves_with_2_and_an_empty_stdout(sinklens, arguments: list[str], message: str) -> None:
    done = sinklens(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_failure_leaves_with_1_and_one_message(process, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = process("generate", tmp_path / "empty", "--prompt-ids", "1", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and "config.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(sinklens, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = sinklens("--debug", "generate", tmp_path / "empty", "--prompt-ids", "1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "error: " in done.stderr.splitlines()[-1]


def test_a_bug_is_called_unexpected_and_points_to_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], llada: Path
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("sinklens.cli.loading.build_sampler", fail, raising=True)
    with pytest.raises(SystemExit) as end:
        main(["generate", str(llada), "--prompt-ids", "1"])
    assert end.value.code == 1
    assert capsys.readouterr().err == "unexpected error: RuntimeError: boom\n`--debug` shows where\n"


def test_a_reader_that_has_gone_is_no_bug(running) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = running("models", "--json", stdout=writer)
    os.close(writer)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (1, "")


def test_debug_may_stand_behind_the_command(sinklens, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in (["generate", "--prompt-ids", "1"], ["models"]):
        done = sinklens(command[0], tmp_path / "empty", *command[1:], "--debug")
        assert done.returncode == 1
        assert "Traceback" in done.stderr and "error: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in sinklens("models", tmp_path / "empty").stderr


@pytest.mark.parametrize("command", [[], ["generate"], ["models"], ["verify"]])
def test_help_shows_flags_without_a_value_and_arguments_without_braces(sinklens, command: list[str]) -> None:
    done = sinklens(*command, "--help")
    assert done.returncode == 0 and "<bool>" not in done.stdout and "{" not in done.stdout
