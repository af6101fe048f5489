"""TOML documents of settings: found by name or file, and changed by KEY=VALUE."""

import tomllib
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError


def read_table(name: str | Path, changes: tuple[str, ...], *, folder: Path) -> tuple[dict[str, Any], str]:
    """A document by the name of one in `folder` or by its file, with `changes` made, and where it came from."""
    path = Path(name)
    if not path.suffix and (folder / f"{name}.toml").is_file():
        path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise UsageError(f"no recipe {str(name)!r}; expected a TOML file or one of {known}")
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML ({error}); expected a recipe such as those in {folder.name}/") from error
    for change in changes:
        _apply(values, change)
    return values, str(path)


def _apply(values: dict[str, Any], change: str) -> None:
    key, separator, text = change.partition("=")
    if not separator:
        raise UsageError(f"setting {change!r}; expected KEY=VALUE, such as schedule.steps=100")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parts, last = key.strip().split(".")
    for part in parts:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UsageError(f"setting {change!r}; {part} is a single value, not a part of a recipe")
    values[last] = value
