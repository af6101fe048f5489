"""What holds for the package as a whole: imports point one way, importing it does nothing, its names are all there."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sinklens

SOURCE = Path(sinklens.__file__).parent
# A part may import itself and what stands to its left. Nothing may import what stands to its right.
ORDER = [
    "errors", "interrupts", "files", "locks", "tables", "types", "kernels", "sinks", "traces", "attention", "cache",
    "interventions", "models", "selection", "sampling", "tasks", "verification", "recording", "evaluation", "training",
    "config", "run", "report", "sweeps", "cli",
]  # fmt: skip
HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "matplotlib",
    "triton",
    "jaxtyping",
    "scipy",
    "lm_eval",
    "ray",
    "kvpress",
)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("sinklens.")}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in ORDER, f"{part} has no place in the order of imports"
    later = set(ORDER[ORDER.index(part) + 1 :])
    assert not imported_parts(path) & later


def loaded_after(code: str) -> list[str]:
    report = "import json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    return [name for name in modules if name.split(".")[0] in HEAVY]


@pytest.mark.parametrize(
    "code",
    [
        "import sinklens; dir(sinklens); sinklens.__version__; sinklens.ModelSpec; sinklens.SinklensError",
        "import sinklens.cli",
        "from sinklens.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from sinklens.cli import main\ntry: main(['models'])\nexcept SystemExit: pass",
    ],
    ids=["import", "import cli", "--help", "models"],
)
def test_nothing_heavy_is_loaded_unasked(code: str) -> None:
    assert loaded_after(code) == []


def test_importing_everything_patches_nothing() -> None:
    """Every public name, imported; then torch, transformers, warnings and the environment are as before."""
    code = """
import os, sys, warnings, torch, transformers, logging
import torch.nn.functional as F
from transformers.modeling_utils import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
def state():
    return [
        id(F.scaled_dot_product_attention), id(F.multi_head_attention_forward), id(torch.nn.Module.__call__),
        sorted(AttentionInterface._global_mapping), sorted(AttentionMaskInterface._global_mapping), dict(os.environ),
        [str(f) for f in warnings.filters], sys.excepthook, logging.root.handlers, torch.get_num_threads(),
        torch.is_grad_enabled(), len(torch.nn.modules.module._global_forward_hooks),
    ]
before = state()
import sinklens
for name in sinklens.__all__:
    getattr(sinklens, name)
assert state() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_are_sorted_and_exist() -> None:
    names = [name for name in sinklens.__all__ if not name.startswith("__")]
    assert names == sorted(names)
    assert set(names) == set(sinklens._HOMES)
    for name in names:
        assert getattr(sinklens, name).__module__.startswith("sinklens.")
    with pytest.raises(AttributeError, match="no attribute 'observ'"):
        _ = sinklens.observ
