"""The short examples run as they stand, and say what they promise."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = ("see_sinks", "follow_sink", "mask_with_control", "own_metric", "own_intervention", "compress_cache")
LONGER = ("own_dlm", "rate_controller")


def test_every_example_is_run_by_a_test_and_the_short_ones_are_short() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SHORT, *LONGER}
    for name in SHORT:
        text = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
        assert len(text.splitlines()) < 40, name
        assert f"python examples/{name}.py" in text.split('"""')[1], name


def test_the_page_lists_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text("utf-8")
    files = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb", ".toml")]
    assert sorted(re.findall(r"^\| \[([\w.]+)\]\(\1\)", page, flags=re.MULTILINE)) == sorted(files)


def said(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    """What the example printed; the test is named after it."""
    name = request.node.name.removeprefix("test_")
    return said(name, capsys, monkeypatch, tmp_path)


def test_see_sinks(run: str) -> None:
    rows = re.findall(r"^ +(\d) +(\d+) +(\d+\.\d) at (\d+), '(.*)'$", run, flags=re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(8))
    assert max(float(row[2]) for row in rows) > 10  # tiny-dream has strong sinks
    assert sum(int(row[1]) for row in rows) > 8


def test_follow_sink(run: str) -> None:
    count, kinds = re.findall(r"^(\d+) sinks: (.*)$", run, flags=re.MULTILINE)[0]
    assert sum(int(one) for one in re.findall(r"(\d+) \w", kinds)) == int(count) > 20
    steps = re.findall(r"^  step +(\d+): position +(\d+), '.*', +(\d+\.\d) fair shares", run, flags=re.MULTILINE)
    assert len(steps) >= 8
    assert len({place for _, place, _ in steps}) > 1  # it moves
    assert [int(step) for step, _, _ in steps] == sorted(int(step) for step, _, _ in steps)


def test_mask_with_control(run: str) -> None:
    right = dict(re.findall(r"^(\S+) +(\d+) of 16 right", run, flags=re.MULTILINE))
    assert {name: int(count) for name, count in right.items()} == {
        "none": 16, "sinks:top=1": 1, "random:top=1": 14, "first:top=1": 16,
    }  # fmt: skip
    contrasts = re.findall(r"^sinks - \S+: ([+-]\d+) points \[([+-]\d+), ([+-]\d+)\]", run, flags=re.MULTILINE)
    assert len(contrasts) == 2
    assert all(int(low) <= int(points) <= int(high) < 0 for points, low, high in contrasts)


def test_own_metric(run: str) -> None:
    rows = re.findall(r"^layer (\d): key of the sink / median key (\d\.\d\d), shorter in (\d+)%$", run, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(8))
    assert all(0.3 < float(row[1]) < 3 for row in rows)


def test_own_intervention(run: str) -> None:
    before, _, after = re.findall(r"^(?:untouched|without first token|and again untouched): +(.*)$", run, re.MULTILINE)
    assert before == after and "#### 13" in before
    (received,) = re.findall(r"by layer: (.*)$", run, flags=re.MULTILINE)
    shares = [float(one) for one in received.split()]
    assert all(shares[:4]) and not any(shares[4:])


def test_compress_cache(run: str) -> None:
    found = dict(re.findall(r"^ *(low|random|high|whole cache): (\d) of 8", run, flags=re.MULTILINE))
    assert int(found["whole cache"]) == 8
    assert int(found["low"]) < int(found["high"])
