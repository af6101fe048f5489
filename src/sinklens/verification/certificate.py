"""The record of a comparison, tied to the files it is about by their sha256.

A certificate says what was compared, how far apart the two sides were, and with which versions; one that
disagrees is kept as well, so that whoever uses that model can know.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any

from sinklens.files import write_json

NAME = "certificate.json"


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """sha256 and size of the config and of every weight file of a checkpoint."""
    return {path.name: {"sha256": hash_file(path), "bytes": path.stat().st_size} for path in _files_of(folder)}


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def certificate_for(model_folder: str | Path, *, runs: str | Path = "runs") -> dict[str, Any] | None:
    """The newest certificate below `runs` that was written for exactly these files; None if there is none.

    Weights are hashed only when the file names and sizes of a certificate fit, so looking in vain is cheap.
    """
    folder = Path(model_folder)
    sizes = {path.name: path.stat().st_size for path in _files_of(folder)}
    found = sorted(_read_certificates(Path(runs)), key=lambda one: str(one["date"]), reverse=True)
    fitting = [one for one in found if {name: entry["bytes"] for name, entry in one["files"].items()} == sizes]
    if not fitting:
        return None
    files = describe_files(folder)
    return next((one for one in fitting if one["files"] == files), None)


def write_certificate(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Date the certificate and write it whole or not at all."""
    certificate = {"format": 1, "date": datetime.now(UTC).isoformat(timespec="seconds"), **content}
    write_json(folder / NAME, certificate)
    return certificate


def _files_of(folder: Path) -> list[Path]:
    return sorted([*folder.glob("config.json"), *folder.glob("model*.safetensors"), *folder.glob("model*.index.json")])


def _read_certificates(runs: Path) -> Iterator[dict[str, Any]]:
    """Certificates in `runs` and the folders in it. What is damaged or of another format is none."""
    for path in [*runs.glob(NAME), *runs.glob(f"*/{NAME}")]:
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("format") == 1 and {"date", "files"} <= content.keys():
            yield content
