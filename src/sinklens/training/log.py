"""The log of a training run: one JSON object a line. Needs no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinklens.files import append_line, whole_lines, write_lines

LOG = "log.jsonl"
FIRST_STAGE = "log-1.jsonl"  # the log of the run that this one started from, where there was one


def read_log(folder: Path, name: str = LOG) -> list[dict[str, Any]]:
    """What was measured, in order; empty where nothing was."""
    path = folder / name
    return [json.loads(line) for line in whole_lines(path)] if path.is_file() else []


def read_stages(folder: Path) -> list[dict[str, Any]]:
    """The logs of both stages as one: steps and tokens go on where the first ended."""
    first, second = read_log(folder, FIRST_STAGE), read_log(folder)
    if not first:
        return second
    before = {key: first[-1][key] for key in ("step", "tokens")}
    return [*first, *({**entry, **{key: entry[key] + done for key, done in before.items()}} for entry in second)]


def write_log(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """In place of what is there, whole."""
    write_lines(folder / LOG, map(json.dumps, entries))


def append_log(folder: Path, entry: Mapping[str, Any]) -> None:
    append_line(folder / LOG, json.dumps(entry))
