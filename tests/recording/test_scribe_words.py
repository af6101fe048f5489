"""What the process that writes says, word by word: nobody else takes it, nothing of it is lost."""

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import closing, nullcontext

import pytest

from sinklens.errors import TraceError
from sinklens.recording import scribe, wire
from sinklens.recording.scribe import Scribe


class Told:
    """A scribe of whose process the test says the words."""

    def __init__(self) -> None:
        self.scribe = Scribe.__new__(Scribe)
        self.scribe._socket, self.there = socket.socketpair()
        self.scribe._ended, self.scribe._hearing = deque(), self
        self.scribe._process = subprocess.Popen(["true"])
        self.sample = scribe.SentSample.__new__(scribe.SentSample)
        self.sample.guard, self.sample.whole, self.sample._scribe = nullcontext, False, self.scribe
        self.scribe.will_end(self.sample)
        self.held: list[int] = []

    def __enter__(self) -> None:
        """In place of the lock."""
        self.held.append(1)

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    with closing(made.there), closing(made.scribe._socket):
        yield made
    made.scribe._process.wait()


def test_nobody_else_takes_the_word_that_is_waited_for(told: Told) -> None:
    """After two interrupts another thread may be sending, and hear. One hold from the question to the word."""
    wire.send(told.there, {})
    told.sample.wait()
    assert told.sample.whole and told.held == [1]


def test_an_interrupt_does_not_lose_a_word_that_is_taken(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    wire.send(told.there, {})
    receive = wire.receive
    monkeypatch.setattr(wire, "receive", lambda channel: (os.kill(os.getpid(), signal.SIGINT), receive(channel))[1])
    with pytest.raises(KeyboardInterrupt):
        told.sample.wait()
    assert told.sample.whole


def test_its_last_word_is_heard_behind_the_end_of_a_sample(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    send = wire.send

    def breaks(*_: object) -> None:
        for word in ({}, {"error": "TraceError", "told": ("9 GiB are not to be had",)}):
            send(told.there, word)
        told.there.close()
        raise BrokenPipeError

    monkeypatch.setattr(wire, "send", breaks)
    with pytest.raises(TraceError, match="9 GiB are not to be had"):
        told.scribe.send({"step": 1})
    assert told.sample.whole
