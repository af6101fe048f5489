"""Where things lie in the folder of a trace."""

import re
import shutil
from pathlib import Path

from sinklens.files import PART, is_unfinished

_FINISHED = re.compile(r"\d{5,}")
_BEGUN = re.compile(rf"\d{{5,}}{re.escape(PART)}")


def samples_folder(trace: Path) -> Path:
    return trace / "samples"


def sample_folder(trace: Path, sample: int) -> Path:
    return samples_folder(trace) / f"{sample:05d}"


def finished_samples(trace: Path) -> list[int]:
    """The samples that are there as a whole; leftovers of a killed writer do not count."""
    return sorted(int(path.name) for path in _folders(trace, _FINISHED))


def begun_samples(trace: Path) -> list[Path]:
    """Folders of samples that are being written, or that a killed writer left."""
    return _folders(trace, _BEGUN)


def _folders(trace: Path, name: re.Pattern[str]) -> list[Path]:
    inside = samples_folder(trace)
    found = inside.iterdir() if inside.is_dir() else ()
    return [path for path in found if name.fullmatch(path.name) and path.is_dir()]


def remove_parts(trace: Path) -> None:
    """Throw away what a killed writer left, and nothing else. Only for who holds the lock."""
    for sample in begun_samples(trace):
        shutil.rmtree(sample)
    for path in trace.iterdir():
        if is_unfinished(path) and path.is_file():
            path.unlink()
