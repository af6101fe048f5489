"""A trace survives whoever writes it: killed at any moment, out of disk, or two at once. Real processes."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytest

from sinklens.errors import TraceError, UsageError
from sinklens.traces import gather
from sinklens.traces import sample as sample_module
from sinklens.traces.files import SampleFiles
from sinklens.traces.joined import JoinedFile
from sinklens.traces.read import open_trace
from sinklens.traces.schema import TABLES
from sinklens.traces.write import TraceWriter
from traces.interrupted import SAMPLES, SMALL_BUFFER, write_all
from traces.synthetic import end_of, manifest, steps_of, write_samples, write_trace

TESTS = Path(__file__).parents[1]
CHANGING = ("created", "finished", "resumed")


def command(folder: Path, operation: str, count: int) -> dict[str, Any]:
    script = TESTS / "traces" / "interrupted.py"
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    return {
        "args": [sys.executable, str(script), str(folder), operation, str(count)],
        "env": os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.PIPE,
        "text": True,
    }


@pytest.fixture(scope="module", autouse=True)
def small_row_groups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_module, "BUFFER_BYTES", SMALL_BUFFER)
        patch.setattr(gather, "GROUP_BYTES", 1)
        patch.setattr(gather, "PART_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an uninterrupted run writes."""
    folder = tmp_path_factory.mktemp("traces") / "whole"
    write_all(folder)
    return folder


def assert_same(folder: Path, whole: Path) -> None:
    """Every table but the timing, and the manifest but for its dates."""
    one, other = open_trace(folder), open_trace(whole)
    assert one.samples == other.samples and one.complete and other.complete
    for name in TABLES:
        if name not in ("timing", "maps"):
            assert one.table(name).equals(other.table(name)), name
    plain = [{key: value for key, value in trace.manifest.items() if key not in CHANGING} for trace in (one, other)]
    assert plain[0] == plain[1]
    assert not list(folder.rglob("*.part"))


@pytest.mark.parametrize(
    ("operation", "count", "finished"),
    [
        ("replace", 1, None),  # before the first manifest
        ("write", 4, 0),
        ("write", 40, 1),
        ("close", 12, 1),
        ("fsync", 14, 1),
        ("mkdir", 4, 1),
        ("rename", 1, 0),  # everything is written, nothing renamed
        ("rename", 3, 2),
        ("replace", 2, 3),  # before the last manifest
    ],
)
def test_killed_at_any_moment(tmp_path: Path, whole: Path, operation: str, count: int, finished: int | None) -> None:
    folder = tmp_path / "a"
    killed = subprocess.run(**command(folder, operation, count), check=False)
    assert killed.returncode == -signal.SIGKILL
    if finished is None:
        with pytest.raises(TraceError, match="is not a trace"):
            open_trace(folder)
    else:
        trace = open_trace(folder)
        assert not trace.complete
        assert trace.samples == list(range(finished))
        for sample in trace.samples:  # what is there is whole
            one, other = (opened.table("attention", samples=[sample]) for opened in (trace, open_trace(whole)))
            assert one.equals(other)
        with TraceWriter.create(folder, manifest(), samples=SAMPLES, resume=True) as writer:
            assert writer.missing == list(range(finished, SAMPLES))
    write_all(folder)
    assert_same(folder, whole)


def test_killed_again_and_again(tmp_path: Path, whole: Path) -> None:
    """Every resume gets a little further."""
    folder = tmp_path / "a"
    for _ in range(SAMPLES):
        assert subprocess.run(**command(folder, "rename", 2), check=False).returncode in (-signal.SIGKILL, 0)
    assert subprocess.run(**command(folder, "rename", 0), check=False).returncode == 0
    assert_same(folder, whole)
    assert len(open_trace(folder).manifest["resumed"]) == 2


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    full = subprocess.run(**command(folder, "fill", 40_000), check=False)
    assert full.returncode == 3, full.stdout
    assert "TraceError: cannot write sample 1 to" in full.stdout
    assert "File too large" in full.stdout and "finished samples are kept" in full.stdout
    assert "MiB are free on that disk; make room and resume" in full.stdout
    trace = open_trace(folder)
    assert trace.samples == [0] and trace.layer(0, 2, groups=True, norms=True).received.shape == (4, 4, 12)
    assert not list(folder.rglob("*.part"))
    write_all(folder, growing=True)
    write_all(tmp_path / "whole", growing=True)
    assert_same(folder, tmp_path / "whole")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("table", ["attention", "steps"])
