"""A trace is read by other tools alone, and what docs/traces.md shows works."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinklens.sinks.detect import detect_sinks, excess
from sinklens.traces.read import Trace, open_trace
from sinklens.traces.schema import TABLES, schema
from traces.synthetic import write_trace

DOCS = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
ALL = [(causal, detail) for causal in (False, True) for detail in ("full", "sinks")]


@pytest.fixture(scope="module", params=ALL, ids=lambda kind: f"{'causal' if kind[0] else 'diffusion'}-{kind[1]}")
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    causal, detail = request.param
    folder = tmp_path_factory.mktemp("tools") / "a"
    return open_trace(write_trace(folder, causal=causal, detail=detail, with_maps=True, keys=20))


def pattern(trace: Trace, table: str) -> str:
    return str(trace.path / "samples" / "?????" / f"{table}.parquet")


def plain(value: Any) -> Any:
    """Lists, numbers and None, whatever the tool calls them; NaN is null here, as in pandas."""
    if isinstance(value, np.ndarray | list):
        return [plain(one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else float(value)
    return value.item() if isinstance(value, np.generic) else value


def rows_of(trace: Trace, table: str) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in row.items()} for row in trace.table(table).to_pylist()]


@pytest.mark.parametrize("table", TABLES)
def test_pandas(trace: Trace, table: str) -> None:
    pandas = pytest.importorskip("pandas")
    files = sorted(trace.path.glob(f"samples/?????/{table}.parquet"))
    rows = pandas.concat([pandas.read_parquet(file) for file in files]).to_dict("records")
    assert [{str(name): plain(value) for name, value in row.items()} for row in rows] == rows_of(trace, table)


@pytest.mark.parametrize("table", TABLES)
def test_duckdb(trace: Trace, table: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT * FROM '{pattern(trace, table)}'")
        names = [column[0] for column in found.description]
        rows = [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in found.fetchall()]
    key = [name for name in ("sample", "step", "layer", "head", "kv_head", "id") if name in names]
    assert sorted(rows, key=lambda row: [row[name] for name in key]) == sorted(
        rows_of(trace, table), key=lambda row: [row[name] for name in key]
    )


@pytest.mark.parametrize("table", TABLES)
def test_polars(trace: Trace, table: str) -> None:
    polars = pytest.importorskip("polars")
    rows = polars.read_parquet(pattern(trace, table)).to_dicts()
    assert [{name: plain(value) for name, value in row.items()} for row in rows] == rows_of(trace, table)


def test_datasets(trace: Trace, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    for table in ("attention", "uniform", "steps", "sample"):
        data = datasets.load_dataset(
            "parquet", data_files=pattern(trace, table), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert [{name: plain(value) for name, value in row.items()} for row in data] == rows_of(trace, table)


def block(language: str, containing: str) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) if containing in text]
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module", params=[False, True], ids=["diffusion", "causal"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("docs") / "a"
    return open_trace(write_trace(folder, causal=request.param, keys=30, steps=5))


def test_the_sql_of_the_docs_finds_the_sinks(full: Trace) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        rows = connection.execute(block("sql", "unnest").replace("runs/a", str(full.path))).fetchall()
    found = {tuple(row[:5]): row[6] for row in rows}
    wanted = {}
    for sample in full.samples:
        for layer in full.layers:
            read = full.layer(sample, layer)
            above = excess(read.received, read.expected)
            sinks = detect_sinks(read.received, read.expected, viewers=read.viewers)
            for step, head, key in np.argwhere(sinks).tolist():
                wanted[sample, step, layer, head, key] = above[step, head, key]
    assert len(wanted) > 20 and found.keys() == wanted.keys()
    np.testing.assert_allclose([found[site] for site in wanted], list(wanted.values()), rtol=1e-5)


def test_the_pandas_example_of_the_docs(full: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    space: dict[str, Any] = {}
    exec(block("python", "import pandas").replace("runs/a", str(full.path)), space)
    assert "position token" in capsys.readouterr().out.replace("  ", " ")
    read, canvases = full.layer(0, 1), full.canvases(0)
    share = read.fair_share[:, 2]
    assert space["table"]["position"].tolist() == np.nanargmax(share, -1).tolist()
    np.testing.assert_allclose(space["table"]["score"], np.nanmax(share, -1))
    at = canvases.ids[read.steps, np.nanargmax(share, -1)]
    assert space["table"]["token"].tolist() == [canvases.label(int(one)) for one in at]


def test_the_docs_name_every_column() -> None:
    for causal, detail in ALL:
        for table in TABLES:
            for name in schema(table, causal=causal, detail=detail).names:
                known = f"`{name}`" in DOCS or re.fullmatch(
                    r"(rest_share|expected|viewers)_(masked|unmasked|last_row)", name
                )
                assert known, f"{table}.{name} is not in docs/traces.md"


def test_the_docs_name_every_entry_of_the_manifest(full: Trace) -> None:
    named = set(full.manifest) | set(full.manifest["storage"]) | set(full.manifest["model"])
    for name in named - {"impl", "float"}:
        assert f"`{name}`" in DOCS, f"{name} is not in docs/traces.md"
