"""Samples that another process writes, beside the one that runs the model.

One interpreter does one thing at a time: rows and row groups made in threads of the process that runs the model keep it
from its card, and a step of a few milliseconds waits for them. So the numbers of a step go to another process as they
come, a few megabytes through a socket, and all else happens there (recording/serve.py). Two things come back: that a
sample is whole, or what went wrong. Nobody waits for the first: the next sample runs while the last row groups of one
are made and seen to the disk. The process ends with its socket, and with the one that started it; a Ctrl-C is for that
one alone, in whose group of processes it is not.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

from sinklens import errors
from sinklens.errors import SinklensError, TraceError
from sinklens.interrupts import interrupts_deferred
from sinklens.recording import wire
from sinklens.recording.local import Begin
from sinklens.recording.rows import StepNumbers
from sinklens.traces.files import Guard
from sinklens.traces.rows import SampleEnd

PATIENCE = 10.0  # seconds, for a process that has let go of its socket

# What keeps it from serving is told in a message as wire.py makes them, without numpy, which may be what is missing. At
# its end no thread is waited for.
COMMAND = """import json, os, socket, struct, sys
path, descriptor, parent = sys.argv[1:]
channel, status = socket.socket(fileno=int(descriptor)), 1
try:
    sys.path[:] = json.loads(path)
    from sinklens.recording.serve import serve
    serve(channel, int(parent))
    status = 0
except BaseException as error:
    told = f"the process that writes the trace has ended ({type(error).__name__}: {error})"
    head = json.dumps({"dict": [["error", "TraceError"], ["told", [told]]]}).encode()
    channel.sendall(struct.pack("<QQ", len(head), 0) + head)
finally:
    os._exit(status)
"""


class Scribe:
    """Starts the process. A context: it is gone afterwards."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._ended: deque[SentSample] = deque()  # of which it has not said yet that they are whole, in their order
        self._hearing = Lock()  # after an interrupt, two threads may
        with theirs:
            for end in (self._socket, theirs):
                end.setblocking(True)  # whatever the program's default is
            given = [json.dumps(_path()), str(theirs.fileno()), str(os.getpid())]
            alone = ["-I", "-X", f"utf8={sys.flags.utf8_mode}"]  # all that it finds is what this process finds
            command = [sys.executable, *alone, "-c", COMMAND, *given]
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0
                )
            except OSError as error:
                self._socket.close()
                raise TraceError(f"cannot start a process that writes the trace ({error.strerror})") from error

    def __enter__(self) -> "Scribe":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def sample(self, begin: Begin, guard: Guard) -> "SentSample":
        return SentSample(self, begin, guard)

    def send(self, message: dict[str, Any]) -> None:
        """Waits while the other side is behind; raises what went wrong there."""
        self.hear(patience=0.0)
        try:
            wire.send(self._socket, message)
        except OSError as error:
            while self.hear(patience=PATIENCE):  # what it said before it ended, which is its last word
                pass
            raise self._lost() from error

    def will_end(self, sample: "SentSample") -> None:
        """Its end is about to be sent."""
        self._ended.append(sample)

    def hear(self, patience: float) -> bool:
        """Whether there was a word within so many seconds: the first of those that have ended is whole. What went
        wrong is raised, as the error of that sample."""
        with self._hearing:
            return self._hear(patience)

    def wait_for(self, sample: "SentSample") -> None:
        """One whose word was lost, or was none of success, is not waited for again. An interrupt changes nothing."""
        with self._hearing:
            while sample in self._ended:
                self._hear(None)
        if not sample.whole:
            raise TraceError("the process that writes the trace has not finished a sample; resume")

    def _hear(self, patience: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if not waiting.poll(None if patience is None else patience * 1000):
            return False
        with interrupts_deferred():  # a word that is taken is noted
            sample = self._ended.popleft() if self._ended else None
            with nullcontext() if sample is None else sample.guard():
                self._receive()
            if sample is not None:
                sample.whole = True
        return True

    def stop(self) -> None:
        """At once, whatever it does. It may take a while to be gone."""
        self._socket.close()
        self._process.kill()

    def end(self) -> None:
        """At once, and it is gone."""
        self.stop()
        self._process.wait()

    def _receive(self) -> None:
        try:
            message = wire.receive(self._socket)
        except OSError as error:
            raise self._lost() from error
        if message is None:
            raise self._lost()
        if "error" in message:
            raise _error_of(message["error"], message["told"])

    def _lost(self) -> TraceError:
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.end()
            return TraceError("the process that writes the trace no longer listens, and was ended")
        ended = f"the process that writes the trace ended with status {status}"
        if status >= 0:
            return TraceError(f"{ended}; what it printed, if anything, says why")
        return TraceError(
            f"{ended} (-9: killed, which a system does that is short of memory); finished samples are kept: resume"
        )


class SentSample:
    """A sample that the other process writes."""

    def __init__(self, scribe: Scribe, begin: Begin, guard: Guard) -> None:
        self.guard, self.whole = guard, False
        self._scribe = scribe
        told = {name: vars(getattr(begin, name)) for name in ("storage", "spec", "wanted")}
        plain = {"number": begin.number, "steps": begin.steps, "prompt": begin.prompt}
        texts = {"folder": str(begin.folder), "manifest": json.dumps(begin.manifest)}
        self._send({"begin": plain | told | texts})

    def add(self, numbers: StepNumbers) -> None:
        seen = numbers.attention
        self._send({"step": vars(numbers) | {"attention": None if seen is None else vars(seen)}})

    def end(self, end: SampleEnd) -> None:
        """What is known now. It is `whole` when all of it is on the disk."""
        self._scribe.will_end(self)
        self._send({"end": vars(end)})

    def wait(self) -> None:
        """Until it is whole."""
        self._scribe.wait_for(self)

    def abandon(self) -> None:
        """The process with it: nobody knows how much of a message it has."""
        self._scribe.end()

    def _send(self, message: dict[str, Any]) -> None:
        with self.guard():
            self._scribe.send(message)


def _path() -> list[str]:
    """Where this process finds its packages, and found this one."""
    source = str(Path(errors.__file__).parents[1])
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return path if source in path else [source, *path]


def _error_of(name: str, told: tuple[Any, ...]) -> Exception:
    if name == "OSError":
        return OSError(*told)
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, SinklensError):
        return known(*told)
    return RuntimeError(f"{name} in the process that writes the trace: {told[0]}")