def test_a_full_disk_under_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """What a file has buffered is refused when it is closed, too."""
    path = SampleFiles._path
    full = lambda self, name: Path("/dev/full") if name == table else path(self, name)  # noqa: E731
    monkeypatch.setattr(SampleFiles, "_path", full)
    with pytest.raises(
        TraceError, match=r"sample 0 .*No space left.*finished samples are kept; .*make room and resume"
    ):
        write_trace(tmp_path / "a")
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("*.parquet"))


def test_an_interrupt_while_row_groups_are_made_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_trace(write_trace(tmp_path / "whole"))
    results, result = iter(range(1000)), Future.result

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        if current_thread() is main_thread() and next(results) == 1:
            raise KeyboardInterrupt
        return result(self, timeout)

    with TraceWriter.create(tmp_path / "a", manifest(), samples=2) as writer:
        for number in writer.missing:
            with writer.sample(number) as sample:
                for rows in steps_of(number):
                    sample.add(rows)
                with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                    patch.setattr(Future, "result", interrupted)
                    sample._makers.settle()
                sample.end(end_of(number))
        writer.finish()
    assert next(results) > 1
    assert open_trace(tmp_path / "a").table("attention").equals(whole.table("attention"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("method", ["append", "close"])
def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, code: int) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    with TraceWriter.create(tmp_path / "a", manifest(), samples=2) as writer:
        with writer.sample(0) as sample:
            sample.end(end_of(0))
        with monkeypatch.context() as patch:
            patch.setattr(JoinedFile, method, refuse)
            advice = "make room and resume" if code != errno.EIO else "see to that and resume"
            with pytest.raises(
                TraceError, match=rf"sample 1 .*{os.strerror(code)}.*finished samples are kept; .*{advice}"
            ):
                write_samples(writer)
        assert writer.missing == [1] and not list(tmp_path.rglob("*.part"))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    holder = subprocess.Popen(**command(folder, "hold", 0))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
        with pytest.raises(TraceError, match=r"another process is writing to .*; wait for it to end"):
            TraceWriter.create(folder, manifest(), samples=SAMPLES, resume=True)
        assert open_trace(folder).samples == []  # reading is free
    finally:
        holder.kill()
        holder.communicate()
    TraceWriter.create(folder, manifest(), samples=SAMPLES, resume=True).close()


def test_an_exception_leaves_nothing_of_the_sample(tmp_path: Path) -> None:
    with TraceWriter.create(tmp_path / "a", manifest(), samples=1) as writer:
        for error in (KeyError("mine"), KeyboardInterrupt(), OSError(errno.ENOSPC, "of the model, not ours")):
            with pytest.raises(type(error)), writer.sample(0) as sample:
                sample.add(next(iter(steps_of(0))))
                raise error
            assert writer.missing == [0] and not list((tmp_path / "a" / "samples").iterdir())
        write_samples(writer)
        writer.finish()
    assert open_trace(tmp_path / "a").complete


def test_an_existing_trace_is_not_overwritten(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "a")
    with pytest.raises(UsageError, match=r"already holds a trace that is complete \(2 of 2 samples\)"):
        TraceWriter.create(folder, manifest(), samples=2)
    (folder / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"is not empty and holds no trace \(samples\); give a new or an empty folder"):
        TraceWriter.create(folder, manifest(), samples=2)


@pytest.mark.parametrize("theirs", ["manifest.json", "samples/kick.wav", "samples/kick.part/a", "mine.part"])
def test_files_of_somebody_else_are_refused_whatever_they_are_called(tmp_path: Path, theirs: str) -> None:
    (tmp_path / theirs).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / theirs).write_text('{"name": "my web app"}')
    named = theirs.partition("/")[0]
    with pytest.raises(UsageError, match=rf"is not empty and holds no trace \({named}\)"):
        TraceWriter.create(tmp_path, manifest(), samples=2)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / theirs]


def test_what_is_not_ours_outlives_a_trace(tmp_path: Path) -> None:
    """Hidden things, which are not refused, and what is put beside a trace."""
    (tmp_path / ".cache.part").mkdir()
    (tmp_path / ".movie.part").write_text("theirs")
    TraceWriter.create(tmp_path, manifest(), samples=2).close()
    (tmp_path / "samples" / "00000.part").mkdir()
    (tmp_path / "samples" / "notes.part").write_text("theirs")
    (tmp_path / "mine.part").write_text("theirs")
    (tmp_path / f".manifest.json.{'0' * 32}.part").write_text("ours")
    TraceWriter.create(tmp_path, manifest(), samples=2, resume=True).close()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.part")}
    assert left == {".cache.part", ".movie.part", "samples/notes.part", "mine.part"}


def test_resume_needs_a_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is nothing to resume in .*; leave resume out"):
        TraceWriter.create(tmp_path / "a", manifest(), samples=2, resume=True)
    assert not (tmp_path / "a").exists()


