"""Write, or resume, a synthetic trace of three samples, and be killed, or run out of disk, on the way.

python interrupted.py FOLDER OPERATION COUNT    SIGKILL in the COUNT-th call of that operation (0: never)
python interrupted.py FOLDER fill BYTES         no file may grow beyond BYTES
python interrupted.py FOLDER hold 0             say "holding" with the lock held, and wait to be killed
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinklens.errors import SinklensError
from sinklens.traces import gather
from sinklens.traces import sample as sample_module
from sinklens.traces.joined import JoinedFile
from sinklens.traces.write import TraceWriter
from traces.synthetic import end_of, manifest, steps_of

SAMPLES = 3
SMALL_BUFFER = 6000  # bytes: several row groups a layer
OPERATIONS: dict[str, tuple[Any, str]] = {
    "write": (JoinedFile, "append"),  # inside the writing of a sample: its files are open
    "close": (JoinedFile, "close"),
    "fsync": (os, "fsync"),
    "rename": (os, "rename"),  # between write and rename
    "replace": (os, "replace"),  # before a manifest; the second one is the final one
    "mkdir": (os, "mkdir"),
}


def kill_at(operation: str, count: int) -> None:
    """The COUNT-th call of the operation does not return: the process is gone before it begins."""
    place, name = OPERATIONS[operation]
    original: Callable[..., Any] = getattr(place, name)
    calls = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)

    setattr(place, name, counted)


def sizes(number: int, *, growing: bool) -> dict[str, int]:
    return {"keys": 64 if growing and number > 0 else 12}


def write_all(folder: Path, *, growing: bool = False) -> None:
    resume = (folder / "manifest.json").exists()
    with TraceWriter.create(folder, manifest(), samples=SAMPLES, resume=resume) as writer:
        for number in writer.missing:
            with writer.sample(number) as sample:
                for rows in steps_of(number, **sizes(number, growing=growing)):
                    sample.add(rows)
                sample.end(end_of(number, **sizes(number, growing=growing)))
        writer.finish({"impl": ["synthetic"]})


def main() -> int:
    folder, operation, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sample_module.BUFFER_BYTES = SMALL_BUFFER
    gather.GROUP_BYTES = gather.PART_BYTES = 1
    if operation == "hold":
        with TraceWriter.create(folder, manifest(), samples=SAMPLES):
            print("holding", flush=True)
            signal.pause()
    elif operation == "fill":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))
    else:
        kill_at(operation, count)
    try:
        write_all(folder, growing=operation == "fill")
    except SinklensError as error:
        print(f"{type(error).__name__}: {error}")
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
