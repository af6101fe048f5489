"""The page on interventions: its code runs, and its table of choices is what the settings do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sinklens.interventions.mask_sinks import MaskSinks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interventions.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    """From the root of the repository, as the page says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    first, *lines = done.stdout.splitlines()
    sinks, random = map(float, re.findall(r"0\.\d\d", first))
    assert 0 < random < sinks <= 1
    assert len(lines) == 6
    assert lines[0].startswith("0 0 0.000 of 0.")


@pytest.mark.parametrize("causal", [False, True], ids=["diffusion", "autoregressive"])
def test_the_defaults_are_as_the_page_says(causal: bool) -> None:
    plan = MaskSinks(top=1).plan(causal)
    for name in ("rank_by", "queries", "keys"):
        (row,) = re.findall(rf"^\| `{name}`.*$", PAGE.split("## `MaskSinks(top=k)`")[1], flags=re.MULTILINE)[:1]
        cell = row.strip("|").split("|")[2 if causal else 1]
        assert re.findall(r'`"(\w+)"`', cell)[0] == getattr(plan, name)
