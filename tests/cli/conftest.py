"""Running the program: here, or in a process of its own for what only a process has (streams, signals)."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

from sinklens.cli import main
from talking import WORDS, write_tokenizer

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"
COMMAND = (sys.executable, "-c", "from sinklens.cli import main; main()")


def environment() -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, **quiet, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}


def read_terminal(ours: int) -> str:
    """All that is written to a terminal until its other end is closed."""
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(ours)
    return seen.decode("utf-8")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Run:
    """Any command, in an empty folder."""

    def run(*command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def process(shell: Run) -> Run:
    """`process("models", "--json")`: the program in a process of its own."""
    return lambda *arguments: shell(*COMMAND, *arguments)


@pytest.fixture
def sinklens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`sinklens("models", "--json")`: the same, in this process, which has loaded torch already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr("sys.stdin", StringIO(stdin))
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
        assert isinstance(code, int)
        written = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, written.out, written.err)

    return run


@pytest.fixture
def llada() -> Path:
    return GOLDEN / "llada"


@pytest.fixture
def dream() -> Path:
    return GOLDEN / "dream"


@pytest.fixture
def mmada() -> Path:
    return GOLDEN / "mmada"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """A program that is still running, to be watched and interrupted; it does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with random weights and a tokenizer, as transformers saves it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    return folder


@pytest.fixture
def running_on_terminal(tmp_path: Path) -> Callable[..., tuple[str, str, int]]:
    """stderr is a terminal, stdout a file: what the terminal saw, stdout, and the exit code."""

    def run(*arguments: object) -> tuple[str, str, int]:
        ours, theirs = pty.openpty()
        output = tmp_path / "stdout"
        with output.open("wb") as stdout:
            process = subprocess.Popen(
                [*COMMAND, *map(str, arguments)],
                stdout=stdout,
                stderr=theirs,
                stdin=subprocess.DEVNULL,
                env={**environment(), "TERM": "xterm-256color"},
                cwd=tmp_path,
            )
            os.close(theirs)
            seen = read_terminal(ours)
            process.wait(timeout=60)
        return seen, output.read_text("utf-8"), process.returncode

    return run
