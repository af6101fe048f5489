"""What the pages of docs/results share: words by hand above a mark, tables and figures made from rows below it."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from sinklens.errors import UsageError
from sinklens.files import read_text


def words_above(mark: str, preface: Path | None, *, title: str) -> str:
    """What stands above the mark in the preface, which may be the page itself; without a preface, the title."""
    if preface is None:
        return title
    try:
        return read_text(preface).partition(mark)[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the preface {preface} ({error}); give a Markdown file") from None


def place_pictures(draw: Callable[[Path], Iterable[Path]], folder: Path, *, names: Iterable[str]) -> list[Path]:
    """The PNG files of what `draw` writes, in place of those of an earlier page; `names`: of all there may be."""
    for name in names:
        (folder / f"{name}.png").unlink(missing_ok=True)
    with TemporaryDirectory() as scratch:
        drawn = [path for path in draw(Path(scratch)) if path.suffix == ".png"]
        if drawn:
            folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(path, folder / path.name)) for path in drawn]
