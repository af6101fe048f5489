"""A process that has imported everything and forks one process a run: a run then starts in milliseconds, not seconds.

The program, its files and its signals are real. `python nursery.py` reads one JSON document a line:

    {"start": {arguments, cwd, files, watch, hardships}}   ->  {"pid": 17}
    {"wait": 17}                                           ->  {"status": as waitpid gives it; null: of none}

files: the folder of its stdout and stderr. watch: a folder. What the process does there (files it opens, names, renames
or removes) is counted in the file `events`, beside its stdout. hardships (hardship.py): what the process meets.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.hardship import enduring

LONGEST, OVERDUE = 300.0, 124  # seconds of a run, and how one ends that takes longer
SOURCE = Path(__file__).parents[2] / "src"
TESTS = Path(__file__).parents[1]
ELSEWHERE = (  # what a run would import when it comes to that
    "matplotlib.backends.backend_agg", "matplotlib.figure", "pandas", "pyarrow.dataset", "pyarrow.parquet", "pydantic",
    "scipy.stats", "transformers.models.llama.modeling_llama",
)  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(TESTS)])
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return {**os.environ, **quiet, "PYTHONPATH": path, **more}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a run."""

    code: int  # of exit, or minus the signal
    stdout: str
    stderr: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class Run:
    """A process under way."""

    nursery: "Nursery"
    pid: int
    files: Path
    began: float

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)  # it is not waited for yet: the number is still its own

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def wait(self) -> Ended:
        status = self.nursery.ask({"wait": self.pid})["status"]
        seconds = time.monotonic() - self.began
        texts = {name: _text(self.files / name) for name in ("stdout", "stderr")}
        return Ended(code=os.waitstatus_to_exitcode(status), seconds=seconds, **texts)


def _text(path: Path) -> str:
    """What a process wrote; one that was killed at once has not even made the file."""
    return path.read_text("utf-8", "replace") if path.exists() else ""


class Nursery:
    """The other end of such a process."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._count = scratch, 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.ask({"wait": None})  # for its imports

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, arguments: Sequence[object], *, cwd: Path, watch: Path | None = None, **hardships: object) -> Run:
        """`sinklens ARGUMENTS` in a process of its own."""
        self._count += 1
        files = self._scratch / str(self._count)
        files.mkdir(parents=True)
        wanted = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "files": str(files),
            "watch": None if watch is None else str(watch),
            "hardships": hardships,
        }
        return Run(nursery=self, pid=self.ask({"start": wanted})["pid"], files=files, began=time.monotonic())

    def run(self, arguments: Sequence[object], *, cwd: Path, **hardships: object) -> Ended:
        return self.start(arguments, cwd=cwd, **hardships).wait()

    def close(self) -> None:
        self._process.communicate()  # it ends with its input


def events_of(run: Run) -> int:
    """How often a run that ended touched the folder that was watched."""
    return int((run.files / "events").read_text())


def _serve() -> None:
    _import_everything()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"status": request["wait"] and _status(request["wait"])}
        else:
            pid = os.fork()
            if pid == 0:
                _become(request["start"])
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def _status(pid: int) -> int:
    """Of a process that has ended; one that does not is killed, so that a test fails and does not hang."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return OVERDUE << 8


def _import_everything() -> None:
    from importlib import import_module

    import sinklens
    from sinklens.cli.interrupts import import_heavy

    import_heavy(models=True)
    for name in ELSEWHERE:
        with suppress(ImportError):
            import_module(name)
    for part in ("cli", "evaluation", "report", "sweeps", "training", "recording", "tasks"):
        for path in sorted((Path(sinklens.__file__).parent / part).glob("*.py")):
            if path.stem not in ("__main__", "ray", "lm_eval_model", "notebook", "sandbox_driver", "humaneval_inside"):
                import_module(f"sinklens.{part}.{path.stem}")


def _become(wanted: dict[str, Any]) -> None:
    """In the new process: the program, from its arguments to its exit code."""
    files = Path(wanted["files"])
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(files / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(wanted["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are deaf to Ctrl-C
    code = 1
    try:
        with enduring(files, wanted["watch"], **wanted["hardships"]):
            from sinklens.cli import main

            sys.argv = ["sinklens", *wanted["arguments"]]
            main(wanted["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
