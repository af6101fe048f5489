"""What a newcomer runs first: the README's code, and the demo."""

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


def test_the_readme_example_runs_on_a_small_model(talking_llada: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    for before, after in (
        ("GSAI-ML/LLaDA-8B-Instruct", str(talking_llada)),
        ('device="cuda"', 'device="cpu"'),
        ("steps=64, length=64", "steps=8, length=64"),
    ):
        assert before in code
        code = code.replace(before, after)
    done = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    lines = re.findall(r"^(\d) strongest sink at position \d+ \d+\.\d fair shares$", done.stdout, flags=re.MULTILINE)
    assert lines == [str(i) for i in range(8)]


def test_the_demo_prints_tables_and_draws_a_figure(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "demo.py")
    done = run(sys.executable, "-W", "error", script, "--to", str(tmp_path), "--length", "16", cwd=tmp_path)
    for name in ("random llada", "random dream"):
        assert f"{name} (" in done.stdout
    assert len(re.findall(r"^\d+ tracks;", done.stdout, flags=re.MULTILINE)) == 2
    assert (tmp_path / "figure_1.png").read_bytes().startswith(b"\x89PNG")
    assert "Figure: figure_1.png" in done.stdout


def test_the_files_that_the_readme_names_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert all((ROOT / target).exists() for target in targets)


def test_the_code_of_the_page_on_observing_runs() -> None:
    """From the root of the repository, as the page says; one block after the other."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "observing.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    run(sys.executable, "-W", "error", "-c", "\n".join(blocks), cwd=ROOT)
