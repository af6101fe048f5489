"""Samples that another process writes, beside the one that runs the model.

One interpreter does one thing at a time: rows and row groups made in threads of the process that runs the model keep it
from its card, and a step of a few milliseconds waits for them. So the numbers of a step go to another process as they
come, a few megabytes through a socket, and all else happens there (recording/serve.py). Two things come back: that a
sample is whole, or what went wrong. The process ends with its socket, and with the one that started it.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Any

from sinklens import errors
from sinklens.errors import SinklensError, TraceError
from sinklens.recording import wire
from sinklens.recording.local import Begin
from sinklens.recording.rows import StepNumbers
from sinklens.traces.files import Guard
from sinklens.traces.rows import SampleEnd

COMMAND = (
    "import sys; source, *given = sys.argv[1:]; sys.path.insert(0, source); "
    "from sinklens.recording.serve import serve; serve(*map(int, given))"
)


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
        command = [sys.executable, "-P", "-c", COMMAND, source, str(theirs.fileno()), str(os.getpid())]
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


def _error_of(name: str, told: tuple[Any, ...]) -> Exception:
    if name == "OSError":
        return OSError(*told)
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, SinklensError):
        return known(*told)
    return RuntimeError(f"{name} in the process that writes the trace: {told[0]}")
