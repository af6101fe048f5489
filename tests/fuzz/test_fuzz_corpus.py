"""Every file of the corpus holds: what guided.py began with, what it found, and what once broke."""

from pathlib import Path

import pytest

from fuzz.kept import BYTES, FILES, FOLDER, TOTAL, cases, keep
from fuzz.targets import TARGETS, hold, place


@pytest.mark.parametrize(
    "case", [case for name in TARGETS for case in cases(name)], ids=lambda case: f"{case.parent.name}-{case.name[:12]}"
)
def test_the_corpus_holds(case: Path, models: dict[str, Path], traces: dict[str, Path], tmp_path: Path) -> None:
    name = case.parent.name
    folder = place(name, {**models, "trace": traces["full"]}, tmp_path / "in" / "case")
    outcome = hold(name, case.read_bytes(), folder, out=tmp_path / "out")
    assert case.name != "sound" or outcome.error is None


def test_every_target_has_a_corpus_and_all_are_small() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(TARGETS)
    assert all((FOLDER / name / "sound").is_file() and len(cases(name)) > 1 for name in TARGETS)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < TOTAL


def test_what_is_found_is_kept_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, found = tmp_path / "corpus" / "x", tmp_path / "found"
    kept.mkdir(parents=True)
    found.mkdir()
    monkeypatch.setattr("fuzz.kept.FOLDER", tmp_path / "corpus")
    for number in range(100):
        (found / f"{number:03d}").write_bytes(b"x" * (BYTES if number == 50 else number + 1))
    (kept / "sound").write_bytes(b"x" * BYTES)  # counts for nothing
    assert 0 < keep("x", found) <= FILES
    while keep("x", found):
        pass
    assert len(cases("x")) == FILES + 1 and not (kept / "050").exists()
