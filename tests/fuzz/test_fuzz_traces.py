"""Hostile traces: manifests and Parquet files that are damaged, of other types, or of other sizes than they say."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sinklens as sl
from fuzz.damage import damaged, damaged_json
from fuzz.held import fuzzed, held, held_command
from fuzz.sound import fresh
from sinklens.errors import TraceError

KINDS = ("full", "sinks", "causal")
TABLES = ("attention", "uniform", "steps", "tokens", "sample", "norms", "hidden")


def read_all(folder: Path) -> None:
    """Everything that analyses read of a trace."""
    trace = sl.open_trace(folder)
    repr(trace)
    for sample in trace.samples:
        trace.info(sample)
        trace.canvases(sample)
        trace.maps(sample)
        for layer in trace.layers[:4]:
            trace.layer(sample, layer, groups=True, norms=True)
    trace.table("steps")
    trace.dataset("attention")


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_bytes())


@given(kind=st.sampled_from(KINDS), data=st.data())
@fuzzed(90)
def test_manifests(kind: str, data: Any, traces: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(traces[kind], tmp_path / "in" / "trace")
    (folder / "manifest.json").write_bytes(data.draw(damaged_json(manifest_of(folder))))
    held(lambda: read_all(folder), source=folder, out=tmp_path / "out")


@given(kind=st.sampled_from(KINDS), table=st.sampled_from(TABLES), data=st.data())
@fuzzed(60)
def test_parquet_files_with_damaged_bytes(
    kind: str, table: str, data: Any, traces: dict[str, Path], tmp_path: Path
) -> None:
    folder = fresh(traces[kind], tmp_path / "in" / "trace")
    path = folder / "samples" / "00000" / f"{table}.parquet"
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    held(lambda: read_all(folder), source=folder, out=tmp_path / "out")


@st.composite
def other_tables(draw: Any, table: Any) -> Any:
    """The table with a column gone, of another type, with other values, or with rows missing or twice."""
    act = draw(st.sampled_from(("drop", "retype", "values", "values", "null", "rows", "twice", "empty", "lists")))
    names = table.column_names
    name = draw(st.sampled_from(names))
    place = names.index(name)
    if act == "drop":
        return table.drop_columns([name])
    if act == "rows":
        return table.slice(draw(st.integers(0, table.num_rows)), draw(st.integers(0, table.num_rows)))
    if act == "twice":
        return pa.concat_tables([table, table])
    if act == "empty":
        return table.schema.empty_table()
    count, kind = table.num_rows, table.schema.field(name).type
    if act == "null":
        column = pa.nulls(count, kind)
    elif act == "retype":
        other = draw(st.sampled_from((pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string()))))
        column = pa.nulls(count, other)
        if other == pa.string():
            column = pa.array(["../x"] * count)
        if other == pa.int64():
            column = pa.array([2**62] * count)
    else:
        number = draw(st.sampled_from((0, -1, 1, 5, 12, 1000, 2**31 - 1, -(2**31))))
        column = of_type(kind, number, count, length=draw(st.integers(0, 9)) if act == "lists" else None)
    return table.set_column(place, name, column)


def of_type(kind: Any, number: int, count: int, length: int | None) -> Any:
    """A column full of one number, as its type can hold it."""
    if pa.types.is_list(kind):
        size = 6 if length is None else length
        inner = of_type(kind.value_type, number, size, None).to_pylist()
        return pa.array([inner] * count, kind)
    if pa.types.is_string(kind):
        return pa.array([str(number)] * count, kind)
    if pa.types.is_boolean(kind):
        return pa.array([number > 0] * count, kind)
    if pa.types.is_int16(kind):
        number = int(np.clip(number, -(2**15), 2**15 - 1))
    return pa.array([number] * count, pa.int64() if pa.types.is_integer(kind) else pa.float64()).cast(kind, safe=False)


@given(kind=st.sampled_from(KINDS), table=st.sampled_from(TABLES), data=st.data())
@fuzzed(110)
def test_parquet_files_with_other_content(
    kind: str, table: str, data: Any, traces: dict[str, Path], tmp_path: Path
) -> None:
    folder = fresh(traces[kind], tmp_path / "in" / "trace")
    path = folder / "samples" / "00000" / f"{table}.parquet"
    rewrite(path, data.draw(other_tables(pq.read_table(path, partitioning=None))))
    held(lambda: read_all(folder), source=folder, out=tmp_path / "out")


def rewrite(path: Path, table: Any) -> None:
    pq.write_table(table, path)


@given(
    kind=st.sampled_from(KINDS),
    table=st.sampled_from(TABLES),
    command=st.sampled_from(("sinks", "explore")),
    data=st.data(),
)
@fuzzed(25)
def test_commands_on_hostile_traces(  # noqa: PLR0917 (what is drawn, and fixtures)
    kind: str, table: str, command: str, data: Any, traces: dict[str, Path], tmp_path: Path
) -> None:
    folder = fresh(traces[kind], tmp_path / "in" / "trace")
    path = folder / "samples" / "00000" / f"{table}.parquet"
    if data.draw(st.booleans()):
        (folder / "manifest.json").write_bytes(data.draw(damaged_json(manifest_of(folder))))
    else:
        rewrite(path, data.draw(other_tables(pq.read_table(path, partitioning=None))))
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    target = out / ("page.html" if command == "explore" else "sinks")
    held_command(command, str(folder), "--to", str(target), source=folder, out=out)


@example(name="00000\n")
@example(name="99999999999999999999999999")
@example(name="\uff11\uff12\uff13\uff14\uff15")  # digits, but none of ours
@given(
    name=st.from_regex(r"\d{5,}", fullmatch=True)
    | st.text(st.characters(exclude_characters="/\0", categories=["L", "N", "P", "Z"]), min_size=1, max_size=40)
)
@fuzzed(30)
def test_names_of_samples(name: str, traces: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(traces["full"], tmp_path / "in" / "trace")
    if name in (".", "..") or len(name.encode()) > 250:
        return
    (folder / "samples" / name).mkdir(exist_ok=True)
    held(lambda: read_all(folder), source=folder, out=tmp_path / "out")


def test_a_link_out_of_the_samples(traces: dict[str, Path], tmp_path: Path) -> None:
    """Followed to read, as a moved disk needs it; a link to what is no sample is a refusal."""
    folder = fresh(traces["full"], tmp_path / "in" / "trace")
    (folder / "samples" / "00001" / "steps.parquet").unlink()
    (folder / "samples" / "00001" / "steps.parquet").symlink_to("/etc/passwd")
    assert "steps.parquet" in str(held(lambda: read_all(folder), source=folder).error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": "many"}, 'samples is "many"'),
        ({"layers": 3}, "layers is 3"),
        ({"heads": [0, "1"]}, "heads is"),
        ({"model": ["name"]}, "lacks model.name"),
        ({"detail": "all"}, 'detail is "all"'),
    ],
)
def test_a_manifest_of_other_types_is_refused_by_the_entry(
    change: dict[str, Any], words: str, traces: dict[str, Path], tmp_path: Path
) -> None:
    folder = fresh(traces["full"], tmp_path / "in" / "trace")
    (folder / "manifest.json").write_text(json.dumps(manifest_of(folder) | change))
    with pytest.raises(TraceError, match=words):
        sl.open_trace(folder)


def test_a_column_of_another_type_is_refused_by_its_name(traces: dict[str, Path], tmp_path: Path) -> None:
    folder = fresh(traces["full"], tmp_path / "in" / "trace")
    path = folder / "samples" / "00000" / "attention.parquet"
    table = pq.read_table(path, partitioning=None)
    place = table.column_names.index("received")
    rewrite(path, table.set_column(place, "received", pa.array(["x"] * table.num_rows)))
    with pytest.raises(TraceError, match="received is string, not list"):
        sl.open_trace(folder).layer(0, 0)
