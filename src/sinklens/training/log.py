"""The log of a training run: one JSON object a line. Needs no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOG = "log.jsonl"


def read_log(folder: Path) -> list[dict[str, Any]]:
    """What was measured, in order; empty where nothing was."""
    path = folder / LOG
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def write_log(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    (folder / LOG).write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")


def append_log(folder: Path, entry: Mapping[str, Any]) -> None:
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
