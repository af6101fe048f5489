"""Ctrl-C at every stage: one word on stderr, exit code 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import typer

from sinklens.cli.interrupts import interrupts_end, was_interrupted
from sinklens.interrupts import interrupts_deferred, interrupts_named

# Ctrl-C comes the moment a module is looked for: deep inside the imports of others.
PRESSED = """
import importlib.abc, os, signal, sys

class Press(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            sys.argv[1] = ""
            os.kill(os.getpid(), signal.SIGINT)

from sinklens.cli import main
sys.meta_path.insert(0, Press())
main(sys.argv[2:])
"""


@pytest.mark.parametrize("module", ["typer", "torch", "numpy", "torch.nn", "transformers", "safetensors.torch"])
def test_while_modules_are_imported(shell, llada: Path, module: str) -> None:
    arguments = ["generate", llada, "--prompt-ids", "1", "--length", 4]
    done = shell(sys.executable, "-c", PRESSED, module, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_while_the_reference_runs(running, llada: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)")
    process = running("verify", llada, "--reference", script)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")


def test_positions_that_are_open_are_blocks_without_a_tokenizer_too(running, llada: Path) -> None:
    process = running("generate", llada, "--prompt-ids", "1,2,3", "--length", 2048)
    assert process.stderr.readline().startswith("step ")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    shown = stdout.split()
    assert process.returncode == 130 and len(shown) == 2048
    assert shown[0].isdigit() and shown[-1] == "░" and "125" not in shown


def test_a_deferred_interrupt_comes_at_the_end_and_the_handler_is_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached and signal.getsignal(signal.SIGINT) is before


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class Pressed:
    """A sequence during whose reading Ctrl-C comes: torch makes an error of its own of what it gets."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return index


def test_an_error_that_a_library_makes_of_an_interrupt_is_the_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="could not determine the shape"):
        torch.tensor(Pressed())
    with pytest.raises(KeyboardInterrupt), interrupts_named():
        torch.tensor(Pressed())
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_without_an_interrupt_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="of its own"), interrupts_named():
        raise ValueError("of its own")
    with pytest.raises(ValueError, match="of its own"), interrupts_end(lambda: "interrupted: nothing"):
        raise ValueError("of its own")


def test_whoever_deals_with_an_interrupt_may_have_errors_of_their_own() -> None:
    with pytest.raises(OSError, match="disk full"), interrupts_named():
        try:
            with interrupts_named():
                torch.tensor(Pressed())
        except KeyboardInterrupt:
            raise OSError("disk full") from None


def test_an_interrupt_that_was_told_is_not_told_by_those_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), interrupts_named(), interrupts_end(lambda: "interrupted: 3 of 4 are kept"):
        torch.tensor(Pressed())
    assert capsys.readouterr().err.count("interrupted") == 1


def test_what_is_kept_is_told_once_before_the_program_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end, interrupts_end(lambda: "interrupted: 3 of 4 are kept"):
        torch.tensor(Pressed())
    assert (end.value.exit_code, capsys.readouterr().err) == (130, "interrupted: 3 of 4 are kept\n")
    assert not was_interrupted(end.value)  # else the program would say it once more


# Ctrl-C comes inside a call of a library, which makes an error of its own of it.
TAKEN = """
import importlib, signal, sys

def call(*args, **kwargs):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("of its own") from None

from sinklens.cli import main
setattr(importlib.import_module(sys.argv[1]), sys.argv[2], call)
main(sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("torch.nn.functional", "scaled_dot_product_attention", "interrupted: this is the canvas so far\n"),
        ("safetensors", "safe_open", "interrupted\n"),
    ],
)
def test_a_command_whose_library_takes_the_interrupt(shell, llada: Path, module: str, name: str, said: str) -> None:
    done = shell(sys.executable, "-c", TAKEN, module, name, "generate", llada, "--prompt-ids", "1", "--length", 4)
    assert (done.returncode, done.stderr) == (130, said)


def test_an_interrupt_that_ends_the_reader_too(llada: Path) -> None:
    """As in `sinklens generate ... | less`, where both are told."""
    call = [sys.executable, "-c", TAKEN, "torch.nn.functional", "scaled_dot_product_attention", "generate", str(llada)]
    with subprocess.Popen(
        [*call, "--prompt-ids", "1", "--length", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (1, "interrupted: this is the canvas so far\n")
