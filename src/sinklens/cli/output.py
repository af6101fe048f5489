"""Where output goes: results to stdout, the rest to stderr, files into folders that were tried."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console

from sinklens.cli.options import loudness
from sinklens.errors import SinklensError, UsageError
from sinklens.files import refuse_file


def stderr_console() -> Console:
    """A console on the stderr of this moment; progress and live views never touch stdout. With --quiet, it is mute."""
    return Console(file=sys.stderr, highlight=False, quiet=loudness.get() < 0)


def note(text: str) -> None:
    """What a user may want to know while waiting: on stderr, unless --quiet."""
    if loudness.get() >= 0:
        print(text, file=sys.stderr, flush=True)


def detail(text: str) -> None:
    """What is used, and how long it took: on stderr with --verbose."""
    if loudness.get() > 0:
        print(text, file=sys.stderr, flush=True)


def terminal_width() -> int | None:
    """Columns that stdout has: of the terminal, or as COLUMNS says; None where nothing limits a line."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def print_wrapped(text: str, *, indent: int) -> None:
    """On stdout, between words; lines after the first are indented."""
    width = terminal_width()
    lines = [text] if width is None else wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
    print("\n".join(lines))


def stdout_console(*, quiet: bool = False, width: int) -> Console:
    """A console for results; width: of output that goes to a file, where nothing says otherwise."""
    found = terminal_width()
    return Console(file=sys.stdout, highlight=False, quiet=quiet, width=width if found is None else found)


def print_json(document: Mapping[str, Any]) -> None:
    """The one document of `--json`. NaN is not JSON and would be refused by strict readers: so is it here."""
    print(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def prepare_folder(folder: Path) -> None:
    """Make the folder of `--to` and try it, before any work is done for it."""
    probe = folder / ".sinklens.part"
    refuse_file(folder)
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
    """The progress bars of transformers and the hub are for a terminal; in a log, or with --quiet, they are noise.

    transformers is asked only where it is loaded already: it is large, and a name may still prove wrong.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if (sys.stderr.isatty() and loudness.get() >= 0) or are_progress_bars_disabled():
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
