"""Where output goes: results to stdout, the rest to stderr, files into folders that were tried."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from sinklens.errors import SinklensError, UsageError


def stderr_console() -> Console:
    """A console on the stderr of this moment; progress and live views never touch stdout."""
    return Console(file=sys.stderr, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The one document of `--json`. NaN is not JSON and would be refused by strict readers: so is it here."""
    print(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def prepare_folder(folder: Path) -> None:
    """Make the folder of `--to` and try it, before any work is done for it."""
    probe = folder / ".sinklens.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _cannot_write(folder, error) from error


def fresh_folder(name: str) -> Path:
    """runs/NAME-1, or the first number that is not taken."""
    plain = re.sub(r"[^\w.-]+", "-", name)
    return next(folder for n in count(1) if not (folder := Path("runs") / f"{plain}-{n}").exists())


def refuse_used_folder(folder: Path | None, result: str) -> None:
    """Before any work is done: an earlier result is not overwritten."""
    if folder is not None and (folder / result).exists():
        raise UsageError(f"{folder / result} exists; choose another folder for --to, or move it away")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"--to {folder} is a file; give a folder")


def _cannot_write(path: Path, error: OSError) -> SinklensError:
    return SinklensError(f"cannot write to {path} ({error.strerror or error}); choose another folder with --to")


@contextmanager
def quiet_unless_terminal() -> Iterator[None]:
    """The progress bars of transformers and the hub are for a terminal; in a log they are noise.

    transformers is asked only where it is loaded already: it is large, and a name may still prove wrong.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    bars: Any = sys.modules.get("transformers.utils.logging")
    disable, enable = (
        (disable_progress_bars, enable_progress_bars)
        if bars is None
        else (bars.disable_progress_bar, bars.enable_progress_bar)  # those of the hub too
    )
    disable()
    try:
        yield
    finally:
        enable()
