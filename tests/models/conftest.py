"""Small checkpoints: the golden folders, and copies of them that a test may spoil."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    """A copy of a golden checkpoint with some config fields changed (None: removed)."""

    def copy(family: str, *, remove: tuple[str, ...] = (), **fields: Any) -> Path:
        folder = tmp_path / family
        shutil.copytree(GOLDEN / family, folder, ignore=shutil.ignore_patterns("vectors*", "generation.json"))
        config = json.loads((folder / "config.json").read_text())
        config.update(fields)
        for name in remove:
            config.pop(name)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return copy


@pytest.fixture
def rewritten() -> Callable[[Path, Callable[[dict[str, torch.Tensor]], None]], None]:
    """Change the tensors of a single-file checkpoint in place."""

    def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
        path = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return rewrite
