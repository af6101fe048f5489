"""Samples that another process writes: the same bytes, the same errors, and nothing left of it."""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest

import sinklens as sl
from sinklens import run
from sinklens.errors import TraceError, UsageError
from sinklens.recording import scribe, serve
from sinklens.recording.scribe import Scribe
from sinklens.traces.folder import finished_samples

PROMPT = [1, 5, 9, 3]
SAMPLERS = {
    "llada": sl.LLaDASampler(steps=8, length=8, block=4),
    "dream": sl.DreamSampler(steps=8, length=8, alg="entropy"),
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[Scribe]:
    """Whatever a trace writes, another process does; those that were started."""
    started: list[Scribe] = []
    start = Scribe.__init__

    def noted(self: Scribe) -> None:
        start(self)
        started.append(self)

    monkeypatch.setattr(run, "wants_scribe", lambda _: True)
    monkeypatch.setattr(Scribe, "__init__", noted)
    return started


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.parquet"))
        if path.name != "timing.parquet"
    }


@pytest.mark.parametrize("options", [{}, {"detail": "sinks"}, {"exact": True, "maps": [(1, 2, 3)], "norms": False}])
@pytest.mark.parametrize("family", SAMPLERS)
def test_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, options: dict[str, Any]
) -> None:
    model = sl.load(golden / family)
    given = {"prompts": [PROMPT, PROMPT[:2]], "sampler": SAMPLERS[family], **options}
    sl.trace(model, to=tmp_path / "here", **given)
    monkeypatch.setattr(run, "wants_scribe", lambda _: True)
    made = sl.trace(model, to=tmp_path / "there", **given)
    assert made.complete and files_of(tmp_path / "there") == files_of(tmp_path / "here") != {}


def test_a_causal_run(tmp_path: Path, elsewhere: list[Scribe], monkeypatch: pytest.MonkeyPatch) -> None:
    model, sampler = sl.load("tiny-llama"), sl.AutoregressiveSampler(length=5)
    sl.trace(model, "Question: 1 + 1", sampler, to=tmp_path / "there", layers=[1, 4], heads=[0, 2], every=2)
    assert len(elsewhere) == 1
    monkeypatch.setattr(run, "wants_scribe", lambda _: False)
    sl.trace(model, "Question: 1 + 1", sampler, to=tmp_path / "here", layers=[1, 4], heads=[0, 2], every=2)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"every": 3}, {"detail": "sinks"}])
