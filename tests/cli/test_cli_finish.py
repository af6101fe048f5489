"""What every command owes its user: examples that work, the same names, 80 columns, silence on request, completion."""

import os
import pty
import re
import resource
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.conftest import COMMAND, ROOT, environment, read_terminal
from sinklens.cli.app import app
from sinklens.cli.commands import RENAMED, given_to, with_new_names, with_value
from sinklens.cli.examples import EXAMPLES
from sinklens.errors import UsageError
from sinklens.report.columns import columns

# Names that mean a list here and a number there, or a file here and a folder there: the metavars say which.
SEVERAL = {"--data", "--epsilon", "--task", "--to"}


def commands(title: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = typer.main.get_command(app) if command is None else command
    yield title, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{title} {name}".strip(), inner)


def example_lines(name: str) -> list[list[str]]:
    """The words of every example, as a shell reads them."""
    lines = "\n".join(EXAMPLES[name]).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [[word[1:].replace("\\n", "\n") if word[0] == "$" else word for word in line] for line in words]


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_help_fits_into_80_columns_and_ends_with_its_examples(
    sinklens: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = sinklens(*name.split(), "--help")
    lines = done.stdout.rstrip().splitlines()
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert [line for line in lines if len(line.rstrip()) > 80] == []
    shown = [f"  {line}" for line in EXAMPLES[name]]
    assert lines[-len(shown) :] == shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_parses(name: str) -> None:
    assert name in ALL
    for program, *words in example_lines(name):
        if program == "python":
            assert words[0] == "-m" and find_spec(words[1]) is not None
            continue
        assert program == "sinklens"
        if words[0] == "COMMAND" or "--help" in words:
            continue
        inner, rest = typer.main.get_command(app), words
        while hasattr(inner, "commands"):
            inner, rest = inner.commands[rest[0]], rest[1:]
        context = inner.make_context(words[0], list(rest))
        assert name == " ".join(words[: len(words) - len(rest)]) or name == ""
        assert not [value for value in context.params.values() if isinstance(value, str) and "..." in value]


def test_a_study_by_the_examples_runs(sinklens: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("Question: What is 2 + 3? Answer:\nHello\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("COLUMNS", "80")
    for name, which in (("trace", 0), ("trace", 1), ("sinks", 0), ("sinks", 1), ("figures", 1), ("explore", 0),
                        ("models", 0), ("models", 1), ("sweep", 0)):  # fmt: skip
        _, *words = example_lines(name)[which]
        done = sinklens(*words, "--quiet")
        assert (done.returncode, done.stderr) == (0, ""), words
        if name in ("sinks", "figures", "models", "sweep") and "--json" not in words:
            assert max(len(row.rstrip()) for row in done.stdout.splitlines()) <= 80, words
            assert "…" not in done.stdout


def test_a_table_is_never_cut() -> None:
    header = ("task", "solved", "95 % interval", "a name that is long")
    rows = [("word_problems", "97.0 %", "94.4 to 98.4", "-"), ("passkey", "100.0 %", "98.7 to 100.0", "x y")]
    wide, narrow = columns(header, rows), columns(header, rows, width=40)
    assert columns(header, rows, width=len(max(wide, key=len))) == wide
    assert [line.index("9") for line in wide] == [24, 15, 24]  # under their headings
    assert max(map(len, narrow)) <= 40
    assert narrow[:2] == ["word_problems", "  solved: 97.0 %,"]
    assert "  95 % interval: 94.4 to 98.4" in narrow and "a name that is long: x y" in "\n".join(narrow)


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    taken: dict[str, set[str]] = defaultdict(set)
    for _, command in commands():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                taken[parameter.opts[0]].add(str(parameter.metavar))
    mixed = {name: kinds for name, kinds in taken.items() if len(kinds) > 1 and name not in SEVERAL}
    assert mixed == {}


@pytest.mark.parametrize("name", [name for name, command in ALL.items() if name and not hasattr(command, "commands")])
def test_every_command_has_the_options_that_all_have(name: str) -> None:
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    if name == "lm-eval":  # what stands behind it is the harness's, so these stand before it
        assert not [option for option in options if option.startswith("-")]
        assert "`--quiet`, `--verbose` and `--debug` stand before `lm-eval`" in ALL[name].help
        assert {"--debug", "--quiet", "--verbose"} <= {option for one in ALL[""].params for option in one.opts}
        return
    assert {"--json", "--debug", "--quiet", "--verbose", "-q", "-v"} <= options
    assert ("--device" in options) <= ("--json" in options)
    if "--revision" in options and name not in ("models", "verify"):
        assert "--trust-remote-code" in options


GOING_ON = ("mask", "evaluate", "compress", "sweep", "atlas", "card", "select evaluate")


def test_whoever_can_go_on_takes_resume(sinklens: Any) -> None:
    """Those that go on by themselves have it in the same words; with a new folder there is nothing to go on with."""
    helps = {
        name: parameter.help
        for name, command in ALL.items()
        for parameter in command.params
        if "--resume" in parameter.opts
    }
    assert set(helps) == {*GOING_ON, "trace", "train", "select train"}
    for name in GOING_ON:
        assert helps[name] == "Go on with what is there; the same command does so without it."
        if name != "sweep":  # its folder is always the same
            done = sinklens(*name.split(), "tiny-llama", "--resume")
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == "error: --resume needs --to DIR: repeat the command with the folder to go on with\n"


def test_resume_is_what_happens_anyway(sinklens: Any, tmp_path: Path) -> None:
    grid = 'models = ["tiny-llama"]\ntasks = ["word_problems"]\nproblems = 1\n[answering]\nlength = 2\n'
    (tmp_path / "grid.toml").write_text(grid)
    settings = ("--problems", "1", "--length", "2", "--to", "here", "--device", "cpu")
    for asked in (("evaluate", "tiny-llama", *settings), ("sweep", "grid.toml", "--device", "cpu", "--job", "0")):
        first, again = sinklens(*asked, "--json"), sinklens(*asked, "--json", "--resume")
        assert (first.returncode, again.returncode) == (0, 0), (first.stderr, again.stderr)
        assert first.stdout == again.stdout


def test_old_names_are_taken_with_a_warning(sinklens: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in RENAMED.items():
        for old, new in names.items():
            assert with_new_names(command, [old, "x", f"{old}=y"]) == [new, "x", f"{new}=y"]
            assert capsys.readouterr().err.startswith(f"warning: {old} is now {new}\n")
            options = {option for parameter in ALL[command].params for option in parameter.opts}
            assert new in options and old not in options
    done = sinklens("evaluate", "tiny-llama", "--tasks", "no_such")
    assert done.returncode == 2
    assert done.stderr.startswith("warning: --tasks is now --task\nerror: unknown task 'no_such'")


@pytest.mark.parametrize(
    ("given", "value", "accepted"),
    [(("--draws", "0"), "0", "1"), (("--draws=-2",), "-2", "1"), (("--draws", "few"), "'few'", "integer")],
)
def test_a_number_that_is_refused_is_told_with_what_is_accepted(
    sinklens: Any, given: tuple[str, ...], value: str, accepted: str
) -> None:
    done = sinklens("compress", "tiny-llama", *given)
    told = done.stderr.partition("Invalid value for '--draws': ")[2].splitlines()[0]
    assert done.returncode == 2 and value in told and accepted in told


def test_the_last_value_of_an_option_is_the_one_that_counts() -> None:
    assert given_to(["--draws", "-n"], ["--draws", "1", "-n=2", "--task", "--draws"]) is None
    assert given_to(["--draws", "-n"], ["--draws", "1", "-n=2", "--task"]) == "2"
    assert given_to(["--draws"], []) is None
    assert given_to(["model"], ["--prompt", "model", "--length", "4"]) is None


def test_a_message_that_tells_the_value_is_left_alone() -> None:
    assert with_value("16 is too few", "16") == "16 is too few"
    assert with_value("'x' is not a valid integer", "x") == "'x' is not a valid integer"
    assert with_value("expected 16", "1") == "'1': expected 16"
    assert with_value("expected a number", "a") == "'a': expected a number"
    assert with_value("expected 1", None) == "expected 1"


def test_quiet_says_nothing_and_verbose_what_is_used(sinklens: Any, llada: Path) -> None:
    asked = ("generate", llada, "--prompt-ids", "1,2", "--length", "4", "--device", "cpu")
    quiet, usual, verbose = (sinklens(*asked, *more) for more in (("-q",), (), ("--verbose",)))
    assert quiet.stdout == usual.stdout == verbose.stdout != ""
    assert quiet.stderr == ""
    assert re.search(r"llada, 3 layers x \d+ heads, loaded in \d", verbose.stderr)
    assert "device cpu, dtype float32" in verbose.stderr and re.search(r"took \d+\.\d s", verbose.stderr)
    before = sinklens("--verbose", *asked)
    assert "took" in before.stderr and "took" not in sinklens(*asked).stderr
    both = sinklens(*asked, "--quiet", "--verbose")
    assert (both.returncode, both.stdout) == (2, "") and "--quiet and --verbose are opposites" in both.stderr


def test_quiet_keeps_warnings_and_silences_announcements(sinklens: Any, llada: Path) -> None:
    asked = ("trace", llada, "--prompt-ids", "1,2", "--length", "4", "--dry-run", "--device", "cpu")
    assert "1 prompt, 4 steps" in sinklens(*asked).stderr
    assert sinklens(*asked, "--quiet").stderr == ""
    assert "is now" in sinklens("sinks", "nothing", "--top=3", "--quiet").stderr


def test_several_models_have_no_revision_in_common(sinklens: Any) -> None:
    done = sinklens("mask", "tiny-llama", "tiny-llada", "--revision", "main")
    assert done.returncode == 2 and "--revision main with 2 models" in done.stderr


def on_terminal(*arguments: str, **variables: str) -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    shell = {**environment(), "TERM": "xterm-256color", "COLUMNS": "80", **variables}
    process = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs, env=shell)
    os.close(theirs)
    seen = read_terminal(ours)
    process.wait(timeout=60)
    return seen


def test_colours_are_for_a_terminal_and_off_with_no_color() -> None:
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
    assert colour.search(on_terminal("--help"))
    plain = on_terminal("--help", NO_COLOR="1")
    assert "Usage:" in plain and not colour.search(plain)


def test_the_shell_completes_commands_models_and_options(shell: Any) -> None:
    def completed(words: str, place: int) -> list[str]:
        asking = {"_SINKLENS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        done = shell("env", *(f"{name}={value}" for name, value in asking.items()), *COMMAND)
        assert done.stderr == ""
        return [str(line) for line in done.stdout.split()]

    assert completed("sinklens ev", 1) == ["evaluate"]
    assert completed("sinklens trace tiny-ll", 2) == ["tiny-llama", "tiny-llada"]
    assert completed("sinklens sinks runs/a --parts all --sam", 5) == ["--samples"]


def test_help_takes_less_than_a_second() -> None:
    """Of processor time, the better of two: a busy machine is not our doing."""

    def cost() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], env=environment(), check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cost(), cost()) < 1.0, sys.executable


def test_opposites_are_refused_where_they_are_said() -> None:
    from sinklens.cli.options import _set_loudness, loudness

    token = loudness.set(1)
    try:
        with pytest.raises(UsageError, match="give one of them"):
            _set_loudness(-1)
    finally:
        loudness.reset(token)
