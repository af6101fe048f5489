"""Where things lie in the folder of a trace."""

import re
import shutil
from pathlib import Path

from sinklens.files import PART

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