def test_steps_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Numbers are lent from where they arrived; launched steps give the same ones, but for rounding."""
    model, prompts = sl.load("tiny-llada", device="cuda"), ["Question: 1 + 1 = ?", "Question: 2 + 3 = ?"]
    given: dict[str, Any] = {"prompts": prompts, "sampler": sl.LLaDASampler(steps=40, length=40, block=20), **options}
    here = sl.trace(model, to=tmp_path / "here", graph=True, **given)
    launched = sl.trace(model, to=tmp_path / "launched", **given)
    monkeypatch.setattr(run, "wants_scribe", lambda _: True)
    sl.trace(model, to=tmp_path / "there", graph=True, **given)
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here") != {}
    for sample in here.samples:
        ours, theirs = (trace.layer(sample, 3, groups=True, norms=True) for trace in (here, launched))
        np.testing.assert_array_equal(ours.steps, theirs.steps)
        np.testing.assert_allclose(ours.received, theirs.received, rtol=2e-3, atol=1e-3)
        np.testing.assert_allclose(ours.key_norm, theirs.key_norm, rtol=2e-2)


def traced(golden: Path, folder: Path, **options: Any) -> Any:
    return sl.trace(sl.load(golden / "llada"), [PROMPT, PROMPT[:2]], SAMPLERS["llada"], to=folder, **options)


def at_step(step: int, act: Callable[[], None]) -> Callable[[int, int, int], None]:
    return lambda sample, _, done: act() if (sample, done) == (1, step) else None


def test_a_process_that_is_killed(golden: Path, tmp_path: Path, elsewhere: list[Scribe]) -> None:
    folder = tmp_path / "a"

    def kill() -> None:
        elsewhere[-1]._process.kill()

    with pytest.raises(TraceError, match=r"process that writes the trace ended with status -9 .*: resume"):
        traced(golden, folder, progress=at_step(3, kill))
    assert sl.open_trace(folder).samples in ([], [0]) and not list(folder.rglob("*.part"))
    traced(golden, folder, resume=True)
    traced(golden, tmp_path / "whole")
    assert files_of(folder) == files_of(tmp_path / "whole")


SLOW = """from sinklens.recording import local
    import time
    end = local.LocalSample.end
    local.LocalSample.end = lambda *given: (time.sleep(0.7), end(*given))
    serve("""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, elsewhere: list[Scribe]) -> list[Scribe]:
    """The disk takes its time."""
    monkeypatch.setattr(scribe, "COMMAND", scribe.COMMAND.replace("serve(", SLOW))
    return elsewhere


@pytest.mark.usefixtures("slow")
def test_the_next_sample_runs_while_one_is_written(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: dict[tuple[int, int], int] = {}
    folder = tmp_path / "a"

    def progress(sample: int, _: int, done: int) -> None:
        there[sample, done] = len(finished_samples(folder))

    assert traced(golden, folder, progress=progress).complete
    assert there[1, 1] == 0
    monkeypatch.setattr(run, "wants_scribe", lambda _: False)
    traced(golden, tmp_path / "here")
    assert files_of(folder) == files_of(tmp_path / "here") != {}


def test_a_sample_is_in_its_place_as_soon_as_it_is_whole(golden: Path, tmp_path: Path, slow: list[Scribe]) -> None:
    """Not only when the next one has ended."""
    there = {}

    def progress(sample: int, _: int, done: int) -> None:
        there[sample, done] = finished_samples(tmp_path / "a")
        word = select.poll()
        word.register(slow[0]._socket, select.POLLIN)
        while (sample, done) == (1, 3) and slow[0]._ended and not word.poll(100):
            pass
        time.sleep(0.1 * sample)  # the numbers of the step are sent behind the run

    traced(golden, tmp_path / "a", progress=progress)
    assert there[1, 1] == [] and there[1, 8] == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("step", [1, 8])
def test_an_error_in_the_next_sample_does_not_lose_one_that_has_ended(
    golden: Path, tmp_path: Path, slow: list[Scribe], error: type[BaseException], step: int
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        traced(golden, tmp_path / "a", progress=at_step(step, fail))
    assert sl.open_trace(tmp_path / "a").samples == [0] and not list(tmp_path.rglob("*.part"))
    assert slow[0]._process.returncode is not None


HELD = """from sinklens.recording import local
    import itertools, os, time
    end, number = local.LocalSample.end, itertools.count()
    def held(*given):
        go = os.environ["SINKLENS_GO"] + str(next(number))
        while not os.path.exists(go):
            time.sleep(0.01)
        end(*given)
    local.LocalSample.end = held
    serve("""


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("held", "kept"), [(0, [0]), (1, [0, 1])])
def test_an_interrupt_while_the_disk_is_waited_for(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, kept: list[int]
) -> None:
    """All steps are done, and one of the samples is still being seen to the disk."""
    go, waits, wait = [tmp_path / f"go{number}" for number in range(2)], [], scribe.SentSample.wait

    def waited(sample: Any) -> None:
        if sample not in waits:
            waits.append(sample)
            if len(waits) == held + 1:
                Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                Timer(0.6, go[held].touch).start()
        wait(sample)

    monkeypatch.setenv("SINKLENS_GO", str(tmp_path / "go"))
    monkeypatch.setattr(scribe, "COMMAND", scribe.COMMAND.replace("serve(", HELD))
    monkeypatch.setattr(scribe.SentSample, "wait", waited)
    go[1 - held].touch()
    with pytest.raises(KeyboardInterrupt):
        traced(golden, tmp_path / "a")
    assert sl.open_trace(tmp_path / "a").samples == kept and not list(tmp_path.rglob("*.part"))
    go[held].touch()
    assert traced(golden, tmp_path / "a", resume=True).complete


def test_a_process_killed_while_a_sample_waits_for_it(golden: Path, tmp_path: Path, slow: list[Scribe]) -> None:
    """Its word will not come, and is not waited for."""

    def kill() -> None:
        slow[-1]._process.kill()

    with pytest.raises(TraceError, match=r"ended with status -9 .*: resume"):
        traced(golden, tmp_path / "a", progress=at_step(1, kill))
    assert sl.open_trace(tmp_path / "a").samples == [] and not list(tmp_path.rglob("*.part"))


def test_an_interrupt_ends_the_process(golden: Path, tmp_path: Path, elsewhere: list[Scribe]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced(golden, tmp_path / "a", progress=at_step(3, interrupt))
    assert sl.open_trace(tmp_path / "a").samples == [0] and not list(tmp_path.rglob("*.part"))
    assert elsewhere[0]._process.returncode is not None
    assert traced(golden, tmp_path / "a", resume=True).complete


def test_a_disk_that_refuses_is_told_as_here(
    golden: Path, tmp_path: Path, elsewhere: list[Scribe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds for the process alone, which inherits it."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); {scribe.COMMAND}"
    monkeypatch.setattr(scribe, "COMMAND", "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); " + code)
    with pytest.raises(
        TraceError, match=r"cannot write sample 0 to .*File too large.*finished samples are kept; .*make room"
    ):
        traced(golden, tmp_path / "a")
    assert not list(tmp_path.rglob("*.part")) and elsewhere[0]._process.returncode is not None


def test_none_is_started_where_nothing_is_written(golden: Path, tmp_path: Path, elsewhere: list[Scribe]) -> None:
    traced(golden, tmp_path / "a")
    assert len(elsewhere) == 1
    assert traced(golden, tmp_path / "a", resume=True).complete
    with pytest.raises(UsageError, match="already holds a trace that is complete"):
        traced(golden, tmp_path / "a")
    assert len(elsewhere) == 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), OSError),
        (TraceError("ours"), TraceError),
        (ValueError("theirs"), RuntimeError),
    ],
)
def test_what_went_wrong_is_told(raised: Exception, expected: type[Exception]) -> None:
    told = serve._told(raised)
    error = scribe._error_of(told["error"], told["told"])
    assert type(error) is expected and str(raised) in str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends with its socket alone")
def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Killed, with the process in the middle of nothing: nobody closes a socket."""
    code = (
        "from sinklens.recording.scribe import Scribe; import time, sys; s = Scribe();"
        "print(s._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    for _ in range(100):
        if not running(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("it lives on")


def running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_it_imports_no_torch() -> None:
    code = "import sinklens.recording.scribe, sinklens.recording.serve, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


KILLED = """
import sys
from pathlib import Path
import sinklens as sl
from sinklens import run
from sinklens.traces import sample
run.wants_scribe = lambda _: True
sample.BUFFER_BYTES = 20_000
golden, folder, resume = Path(sys.argv[1]), Path(sys.argv[2]), (Path(sys.argv[2]) / "manifest.json").exists()
sampler = sl.LLaDASampler(steps=32, length=32, block=8)
sl.trace(sl.load(golden / "llada"), [[1, 5, 9, 3], [1, 5], [7]], sampler, to=folder, resume=resume,
         progress=lambda sample, _, done: print(sample, done, flush=True))
"""


@pytest.mark.parametrize("moment", ["0 1", "0 31", "0 32", "1 7", "2 32"])
def test_killed_while_another_process_writes(golden: Path, tmp_path: Path, moment: str) -> None:
    """It is killed with it; what was finished is whole, and a resume gives the bytes of an undisturbed run."""

    def start(folder: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", KILLED, str(golden), str(folder)], stdout=subprocess.PIPE, text=True
        )

    with start(tmp_path / "whole") as undisturbed:
        undisturbed.communicate()
    with start(tmp_path / "a") as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != moment:
            pass
        process.kill()
    finished = sl.open_trace(tmp_path / "a").samples
    ended = int(moment[0]) + moment.endswith("32")
    assert finished == list(range(len(finished))) and ended - 2 <= len(finished) <= ended
    with start(tmp_path / "a") as again:
        again.communicate()
    assert again.returncode == 0 and sl.open_trace(tmp_path / "a").complete
    assert files_of(tmp_path / "a") == files_of(tmp_path / "whole") != {}
    assert not list(tmp_path.rglob("*.part"))
