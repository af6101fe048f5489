"""config.json, read field by field: what is missing, mistyped or unsupported is refused by its name."""

import json
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any

from sinklens import files
from sinklens.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        values = files.read_json(path)
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}; expected a checkpoint folder with one") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds a {type(values).__name__}; expected a JSON object")
    return values


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The fields of one config.json, which knows its own name for messages."""

    values: dict[str, Any]
    path: Path

    @classmethod
    def of_folder(cls, folder: Path) -> "Fields":
        path = folder / "config.json"
        return cls(values=read_json(path), path=path)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; null or absent means `default`, where there is one."""
        value = self.optional_integer(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.path} has no {name}; expected a whole number")
        return value

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where it is null or absent."""
        value = self.values.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ModelError(f"{self.path}: {name} is {value!r}; expected a whole number")
        return value

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= float_info.max:
            raise ModelError(f"{self.path}: {name} is {value!r}; expected a positive number")
        return float(value)

    def text(self, name: str) -> str | None:
        """A text, or None where it is null or absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"{self.path}: {name} is {value!r}; expected a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: {name} is {value!r}; expected true or false")
        return value

    def only(self, name: str, accepted: Any) -> None:
        """Refuse a switch that stands on something else than `accepted`; absent or null means `accepted`."""
        value = self.values.get(name)
        if value is not None and value != accepted:
            raise ModelError(
                f"{self.path}: {name} is {json.dumps(value)}; only {json.dumps(accepted)} is supported here, "
                "as in the published checkpoints"
            )
