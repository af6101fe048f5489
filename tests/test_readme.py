"""What a newcomer runs first: the README's code. The demo is tested in tests/cli."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=True)


def test_the_readme_example_runs_as_it_is_written(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    lines = re.findall(r"^(\d+) strongest sink at position \d+ \d+\.\d fair shares$", done.stdout, flags=re.MULTILINE)
    assert lines == ["0", "12", "24", "36"]
    solved, *masked = re.findall(r"^#### (\d+)$", done.stdout, flags=re.MULTILINE)
    assert solved == "13"
    assert masked != [solved]


def test_the_files_that_the_readme_names_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert all((ROOT / target).exists() for target in targets)


def test_the_code_of_the_page_on_observing_runs() -> None:
    """From the root of the repository, as the page says; one block after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "observing.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    run(sys.executable, "-W", "error", "-c", "\n".join(blocks), cwd=ROOT)
