"""A process that writes samples, beside the one that runs the model.

One interpreter does one thing at a time: rows and row groups made in threads of the process that runs the model keep it
from its card, and a step of a few milliseconds waits for them. So the numbers of a step go to another process as they
come, a few megabytes through a socket, and all else happens there. It knows no torch.

Two things come back: that a sample is whole, or what went wrong. The process ends with its socket, and with its parent.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from select import select
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Int

from sinklens import errors
from sinklens.errors import SinklensError, TraceError
from sinklens.recording import wire
from sinklens.recording.rows import AttentionNumbers, RowMaker, StepNumbers
from sinklens.recording.wanted import Wanted
from sinklens.traces.files import Guard, warm_up
from sinklens.traces.makers import Makers
from sinklens.traces.rows import SampleEnd
from sinklens.traces.sample import SampleWriter
from sinklens.traces.storage import Storage
from sinklens.types import ModelSpec

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, MUCH = -1, -3, 2**31 - 1  # of glibc's mallopt
COMMAND = (
    "import sys; source, *given = sys.argv[1:]; sys.path.insert(0, source); "
    "from sinklens.recording.scribe import serve; serve(*map(int, given))"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Begin:
    """A sample that is to be written."""

    folder: Path
    number: int
    steps: int  # it is likely to have
    manifest: dict[str, Any]
    storage: Storage
    spec: ModelSpec
    wanted: Wanted
    prompt: Int[np.ndarray, " position"]


class LocalSample:
    """A sample that this process writes."""

    def __init__(self, begin: Begin, guard: Guard, makers: Makers | None = None) -> None:
        self._writer = SampleWriter(
            begin.folder,
            begin.number,
            manifest=begin.manifest,
            storage=begin.storage,
            guard=guard,
            makers=makers,
            steps=begin.steps,
        )
        self._maker = RowMaker(begin.spec, begin.wanted, begin.prompt)
        self._copy = begin.wanted.detail == "sinks"  # whose steps wait for their neighbours

    def add(self, numbers: StepNumbers) -> None:
        """Arrays of `numbers` are not looked at afterwards."""
        self._writer.add(self._maker.rows(numbers), copy=self._copy)

    def end(self, end: SampleEnd) -> None:
        """What is known now; then all of it is on the disk."""
        self._writer.end(end)
        self._writer.close()

    def abandon(self) -> None:
        self._writer.abandon()


class Scribe:
    """Starts the process, and another one where it was ended. A context: the process is gone afterwards."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._start()

    def __enter__(self) -> "Scribe":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def sample(self, begin: Begin, guard: Guard) -> "SentSample":
        if self._process is None:
            self._start()
        return SentSample(self, begin, guard)

    def send(self, message: dict[str, Any]) -> None:
        """Waits while the other side is behind; raises what went wrong there."""
        assert self._socket is not None
        if select([self._socket], [], [], 0)[0]:
            self.receive()
        try:
            wire.send(self._socket, message)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> None:
        """Wait for the word that a sample is whole."""
        assert self._socket is not None
        try:
            message = wire.receive(self._socket)
        except OSError as error:
            raise self._lost() from error
        if message is None:
            raise self._lost()
        if "error" in message:
            raise _error_of(message["error"], message["told"])

    def end(self) -> None:
        """At once, whatever it does."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        source = str(Path(errors.__file__).parents[1])
        command = [sys.executable, "-c", COMMAND, source, str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        self._socket = ours

    def _lost(self) -> TraceError:
        status = None if self._process is None else self._process.wait()
        return TraceError(
            f"the process that writes the trace ended with status {status} (-9: killed, which a system does that is "
            "short of memory); finished samples are kept: resume"
        )


class SentSample:
    """A sample that the other process writes."""

    def __init__(self, scribe: Scribe, begin: Begin, guard: Guard) -> None:
        self._scribe, self._guard = scribe, guard
        told = {name: vars(getattr(begin, name)) for name in ("storage", "spec", "wanted")}
        plain = {"number": begin.number, "steps": begin.steps, "prompt": begin.prompt}
        texts = {"folder": str(begin.folder), "manifest": json.dumps(begin.manifest)}
        self._send({"begin": plain | told | texts})

    def add(self, numbers: StepNumbers) -> None:
        seen = numbers.attention
        self._send({"step": vars(numbers) | {"attention": None if seen is None else vars(seen)}})

    def end(self, end: SampleEnd) -> None:
        """What is known now; waits until all of it is on the disk."""
        self._send({"end": vars(end)})
        with self._guard():
            self._scribe.receive()

    def abandon(self) -> None:
        """The process with it: nobody knows how much of a message it has."""
        self._scribe.end()

    def _send(self, message: dict[str, Any]) -> None:
        with self._guard():
            self._scribe.send(message)


def serve(descriptor: int, parent: int) -> None:
    """The other process: write what comes, until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    _keep_memory()
    _end_with(parent)
    channel = socket.socket(fileno=descriptor)
    makers = Makers(Lock())
    warm_up(makers)
    sample: LocalSample | None = None
    while (message := wire.receive(channel)) is not None:
        try:
            if "begin" in message:
                sample = LocalSample(_begin(**message["begin"]), nullcontext, makers)
            elif sample is not None and "step" in message:
                sample.add(_numbers(**message["step"]))
            elif sample is not None and "end" in message:
                sample.end(SampleEnd(**message["end"]))
                sample = None
                wire.send(channel, {})
        except Exception as error:  # told to the other side, whatever it is
            if sample is not None:
                sample.abandon()
            sample = None  # what follows is of no use
            wire.send(channel, _told(error))


def _begin(*, folder: str, manifest: str, storage: Any, spec: Any, wanted: Any, **plain: Any) -> Begin:
    return Begin(
        folder=Path(folder),
        manifest=json.loads(manifest),
        storage=Storage(**storage),
        spec=ModelSpec(**spec),
        wanted=Wanted(**wanted | {"maps": frozenset(wanted["maps"])}),
        **plain,
    )


def _numbers(*, attention: Any, **plain: Any) -> StepNumbers:
    return StepNumbers(attention=None if attention is None else AttentionNumbers(**attention), **plain)


def _keep_memory() -> None:
    """What was used for one step serves the next: on a virtual machine fresh memory costs more than what is done in it.

    glibc gives large pieces back at once, and pyarrow's own allocators after a while.
    """
    import pyarrow as pa

    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_TRIM_THRESHOLD, MUCH)
        mallopt(M_MMAP_THRESHOLD, 2**30)
        pa.set_memory_pool(pa.system_memory_pool())


def _end_with(parent: int) -> None:
    """When the process that started this one ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was over before
        os._exit(0)


def _told(error: Exception) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno is not None:
        return {"error": "OSError", "told": (error.errno, error.strerror)}
    return {"error": type(error).__name__, "told": (str(error),)}


def _error_of(name: str, told: tuple[Any, ...]) -> Exception:
    if name == "OSError":
        return OSError(*told)
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, SinklensError):
        return known(*told)
    return RuntimeError(f"{name} in the process that writes the trace: {told[0]}")
