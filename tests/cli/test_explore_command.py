"""`sinklens explore` on traces on disk: what it writes, says and refuses."""

import json
import re
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import sinklens
from report.test_payload import unpack
from sinklens.cli.explore import explore, parse_heads
from sinklens.errors import TraceError, UsageError
from traces.synthetic import write_trace


@pytest.fixture(scope="module")
def diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("traces") / "diffusion", keys=24, steps=6)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("traces") / "causal", causal=True, keys=24, steps=6)


def payload_of(page: Path) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="sinklens-data">(.*?)</script>', page.read_text("utf-8"))
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_two_traces_side_by_side(
    diffusion: Path, causal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    explore([diffusion, causal], to=page, samples="0-1", heads="2.3,0.0", layers="0,2")
    said = capsys.readouterr()
    assert said.err == ""
    *entries, last = re.split(r"\n(?! )", said.out.rstrip())  # an entry goes on in lines that are moved in
    assert len(entries) == 4
    told = re.sub(r"\s+", " ", entries[0])
    assert told.startswith("synthetic, sample 0: 6 steps, 2 layers x 4 heads, 24 tokens, ")
    assert "exact: 2.3, 0.0; the others within " in told
    assert re.fullmatch(rf"written to {re.escape(str(page))} \([\d.]+ kB\)", re.sub(r"\s+", " ", last))
    payload = payload_of(page)
    assert [run["source"] for run in payload["runs"]] == ["diffusion", "causal"]
    assert [run["model"]["causal"] for run in payload["runs"]] == [False, True]
    assert [[one["sample"] for one in run["samples"]] for run in payload["runs"]] == [[0, 1], [0, 1]]
    assert str(tmp_path.parent) not in page.read_text("utf-8")


@pytest.mark.parametrize("which", ["diffusion", "causal"])
def test_exact_heads_of_a_trace_on_disk(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Norms too; under grouped queries heads 2 and 3 read the second key head."""
    folder: Path = request.getfixturevalue(which)
    explore([folder], to=tmp_path / "page.html", heads="1.3")
    (entry,) = payload_of(tmp_path / "page.html")["runs"][0]["samples"][0]["exact"]
    layer = sinklens.open_trace(folder).layer(0, 1, groups=True, norms=True)
    assert layer.key_norm is not None
    assert layer.value_norm is not None
    assert layer.output_norm is not None
    expected = {
        "received": layer.received[:, 3], "expected": layer.expected[:, 0], "viewers": layer.viewers[:, 0],
        "key_norm": layer.key_norm[:, 1], "value_norm": layer.value_norm[:, 1], "output_norm": layer.output_norm[:, 3],
    }  # fmt: skip
    for name, values in expected.items():
        assert np.array_equal(unpack(entry[name]), values, equal_nan=True), name
    assert set(entry["groups"]) == ({"last_row"} if which == "causal" else {"masked", "unmasked"})
    for name, group in layer.groups.items():
        assert np.array_equal(unpack(entry["groups"][name]["received"]), group.received[:, 3], equal_nan=True)


def test_every_second_step_and_sinks_only(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "some", detail="sinks", every=2, keys=24, steps=6)
    explore([folder], to=tmp_path / "page.html")
    run = payload_of(tmp_path / "page.html")["runs"][0]
    sample = run["samples"][0]
    assert (run["detail"], sample["step_numbers"]) == ("sinks", [0, 2, 4])
    # Positions 18 to 23 are committed by steps 0 to 5; the stored steps are 0, 2 and 4, and 5 lies behind them all.
    assert unpack(sample["committed"])[18:].tolist() == [0, 1, 1, 2, 2, 3]
    final = sinklens.open_trace(folder).info(0).ids
    assert np.array_equal(unpack(sample["final"]), final)
    assert set(final.tolist()) <= set(sample["tokens"]["ids"])
    assert final[-1] not in unpack(sample["canvas"])  # its step is not stored: only `final` knows it


def test_one_document_for_machines(diffusion: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    explore([diffusion], to=page, heads="1.2", json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["page"], document["bytes"]) == (str(page), page.stat().st_size)
    (run,) = document["runs"]
    (sample,) = run["samples"]
    assert (sample["sample"], sample["steps"], sample["tokens"]) == (0, 6, 24)
    assert (sample["layers"], sample["heads"], sample["exact"]) == (3, 4, ["1.2"])
    assert 0 < sample["loss"]["max_relative"] < 0.02


def test_a_page_without_a_name_gets_one(
    diffusion: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    explore([diffusion])
    explore([diffusion])
    assert sorted(path.name for path in Path("runs").iterdir()) == ["explore-1.html", "explore-2.html"]
    assert "written to runs/explore-2.html" in capsys.readouterr().out


@pytest.mark.parametrize("works", [True, False])
def test_opening_it(
    diffusion: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    works: bool,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or works)
    page = tmp_path / "a b.html"
    explore([diffusion], to=page, open_page=True)
    assert opened == [page.as_uri()]
    assert ("no browser could be started" in capsys.readouterr().err) is not works


def test_a_page_that_cannot_be_that_small_says_so(
    diffusion: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explore([diffusion], to=tmp_path / "page.html", heads="0.1", size=0.001)
    said = capsys.readouterr()
    (size,) = re.findall(r"^about ([\d.]+) kB: the exact heads take more than --size; ask for fewer", said.err)
    packed = len(json.dumps(payload_of(tmp_path / "page.html")["runs"][0]["samples"][0]["exact"]))
    assert 0.4 * packed < 1000 * float(size) < 1.2 * packed  # names and shapes weigh more in so small a page
    assert "left out to fit: 2 layers, 3 heads; a larger --size or fewer --layers show more" in said.out


def test_what_cannot_be_meant_is_refused(diffusion: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(
        UsageError, match=r"--heads '3' is no list of heads; expected LAYER\.HEAD,\.\.\., e\.g\. 3\.1,5\.0"
    ):
        explore([diffusion], to=page, heads="3")
    with pytest.raises(UsageError, match=r"head 9\.0 is not among those shown"):
        explore([diffusion], to=page, heads="9.0")
    with pytest.raises(UsageError, match="--samples 'one' is no list of numbers"):
        explore([diffusion], to=page, samples="one")
    with pytest.raises(UsageError, match=r"--size 0; expected a number of megabytes above 0"):
        explore([diffusion], to=page, size=0.0)
    with pytest.raises(UsageError, match=r"epsilon is 0\.0; expected a finite number above 0"):
        explore([diffusion], to=page, epsilon=0.0)
    with pytest.raises(UsageError, match="3 traces were given; expected one, or two to compare"):
        explore([diffusion] * 3, to=page)
    with pytest.raises(UsageError, match="is a folder; give a file"):
        explore([diffusion], to=tmp_path)
    with pytest.raises((UsageError, TraceError), match="nowhere"):
        explore([tmp_path / "nowhere"], to=page)
    assert not page.exists()


def test_heads_are_read_as_people_write_them() -> None:
    assert parse_heads(" 3.1 , 12.0") == [(3, 1), (12, 0)]
    assert parse_heads(None) is None


def test_the_options_of_the_command(diffusion: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(explore)
    page = tmp_path / "page.html"
    options = ["--to", str(page), "--samples", "1", "--heads", "0.0", "--layers", "0-1", "--epsilon", "4", "--json"]
    done = CliRunner().invoke(app, [str(diffusion), *options])
    assert done.exit_code == 0, done.output
    (sample,) = json.loads(done.stdout)["runs"][0]["samples"]
    assert (sample["sample"], sample["layers"], sample["exact"]) == (1, 2, ["0.0"])
    assert payload_of(page)["runs"][0]["samples"][0]["tracks"]["epsilon"] == 4
