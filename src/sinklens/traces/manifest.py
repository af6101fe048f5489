"""manifest.json: what a trace is, written first with `complete: false` and once more when the last sample is done."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sinklens.errors import TraceError, UsageError, choose
from sinklens.files import read_json, replacing

FORMAT = "sinklens-trace"
VERSION = 1  # goes up when a reader of the version before would misread; a new nullable column does not count
DETAILS = ("full", "sinks")
UNIT = "attention_sum"  # `received` is summed over queries. Fair share = received / expected, mass = received / viewers

MANIFEST = "manifest.json"
GIVEN = ("fingerprint", "model", "detail", "every", "layers", "heads")  # by whoever records
MODEL = ("name", "family", "causal", "layers", "heads", "kv_heads")
SAME = ("unit", "detail", "every", "layers", "heads", "samples", "storage")  # beside fingerprint, for a resume


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_manifest(given: Mapping[str, Any], *, samples: int, storage: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a trace that begins; what the recorder gave is checked, and keys of its own are kept."""
    missing = [name for name in GIVEN if name not in given]
    missing += [f"model.{name}" for name in MODEL if "model" in given and name not in given["model"]]
    if missing:
        raise UsageError(f"the manifest lacks {', '.join(missing)}; a trace cannot be read without them")
    choose("detail", given["detail"], DETAILS)
    if samples < 1:
        raise UsageError(f"samples is {samples}; a trace has at least 1")
    ours = {"format": FORMAT, "version": VERSION, "complete": False, "created": now(), "finished": None}
    ours |= {"samples": samples, "unit": UNIT, "storage": dict(storage)}
    return _as_read(ours | dict(given) | ours)  # ours first to read, and never overruled


def _as_read(document: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read back: tuples are lists, and what JSON cannot hold is refused before any work."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the manifest cannot be written as JSON ({error}); give text, numbers, lists") from error
    return plain


def save_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Written whole: whoever opens the folder finds the old one or the new one."""
    text = json.dumps(_as_read(manifest), ensure_ascii=False, indent=2) + "\n"
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(text, "utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a trace that this version can read, or an error that says what is wrong."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise TraceError(f"there is no folder {folder}; give the folder that a trace was written to")
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        raise TraceError(f"{folder} is not a trace: it has no {MANIFEST}; give the folder that holds it") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TraceError(f"{folder} is not a trace: {MANIFEST} does not say format {FORMAT!r}; give another folder")
    _check_version(path, manifest.get("version"))
    lacking = [name for name in (*GIVEN, "complete", "samples", "unit", "storage") if name not in manifest]
    model = manifest.get("model")
    lacking += [f"model.{name}" for name in MODEL if not isinstance(model, dict) or name not in model]
    if lacking:
        raise _damaged(path, f"it lacks {', '.join(lacking)}")
    _check_types(path, manifest)
    return manifest


def _check_types(path: Path, manifest: Mapping[str, Any]) -> None:
    """Of the entries that decide how the files are read."""
    entries = {**manifest, **{f"model.{name}": value for name, value in manifest["model"].items()}}
    for name, fits in READ.items():
        if not fits(entries[name]):
            raise _damaged(path, f"{name} is {_short(entries[name])}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value)) and len(set(value)) == len(value)


# What the readers take for granted.
READ: Mapping[str, Callable[[Any], bool]] = {
    "samples": _is_count,
    "every": lambda value: _is_count(value) and value > 0,
    "layers": _are_numbers,
    "heads": _are_numbers,
    "complete": lambda value: isinstance(value, bool),
    "detail": lambda value: value in DETAILS,
    "model.name": lambda value: isinstance(value, str),
    "model.family": lambda value: isinstance(value, str),
    "model.causal": lambda value: isinstance(value, bool),
    "model.layers": _is_count,
    "model.heads": _is_count,
    "model.kv_heads": _is_count,
}


def _check_version(path: Path, version: Any) -> None:
    if type(version) is not int or version < 1:
        raise _damaged(path, f"version is {version!r}")
    if version > VERSION:
        raise TraceError(
            f"{path.parent} was written by a newer sinklens (format {version}); this one reads up to {VERSION}; "
            "upgrade sinklens"
        )


def _damaged(path: Path, why: Any) -> TraceError:
    return TraceError(f"{path} is damaged ({why}); restore it from a copy, or record the trace again")


def refuse_different(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """A resume must be the same run: every entry that differs is named with both values."""
    before, after = ({name: m[name] for name in SAME} | _flat("fingerprint", m["fingerprint"]) for m in (old, new))
    absent = "nothing"
    lines = [
        f"{name}: {_short(before.get(name, absent))} there, {_short(after.get(name, absent))} now"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, absent) != after.get(name, absent)
    ]
    if lines:
        raise UsageError(
            f"{folder} holds a trace of another run; " + "; ".join(lines) + "; resume with the same settings, or "
            "write to another folder"
        )


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Nested mappings as dotted names, so that a difference is named where it is."""
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, inner in value.items() for path, leaf in _flat(f"{name}.{key}", inner).items()}


def _short(value: Any) -> str:
    text = value if value == "nothing" else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