def test_resume_needs_the_same_settings(tmp_path: Path) -> None:
    TraceWriter.create(tmp_path / "a", manifest(), samples=2).close()
    other = manifest(detail="sinks", fingerprint={"seed": 1, "sampler": {"steps": 4}, "task": "gsm8k"})
    with pytest.raises(UsageError, match="holds a trace of another run") as caught:
        TraceWriter.create(tmp_path / "a", other, samples=3, resume=True)
    message = str(caught.value)
    assert 'detail: "full" there, "sinks" now' in message and "samples: 2 there, 3 now" in message
    assert "fingerprint.seed: 0 there, 1 now" in message and 'fingerprint.task: nothing there, "gsm8k" now' in message
    assert "fingerprint.sampler" not in message and "model" not in message
    with pytest.raises(UsageError, match=r"storage: .*\"received_bits\": 12.* there"):
        TraceWriter.create(tmp_path / "a", manifest(), samples=2, resume=True, exact=True)


def test_resume_of_a_complete_trace_changes_nothing_unless_a_sample_is_gone(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "a")
    before = (folder / "manifest.json").read_text()
    with TraceWriter.create(folder, manifest(), samples=2, resume=True) as writer:
        assert writer.missing == [] and writer.finished == [0, 1]
    assert (folder / "manifest.json").read_text() == before
    for file in (folder / "samples" / "00001").iterdir():
        file.unlink()
    (folder / "samples" / "00001").rmdir()
    with TraceWriter.create(folder, manifest(), samples=2, resume=True) as writer:
        assert writer.missing == [1] and not open_trace(folder).complete
        write_samples(writer)
        writer.finish()
    assert_same(folder, write_trace(tmp_path / "b"))


def test_misuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the manifest lacks fingerprint, model\.family"):
        broken = manifest()
        del broken["fingerprint"], broken["model"]["family"]
        TraceWriter.create(tmp_path / "a", broken, samples=1)
    with pytest.raises(UsageError, match="unknown detail 'half'; expected one of 'full', 'sinks'"):
        TraceWriter.create(tmp_path / "a", manifest(detail="half"), samples=1)
    with pytest.raises(UsageError, match="samples is 0; a trace has at least 1"):
        TraceWriter.create(tmp_path / "a", manifest(), samples=0)
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        TraceWriter.create(tmp_path / "a", manifest(prompts={1, 2}), samples=1)
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match=r"cannot write to .*file"):
        TraceWriter.create(tmp_path / "file" / "a", manifest(), samples=1)
    assert not (tmp_path / "a").exists()
    with TraceWriter.create(tmp_path / "a", manifest(), samples=2) as writer:
        with pytest.raises(UsageError, match=r"samples \[0, 1\] are not written yet"):
            writer.finish()
        with pytest.raises(UsageError, match="sample 0 has no end"), writer.sample(0):
            pass
        with pytest.raises(UsageError, match=r"sample 2 is not missing; to be written are \[0, 1\]"), writer.sample(2):
            pass
        assert writer.missing == [0, 1]


def test_steps_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    writer = TraceWriter.create(tmp_path / "a", manifest(), samples=1)
    first, second, *_ = steps_of(0)
    bare = next(iter(steps_of(0, norms=False)))
    causal = next(iter(steps_of(0, causal=True)))
    cases: list[tuple[str, list[Any]]] = [
        ("step 1 came where the sample takes step 0; add every step, in order, from 0", [second]),
        ("step 1 has other layers, heads, groups or missing arrays", [bare, second]),
        ("unknown group 'last_row'; expected one of 'masked', 'unmasked'", [causal]),
    ]
    with writer:
        for message, steps in cases:
            with pytest.raises(UsageError, match=message), writer.sample(0) as sample:
                for rows in steps:
                    sample.add(rows)
        ended = "step 1 came where the sample takes no step, it has ended"
        with pytest.raises(UsageError, match=ended), writer.sample(0) as sample:
            sample.add(first)
            sample.end(end_of(0))
            sample.add(second)


@pytest.mark.parametrize("detail", ["full", "sinks"])
def test_a_sample_without_stored_attention_can_be_read(tmp_path: Path, detail: str) -> None:
    with TraceWriter.create(tmp_path / "a", manifest(detail=detail), samples=1) as writer:
        with writer.sample(0) as sample:
            sample.end(end_of(0))
        writer.finish()
    trace = open_trace(tmp_path / "a")
    assert trace.layer(0, 1, groups=True, norms=True).received.shape == (0, 4, 12)
    assert trace.canvases(0).ids.shape == (0, 12)
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["complete"]
