"""Where output goes: results to stdout, the rest to stderr, files whole or not at all."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console


def stderr_console() -> Console:
    """A console on the stderr of this moment; progress and live views never touch stdout."""
    return Console(file=sys.stderr, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The one document of `--json`. NaN is not JSON and would be refused by strict readers: so is it here."""
    print(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write under a temporary name, then rename: a reader finds the whole document or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n", "utf-8")
    temporary.replace(path)
