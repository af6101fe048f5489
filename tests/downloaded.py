"""A checkpoint as if it came from the hub: what is downloaded is a folder of this machine, named after a commit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = f"owner/name@{COMMIT}"


def as_download(monkeypatch: pytest.MonkeyPatch, folder: Path, at: Path) -> Callable[[], list[str | None]]:
    """`owner/name` is this checkpoint; tells the revisions that were asked for."""
    import huggingface_hub

    snapshot = at / "models--owner--name" / "snapshots" / COMMIT
    shutil.copytree(folder, snapshot)
    asked: list[str | None] = []

    def snapshot_download(hub_id: str, *, revision: str | None, **_: Any) -> str:
        assert hub_id == "owner/name"
        asked.append(revision)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return lambda: asked
