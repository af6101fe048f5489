"""Run Python that a model wrote, held by bubblewrap or by Linux namespaces; see docs/security.md.

The first means that really works here is taken: bubblewrap (`bwrap` on the PATH), then namespaces set up by
`sandbox_namespaces.py`. Where neither works nothing is run, unless the caller says `unsafe=True`: then a plain child
with an empty environment, resource limits and a timeout, which holds nothing back on purpose.

Many programs share one sandbox and one interpreter start; each runs in a child of its own with its own limits.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sinklens.errors import SinklensError, UsageError

UNPRIVILEGED = 65534  # user and group inside: "nobody" by convention
START_SECONDS = 20.0  # for the sandbox to start and end, beyond the time of the programs
# Read-only inside: the system's libraries, what the loader needs, and the interpreter (added by `_binds`).
SYSTEM_PATHS = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")


class SandboxError(SinklensError, RuntimeError):
    """Generated code cannot be run safely here, or the sandbox itself failed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use."""

    seconds: float | int = 2.0  # of wall-clock time
    memory: int = 256 * 2**20  # bytes of address space
    output: int = 64 * 2**10  # bytes of returned values as JSON

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name} is {value!r}; give a number above 0")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Source text, the function in it to call, and the arguments of each call: JSON values."""

    source: str
    entry: str
    calls: Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the calls returned, up to the first that failed; bool, int, float, str, None and lists keep their types."""

    values: tuple[Any, ...]
    error: str | None  # why there is not a value for each call


def how() -> str | None:
    """The means in use here: "bubblewrap", "namespaces" or None."""
    return _means()[0]


def run(programs: Sequence[Program], *, limits: Limits | None = None, unsafe: bool = False) -> list[Outcome]:
    """Run each program in a child of its own; an outcome for each, in order."""
    means: str | None = "plain"
    if not unsafe:
        means, reasons = _means()
        if means is None:
            raise SandboxError(
                f"no sandbox to run generated programs in: {'; '.join(reasons)}. Install bubblewrap (bwrap), allow "
                "user namespaces, or run the programs unprotected with --unsafe (unsafe=True)"
            )
    if not programs:
        return []
    assert means is not None
    return _run(means, programs, limits or Limits())


def _means() -> tuple[str | None, list[str]]:
    reasons = []
    for means in ("bubblewrap", "namespaces"):
        reason = _trouble(means, shutil.which("bwrap"))
        if reason is None:
            return means, []
        reasons.append(f"{means}: {reason}")
    return None, reasons


@cache
def _trouble(means: str, bwrap: str | None) -> str | None:
    """Why a means does not work here, found by using it."""
    if means == "bubblewrap" and bwrap is None:
        return "bwrap is not on the PATH"
    source = "import os\ndef see():\n    return [os.getuid(), os.getppid(), os.path.exists('/proc/self')]"
    probe = Program(source=source, entry="see", calls=[[]])
    try:
        outcome = _run(means, [probe], Limits(seconds=10.0))[0]
    except SandboxError as error:
        return str(error)
    if outcome.values != ([UNPRIVILEGED, 1, False],):
        return f"it does not isolate: user, parent process and host's /proc were {outcome}"
    return None


def _run(means: str, programs: Sequence[Program], limits: Limits) -> list[Outcome]:
    drops = means == "bubblewrap" and os.geteuid() == 0
    settings = {"limits": asdict(limits), "alone": means != "plain", "uid": UNPRIVILEGED if drops else None}
    records = [settings, *(asdict(program) for program in programs)]
    request = b"".join(b"%08d%s" % (len(text), text) for text in (json.dumps(record).encode() for record in records))
    command = _command(means)
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            output, complaint = process.communicate(request, START_SECONDS + len(programs) * (limits.seconds + 0.5))
        except subprocess.TimeoutExpired:
            raise SandboxError(f"the {means} sandbox did not answer in time and was ended") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    lines = output.splitlines()
    if len(lines) != len(programs):
        words = complaint.decode("utf-8", "replace").strip()[-300:] or f"exit status {process.returncode}"
        raise SandboxError(f"ended after {len(lines)} of {len(programs)} programs ({words})")
    return [_outcome(line) for line in lines]


def _outcome(line: bytes) -> Outcome:
    """What a child answered is a stranger's text: anything but the expected form is an error of the program."""
    record = json.loads(line)
    if record["error"] is not None:
        return Outcome(values=(), error=record["error"])
    try:
        answer = json.loads(record["answer"])
        values, error = answer["values"], answer["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Outcome(values=(), error="killed, or no answer that can be read")
    if not isinstance(values, list) or not isinstance(error, str | None):
        return Outcome(values=(), error="no answer that can be read")
    return Outcome(values=tuple(values), error=error and "".join(c if c.isprintable() else "?" for c in error))


def _command(means: str) -> list[str]:
    driver = Path(__file__).with_name("sandbox_driver.py").read_text("utf-8")
    python = [str(_interpreter()), "-I", "-S"]
    inside = [*python, "-c", driver]
    if means == "plain":
        return inside
    if means == "bubblewrap":
        return [*_bubblewrap(), "--", *inside]
    plan = {
        "binds": _binds(),
        "devices": ["/dev/null"],
        "base": tempfile.gettempdir(),
        "uid": UNPRIVILEGED,
        "command": inside,
    }
    return [*python, str(Path(__file__).with_name("sandbox_namespaces.py")), json.dumps(plan)]


def _bubblewrap() -> list[str]:
    """Root needs no user namespace, and lets the driver change to an unprivileged user; others get one."""
    if os.geteuid() == 0:
        user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        user = ["--unshare-user", "--uid", str(UNPRIVILEGED), "--gid", str(UNPRIVILEGED)]
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    files = []
    for path in (*_binds(), "/dev/null"):
        for folder in reversed(Path(path).parents):
            files += ["--dir", str(folder)]  # those that bwrap makes by itself are closed to other users
        if os.path.islink(path):
            files += ["--symlink", os.readlink(path), path]
        else:
            files += ["--dev-bind" if path == "/dev/null" else "--ro-bind", path, path]
    files += ["--dir", "/tmp", "--remount-ro", "/"]
    return [
        shutil.which("bwrap") or "bwrap",
        *user,
        *spaces,
        "--as-pid-1",
        "--die-with-parent",
        "--new-session",
        "--chdir",
        "/",
        *files,
    ]


def _interpreter() -> Path:
    """The base interpreter: a virtual environment's is a link to it."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (base if base.exists() else Path(sys.executable)).resolve()


def _binds() -> list[str]:
    prefix = _interpreter().parent.parent
    paths = [*SYSTEM_PATHS, *(str(prefix / part) for part in ("bin", "lib", "lib64"))]
    inside_usr = prefix.is_relative_to("/usr")
    return [path for path in paths if os.path.lexists(path) and not (inside_usr and path.startswith(f"{prefix}/"))]
