"""Threads that make row groups: once in each, and no thread that waits for one which cannot be started."""

import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from sinklens.errors import UsageError
from sinklens.traces import gather, makers
from sinklens.traces import sample as sample_module
from sinklens.traces.files import SampleFiles
from sinklens.traces.makers import Makers
from sinklens.traces.read import open_trace
from sinklens.traces.sample import SampleWriter
from sinklens.traces.storage import Storage
from sinklens.traces.write import TraceWriter
from traces.synthetic import end_of, manifest, steps_of


def test_once_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(makers, "THREADS", 3)
    found: list[int] = []
    made = Makers()
    made.each(lambda: found.append(threading.get_ident()))
    made.close()
    assert len(set(found)) == 3


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were do not wait for them for ever."""
    start, started = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(makers, "THREADS", 4)
    monkeypatch.setattr(threading.Thread, "start", limited)
    made, found = Makers(), []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        made.each(lambda: found.append(0))
    made._threads.shutdown(wait=False, cancel_futures=True)
    for thread in started:
        thread.join(10)
    assert not found and not any(thread.is_alive() for thread in started)


def test_an_interrupt_while_work_is_thrown_away_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C comes while what the first one left is cancelled."""
    monkeypatch.setattr(makers, "THREADS", 1)
    made, cancel, interrupts = Makers(), Future.cancel, [KeyboardInterrupt]

    def interrupted(self: "Future[object]") -> bool:
        if interrupts:
            raise interrupts.pop()
        return cancel(self)

    def work(_: object) -> memoryview:
        time.sleep(0.02)
        return memoryview(b"")

    for _ in range(5):
        made.make(work, lambda *_: None)
    monkeypatch.setattr(Future, "cancel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.drop()
    made.drop()
    made.close()
    assert not any("sinklens" in thread.name for thread in threading.enumerate())


def test_threads_outlive_a_sample_that_was_given_up(tmp_path: Path) -> None:
    shared = Makers()
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        writer = SampleWriter(folder, 0, manifest=manifest(), storage=Storage(), guard=nullcontext, makers=shared)
        for rows in steps_of(0):
            writer.add(rows)
        if number == 1:
            writer.abandon()
        else:
            writer.end(end_of(0))
            writer.close()
    shared.close()
    assert (tmp_path / "0/attention.parquet").read_bytes() == (tmp_path / "2/attention.parquet").read_bytes()


def test_steps_that_an_interrupt_may_have_lost_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who catches it and goes on would have a trace that lacks rows, and says that it is complete."""
    monkeypatch.setattr(gather, "PART_BYTES", 1)
    monkeypatch.setattr(sample_module, "BUFFER_BYTES", 1)
    write, calls = SampleFiles.write, []

    def interrupted(self: SampleFiles, *given: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SampleFiles, "write", interrupted)
    with TraceWriter.create(tmp_path / "a", manifest(), samples=1) as writer:
        with (
            pytest.raises(UsageError, match="an interrupt came while steps left for the disk"),
            writer.sample(0) as one,
        ):
            for rows in steps_of(0):
                with suppress(KeyboardInterrupt):
                    one.add(rows)
        with writer.sample(0) as again:
            for rows in steps_of(0):
                again.add(rows)
            again.end(end_of(0))
        writer.finish()
    assert open_trace(tmp_path / "a").layer(0, 1).steps.tolist() == [rows.step for rows in steps_of(0)]
