"""The process that writes samples, as it starts: wherever Python finds its packages, and in words where it cannot."""

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sinklens as sl
from sinklens.errors import TraceError
from sinklens.recording import scribe
from sinklens.recording.scribe import Scribe

NO_THREADS = """
import threading
start, started = threading.Thread.start, []
def limited(self):
    if len(started) == 2:
        raise RuntimeError("can't start new thread")
    started.append(self)
    start(self)
threading.Thread.start = limited
"""
FAULTS = {
    "threads": (f"import os; os.cpu_count = lambda: 9\n{NO_THREADS}", r"\(RuntimeError: can't start new thread\)"),
    "a package": ("import sys; sys.modules['pyarrow'] = None\n", r"\(ModuleNotFoundError: .*pyarrow.*\)"),
    "numpy": ("import sys; sys.modules['numpy'] = None\n", r"\((ModuleNotFound|Import)Error: .*numpy.*\)"),
}
ANSWER = r"TypeError in the process that writes the trace: _begin\(\) missing"


def answer(process: Scribe) -> None:
    """What it says to a sample that is none."""
    process.send({"begin": {}})
    with pytest.raises(RuntimeError, match=ANSWER):
        process.hear(60.0)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_keeps_it_from_starting_is_told(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    code, told = FAULTS[fault]
    monkeypatch.setattr(scribe, "COMMAND", code + scribe.COMMAND)
    with Scribe() as process:
        with pytest.raises(TraceError, match=f"process that writes the trace has ended {told}"):
            process.hear(60.0)
        assert process._process.wait(10) == 1


def test_it_is_told_to_one_that_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "COMMAND", FAULTS["a package"][0] + scribe.COMMAND)
    large = {"step": np.zeros(2**24)}
    with Scribe() as process, pytest.raises(TraceError, match=r"has ended .*pyarrow"):
        process.send(large)


def test_a_system_that_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(TraceError, match=r"cannot start a process that writes the trace \(No such file"):
        Scribe()


def test_one_that_ends_by_itself_is_not_to_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "COMMAND", "import os; os._exit(3)")
    with Scribe() as process, pytest.raises(TraceError, match="ended with status 3") as caught:
        process.hear(60.0)
    assert "resume" not in str(caught.value) and "memory" not in str(caught.value)


def test_one_that_is_deaf_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "COMMAND", "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(600)")
    monkeypatch.setattr(scribe, "PATIENCE", 0.2)
    with Scribe() as process, pytest.raises(TraceError, match="no longer listens, and was ended"):
        process.hear(60.0)
    assert process._process.returncode == -signal.SIGKILL


@pytest.fixture
def hurried() -> Iterator[None]:
    """Sockets that wait for nobody, as some libraries want them."""
    socket.setdefaulttimeout(0.001)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("hurried")
def test_it_may_take_its_time() -> None:
    with Scribe() as process:
        process.send({"step": np.zeros(2**22)})  # more than fits into a socket
        answer(process)


def test_beside_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    pair = socket.socketpair

    def high() -> tuple[socket.socket, ...]:
        ours, theirs = pair()
        with ours, theirs:
            return tuple(socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 1500)) for one in (ours, theirs))

    monkeypatch.setattr(socket, "socketpair", high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    try:
        with Scribe() as process:
            answer(process)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


ASKED = f"""
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import re
from sinklens.recording.scribe import Scribe
with Scribe() as process:
    process.send({{"begin": {{}}}})
    try:
        process.hear(60.0)
    except RuntimeError as error:
        print(bool(re.match({ANSWER!r}, str(error))))
"""
SOURCE = str(Path(sl.__file__).parents[1])
PACKAGES = str(Path(np.__file__).parents[1])
BASE = str(getattr(sys, "_base_executable", sys.executable))  # knows no virtual environment


@pytest.mark.parametrize(
    ("python", "options", "inserted", "variable"),
    [
        (BASE, ["-I", "-S"], [SOURCE, PACKAGES], ""),
        (sys.executable, ["-I"], [], "evil"),
        (BASE, [], [], f"{SOURCE}:{PACKAGES}"),
        (sys.executable, [], [], SOURCE),
    ],
    ids=["sys.path alone", "isolated", "PYTHONPATH", "source tree"],
)
def test_it_finds_what_its_parent_finds(
    tmp_path: Path, python: str, options: list[str], inserted: list[str], variable: str
) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "numpy.py").write_text("raise ImportError('the numpy of PYTHONPATH')")
    done = subprocess.run(
        [python, *options, "-c", ASKED, json.dumps(inserted)],
        env=os.environ | {"PYTHONPATH": str(evil) if variable == "evil" else variable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_it_never_loads_torch() -> None:
    """Here it would be found: the path is that of this process."""
    assert "torch" in sys.modules
    with Scribe() as process:
        answer(process)
        loaded = Path(f"/proc/{process._process.pid}/maps").read_text()
    assert "numpy" in loaded and "libtorch" not in loaded


PRESSED = f"""
import re, signal, time
from sinklens.recording.scribe import Scribe
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
process = Scribe()
try:
    print("started", flush=True)
    for _ in range(600):  # a signal right before a sleep does not end it
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
process.send({{"begin": {{}}}})
try:
    process.hear(60.0)
except RuntimeError as error:
    print(bool(re.match({ANSWER!r}, str(error))))
process.end()
"""


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4])
def test_an_interrupt_of_the_terminal_is_for_its_parent_alone(delay: float) -> None:
    command = [sys.executable, "-c", PRESSED]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        time.sleep(delay)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate(timeout=60) == ("interrupted\nTrue\n", "")


def test_a_message_that_was_cut_is_not_waited_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no memory for the rest of it; the other side waits for that, and says nothing."""

    def cut(channel: socket.socket, _: object) -> None:
        channel.sendall(b"12345678")
        raise OSError(errno.ENOBUFS, "No buffer space available")

    with Scribe() as process:
        answer(process)
        monkeypatch.setattr(scribe.wire, "send", cut)
        monkeypatch.setattr(scribe, "PATIENCE", 0.2)
        with pytest.raises(TraceError, match="no longer listens, and was ended"):
            process.send({"begin": {}})
