"""What holds for every hostile input: it works, or sinklens refuses it in words.

Never another exception, a hang, a write outside the output folder, a connection, or code that came with the input.
Writes and code are seen by an audit hook, which Python calls before it opens, makes, moves or removes a file, starts a
program, connects, unpickles or compiles; code that came with the input leaves a file (`BAIT`) behind when it runs.
"""

import faulthandler
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from sinklens.errors import SinklensError

SCALE = float(os.environ.get("SINKLENS_FUZZ", "0.5"))  # of the counts in the tests; 6 in `make test-fuzz`
SECONDS = 30.0  # for one case; hardly any takes one
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Event to which of its arguments are paths that change.
CHANGES = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.utime": (0,),
}
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "socket.bind",
    "pickle.find_class",
)
BAIT = "BAIT"  # the file that code of the input would leave


class Hung(BaseException):
    """A case that took too long; no `except Exception` may take it for a refusal."""


@dataclass
class _Watch:
    """What the audit hook looks for while a case runs."""

    out: str | None = None  # where writing is allowed
    source: str | None = None  # the hostile folder: nothing in it is compiled
    seen: list[str] = field(default_factory=list)


_watch: _Watch | None = None
cases = 0  # so far, in this process


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watch = _watch
    if watch is None:
        return
    if event == "open":
        path, mode, flags = arguments
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & WRITING:
            _written(watch, event, path)
    elif event in CHANGES:
        if len(arguments) < 3 or not isinstance(arguments[-1], int) or arguments[-1] < 0 or event == "os.chmod":
            for index in CHANGES[event]:
                _written(watch, event, arguments[index])
    elif event in FORBIDDEN:
        watch.seen.append(f"{event} {arguments!r:.200}")
    elif event == "compile" and watch.source and str(arguments[1]).startswith(watch.source):
        watch.seen.append(f"compile {arguments[1]}")


def _written(watch: _Watch, event: str, path: Any) -> None:
    if isinstance(path, int):
        return
    name = os.path.realpath(os.fsdecode(path))
    inside = watch.out is not None and (name + "/").startswith(watch.out + "/")
    # Python's and torch's caches are made when a module is first imported, whatever the input is.
    if not inside and name != os.devnull and "__pycache__" not in name and "/torchinductor_" not in name:
        watch.seen.append(f"{event} {name}")


sys.addaudithook(_audit)


@contextmanager
def watched(source: Path | None, out: Path | None, seconds: float = SECONDS) -> Iterator[None]:
    """One case: ended when it hangs, in Python or below it, and refused when it reaches out."""
    global _watch, cases  # noqa: PLW0603 (an audit hook cannot be removed, and knows nothing but globals)
    cases += 1
    watch = _Watch(
        out=None if out is None else os.path.realpath(out), source=None if source is None else os.path.realpath(source)
    )

    def hung(*_: Any) -> None:
        raise Hung(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True)  # what no signal handler can end
    _watch = watch
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning is no failure outside of the tests
            yield
    finally:
        _watch = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
    assert not watch.seen, f"it reached out: {watch.seen}"
    for folder in (source, out):
        assert folder is None or not list(folder.parent.glob(f"**/{BAIT}")), "code that came with the input has run"


@dataclass(frozen=True)
class Held:
    """What became of a case: a result, or the refusal."""

    result: Any = None
    error: SinklensError | None = None


def held(call: Callable[[], Any], *, source: Path | None = None, out: Path | None = None) -> Held:
    """The outcome of a call; whatever is neither a result nor a worded refusal fails the test."""
    with watched(source, out):
        try:
            return Held(result=call())
        except SinklensError as error:
            assert str(error).strip(), "a refusal without words"
            return Held(error=error)


@dataclass(frozen=True)
class Left:
    """How a command left."""

    code: int
    out: str
    err: str


def held_command(*arguments: str, source: Path | None = None, out: Path | None = None) -> Left:
    """A command line in this process, with streams that encode as strictly as those of a terminal."""
    from sinklens.cli import main

    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    code: Any = 0
    with watched(source, out), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code
    left = Left(
        code=code or 0,
        out=stdout.buffer.getvalue().decode("utf-8"),  # type: ignore[attr-defined]
        err=stderr.buffer.getvalue().decode("utf-8"),  # type: ignore[attr-defined]
    )
    assert left.code in (0, 1, 2), left
    assert "Traceback" not in left.err and "unexpected error" not in left.err, left.err
    assert left.code == 0 or left.err.strip(), "it failed without a word"
    return left


def fuzzed(examples: int) -> Any:
    """Half of `examples` in `make test`, always the same ones; six times as many, drawn anew, in `make test-fuzz`."""
    return settings(
        max_examples=max(1, round(examples * SCALE)),
        deadline=None,  # `watched` has its own, which is no timed assertion
        derandomize=SCALE <= 1,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=True,
    )
