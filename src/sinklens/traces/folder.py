"""Where things lie in the folder of a trace, and who may write there."""

import re
import shutil
from pathlib import Path
from typing import Any

from sinklens.errors import TraceError
from sinklens.files import PART

LOCK = "writer.lock"  # stays behind, empty; the lock itself goes with the process that holds it
_FINISHED = re.compile(r"\d{5,}")


def samples_folder(trace: Path) -> Path:
    return trace / "samples"


def sample_folder(trace: Path, sample: int) -> Path:
    return samples_folder(trace) / f"{sample:05d}"


def finished_samples(trace: Path) -> list[int]:
    """The samples that are there as a whole; leftovers of a killed writer do not count."""
    inside = samples_folder(trace)
    if not inside.is_dir():
        return []
    return sorted(int(path.name) for path in inside.iterdir() if _FINISHED.fullmatch(path.name) and path.is_dir())


def remove_parts(trace: Path) -> None:
    """Throw away what a killed writer left. Only for who holds the lock."""
    for sample in samples_folder(trace).glob(f"*{PART}"):
        shutil.rmtree(sample)
    for manifest in trace.glob(f"*{PART}"):
        manifest.unlink()


class Lock:
    """One writer at a time. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, trace: Path) -> None:
        import fcntl

        self._file: Any = (trace / LOCK).open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise TraceError(
                f"another process is writing to {trace}; wait for it to end, or write to another folder"
            ) from None
        except OSError:
            self._file.close()
            raise

    def release(self) -> None:
        self._file.close()
