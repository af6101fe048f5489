"""The page on these statistics: its code runs, and names what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import sinklens.evaluation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evaluation-statistics.md").read_text()


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    check = "import sys; assert 'torch' not in sys.modules"
    command = [sys.executable, "-W", "error", "-c", f"{code}\n{check}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("sinks - random Interval(value=-0.1")


def test_every_module_has_its_place_on_the_page_and_in_the_package() -> None:
    for name in ("outcomes", "paired", "multiple", "equivalence", "interaction", "sequential", "elbo"):
        assert f"`{name}.py`" in PAGE
        assert sinklens.evaluation.__doc__ is not None and f"\n    {name}.py " in sinklens.evaluation.__doc__
