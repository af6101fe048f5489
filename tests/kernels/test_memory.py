"""Memory of attention received grows with the sequence, not with its square; the eager way fails the same test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def extra_mib(impl: str, length: int) -> float:
    """Peak memory beyond the inputs, measured in a process of its own."""
    script = Path(__file__).with_name("peak.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), impl, str(length), "4", "32"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def assert_linear(impl: str) -> None:
    """Twice the length may take twice the memory (and 16 MiB of luck), not four times."""
    half, whole = extra_mib(impl, 3072), extra_mib(impl, 6144)
    assert whole <= 2 * half + 16, f"{half:.0f} MiB at 3072, {whole:.0f} MiB at 6144"


def test_chunked_memory_is_linear() -> None:
    assert_linear("chunked")


def test_the_eager_way_is_found_out() -> None:
    with pytest.raises(AssertionError, match="MiB at 6144"):
        assert_linear("reference")
