"""The table of faults names tests that are there, and leaves none of this folder out."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = ("test_faults_page", "test_determinism")  # of no fault
PAGE = (ROOT / "docs" / "faults.md").read_text("utf-8")


def test_every_test_of_the_page_exists_and_every_fault_is_on_it() -> None:
    files = [*(ROOT / "tests").rglob("test_*.py")]
    known = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    told = set(re.findall(r"`(test_\w+)`", PAGE))
    assert told and told <= known
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/\S+\.py)`", PAGE))
    ours = [path for path in Path(__file__).parent.glob("test_*.py") if path.stem not in OTHERS]
    faults = {name for path in ours for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert faults <= told
