"""TOML documents of settings: found by name or file, changed by KEY=VALUE, and read into dataclasses."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sinklens.errors import UsageError
from sinklens.files import is_file, read_text

LARGEST = 2**20  # characters of a document of settings
_DEEP = re.compile(r"(?:[^\s.=\]]{1,200}[ \t]{0,8}\.[ \t]{0,8}){50}")


def read_table(name: str | Path, changes: tuple[str, ...], *, folder: Path) -> tuple[dict[str, Any], str]:
    """A document by the name of one in `folder` or by its file, with `changes` made, and where it came from."""
    path = Path(name)
    if not path.suffix and is_file(folder / f"{name}.toml"):
        path = folder / f"{name}.toml"
    if not is_file(path):
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise UsageError(f"no recipe {str(name)!r}; expected a TOML file or one of {known}")
    try:
        values = parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no TOML ({error}); expected a recipe such as those in {folder.name}/") from error
    for change in changes:
        _apply(values, change)
    return values, str(path)


def read_part(kind: Any, values: Any, where: str, *, value: Callable[[str, Any, Any, str], Any], hint: str = "") -> Any:
    """A dataclass from a table, in words what does not fit; `value(key, type, given, where)`: what a field gets."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{where} is {values!r}; expected a table of settings")
    known = {item.name: item for item in fields(kind)}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise UsageError(f"{where} has no setting {', '.join(unknown)}; expected some of {', '.join(known)}")
    made = {key: value(key, known[key].type, given, f"{where}: {key}") for key, given in values.items()}
    try:
        return kind(**made)
    except TypeError as error:
        raise UsageError(f"{where}: {error}{hint}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """`tomllib.loads`, and a ValueError for what it lets pass: brackets, dotted names and numbers without end."""
    if len(text) > LARGEST or _DEEP.search(text):  # it takes time with the square of the parts of a dotted name
        raise ValueError(f"nested too deeply, or larger than {LARGEST >> 20} MiB")
    try:
        values = tomllib.loads(text)
        _refuse_long(values)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return values


def _refuse_long(value: Any) -> None:
    """A whole number of TOML has 64 bits; one of 400 digits is no float, and no size of anything."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"a whole number of {value.bit_length()} bits; expected at most 64")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_long(inner)


def _apply(values: dict[str, Any], change: str) -> None:
    key, separator, text = change.partition("=")
    if not separator:
        raise UsageError(f"setting {change!r}; expected KEY=VALUE, such as schedule.steps=100")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text
    *parts, last = key.strip().split(".")
    for part in parts:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UsageError(f"setting {change!r}; {part} is a single value, not a part of a recipe")
    values[last] = value
