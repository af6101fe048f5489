"""Folders that commands are given: traces where traces are wanted, or in words what a folder is and who reads it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sinklens.errors import UsageError
from sinklens.locks import refuse_strangers

if TYPE_CHECKING:
    from sinklens.traces.read import Trace

MANIFEST = "manifest.json"  # of a trace; the constants of those who write folders would load what reading does without
MARKS = {"atlas": "plan.json", "card": "plan.json", "experiment": "experiment.json"}  # by which they are known
NAMED = 3  # traces that a message names


def check_folder(to: Path | None, what: str, *, resume: bool) -> None:
    """Before weights are loaded: to go on takes a folder, and one that holds no `what` must be empty."""
    if to is not None:
        refuse_strangers(to, what=what, mark=MARKS[what])
    elif resume:
        raise UsageError("--resume needs --to DIR: repeat the command with the folder to go on with")


def open_traces(folders: Sequence[Path]) -> "list[Trace]":
    """Every folder as a trace; one that another command wrote is refused with what to do with it."""
    from sinklens.traces.read import open_trace

    for folder in folders:
        if folder.is_dir() and not (folder / MANIFEST).exists() and (found := describe_folder(folder)):
            raise UsageError(f"{folder} is no trace but {found}")
    return [open_trace(folder) for folder in folders]


def refuse_trace_folder(to: Path | None, *, example: str) -> None:
    """Other files do not go into the folder of a trace, which is one dataset for those who read it."""
    if to is not None and (to / MANIFEST).exists():
        raise UsageError(
            f"--to {to} is the folder of a trace, which holds nothing else; choose another one, such as --to "
            f"{quote(f'{to}-{example}')}, or leave --to out for a new one"
        )


def describe_folder(folder: Path) -> str | None:
    """What a folder that is no trace is, and what to do with it; None where that is not known."""
    for name, describe in _KINDS.items():
        if (folder / name).exists() and (found := describe(folder, _read(folder / name))):
            return found
    traces = _traces_in(folder)
    return f"a folder with traces in it; give one: {traces}" if traces else None


def _demo(folder: Path, said: Any) -> str | None:
    if said.get("program") != "sinklens demo":
        return None
    traces = _traces_in(folder / "traces")
    return "the folder of `sinklens demo`; " + (f"its traces are: {traces}" if traces else "it has no trace yet")


def _card(folder: Path, said: Any) -> str | None:
    if "card" not in said:
        return None
    return (
        f"the card of a model (`sinklens card`): card.html shows it; its trace is {folder / 'trace'}: give that folder"
    )


def _sweep(folder: Path, said: Any) -> str | None:
    if said.get("format") != "sinklens-sweep":
        return None
    command = f"sinklens sweep GRID --to {quote(str(folder))} --list"
    return f"a sweep, which holds results and no attention; `{command}` reads it"


def _experiment(folder: Path, said: Any) -> str | None:
    holds = "which holds results and no attention"
    if said.get("format") != "sinklens-experiment":
        return f"an experiment on text, {holds}; result.json says what came out" if "text" in said else None
    made_by = [word for word in str(said.get("command") or "").split()[1:] if not word.startswith("-")]
    command = made_by[0] if made_by else "mask"
    again = f"`sinklens {command}` with the same settings and --to {quote(str(folder))} reads it and reports"
    return f"an experiment of `sinklens {command}`, {holds}; {again}"


def _checkpoint(folder: Path, said: Any) -> str | None:
    if "model_type" not in said:
        return None
    return f"the checkpoint of a model; `sinklens trace {quote(str(folder))}` makes a trace of what it generates"


def _sinks(folder: Path, said: Any) -> str | None:
    return "what `sinklens sinks --to` wrote of a trace; give that trace" if "traces" in said else None


# By the file that tells; a demo has a sinks.json too, so the order counts.
_KINDS: dict[str, Callable[[Path, Any], str | None]] = {
    "demo.json": _demo,
    "plan.json": _card,
    "sweep.json": _sweep,
    "experiment.json": _experiment,
    "config.json": _checkpoint,
    "sinks.json": _sinks,
}


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _traces_in(folder: Path) -> str:
    """The first of them, and how many more there are."""
    found = sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(map(str, found[:NAMED])) + more
