"""Row groups made apart and joined: the bytes of one writer, and footers read and written back."""

import errno
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinklens.errors import TraceError
from sinklens.traces import files, makers, sample, sifting, thrift
from sinklens.traces import joined as joined_module
from sinklens.traces.joined import TAIL, JoinedFile
from sinklens.traces.schema import TABLES, schema
from sinklens.traces.storage import Storage
from traces.synthetic import end_of, manifest, steps_of, write_trace


def table(rows: int, seed: int) -> pa.Table:
    draws = np.random.default_rng(seed)
    lists = [draws.random(draws.integers(0, 5)).astype(np.float32).tolist() for _ in range(rows)]
    columns = {
        "step": pa.array(np.arange(rows), pa.int32()),
        "received": pa.array(lists, pa.list_(pa.float32())),
        "text": pa.array([["a", None, "b"][i] for i in draws.integers(0, 3, rows)], pa.string()),
        "some": pa.array(draws.random(rows) > 0.5, pa.bool_()),
    }
    return pa.table(columns)


OPTIONS = {
    "compression": "zstd",
    "use_dictionary": ["text"],
    "column_encoding": {"received.list.element": "BYTE_STREAM_SPLIT"},
    "write_statistics": ["step", "some"],
    "write_page_checksum": True,
}


def alone(part: pa.Table, *, index: bool = False, group: int | None = None) -> memoryview:
    """A file of row groups of `group` rows, or of one."""
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(made, part.schema, **OPTIONS, write_page_index=index) as writer:
        writer.write_table(part, row_group_size=group or max(1, len(part)))
    return memoryview(made.getvalue())


def joined(path: Path, parts: Sequence[memoryview]) -> bytes:
    file = JoinedFile(path)
    for part in parts:
        file.append(part, nullcontext())
    file.close()
    return path.read_bytes()


def repeats(path: Path) -> bool:
    """Whether columns point to a repetition of what is known of them, as those of old versions of pyarrow do."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    return any(group.column(i).file_offset for i in range(group.num_columns))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    seed=st.integers(0, 99),
    group=st.none() | st.integers(1, 40),
)
def test_the_bytes_of_one_writer(tmp_path: Path, sizes: list[int], seed: int, group: int | None) -> None:
    parts = [table(rows, seed + i) for i, rows in enumerate(sizes)]
    whole = tmp_path / "whole.parquet"
    with pq.ParquetWriter(str(whole), parts[0].schema, **OPTIONS) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=group or max(1, len(part)))
    made = joined(tmp_path / "joined.parquet", [alone(part, group=group) for part in parts])
    if repeats(whole):
        assert pq.read_table(tmp_path / "joined.parquet").equals(pa.concat_tables(parts))
        assert not repeats(tmp_path / "joined.parquet")
    else:
        assert made == whole.read_bytes()


def test_a_disk_that_fails_while_it_is_seen_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is seen to the disk now and then, by whoever joins; its error is the trace's."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(joined_module, "SYNC_BYTES", 1)
    write_trace(tmp_path / "whole")
    monkeypatch.setattr(joined_module, "os", SimpleNamespace(fsync=failing))
    with pytest.raises(TraceError, match=r"Input/output error"):
        write_trace(tmp_path / "a")
    assert not list((tmp_path / "a" / "samples").iterdir())


@pytest.mark.parametrize("steps", [8, 9, 20])
def test_the_last_steps_leave_in_shorter_runs(tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is known how many will come; the same rows."""
    monkeypatch.setattr(sample, "BUFFER_BYTES", 20_000)
    groups = {}
    for known in (None, steps):
        folder = tmp_path / str(known)
        folder.mkdir()
        about = {"manifest": manifest(), "storage": Storage(), "guard": nullcontext, "steps": known}
        writer = sample.SampleWriter(folder, 0, **about)
        for rows in steps_of(0, steps=steps):
            writer.add(rows)
        writer.end(end_of(0))
        writer.close()
        groups[known] = pq.ParquetFile(folder / "steps.parquet").num_row_groups
    order = [("step", "ascending"), ("layer", "ascending"), ("head", "ascending")]
    rows_of = [pq.read_table(tmp_path / str(known) / "attention.parquet").sort_by(order) for known in groups]
    assert rows_of[0].equals(rows_of[1]) and groups[steps] > groups[None]


def test_places_of_an_index_move_too(tmp_path: Path) -> None:
    parts = [table(rows, seed) for seed, rows in enumerate((30, 1, 200))]
    joined(tmp_path / "a.parquet", [alone(part, index=True) for part in parts])
    assert pq.read_table(tmp_path / "a.parquet").equals(pa.concat_tables(parts))
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(2).column(0).has_offset_index


@pytest.mark.parametrize("name", TABLES)
def test_the_footer_of_every_table_is_written_back_as_it_was(name: str) -> None:
    wanted = schema(name, causal=False, detail="sinks")
    made = pa.BufferOutputStream()
    with pq.ParquetWriter(made, wanted, **Storage().writer_options(wanted)) as writer:
        writer.write_table(wanted.empty_table())
    data = bytes(made.getvalue())
    footer = data[-TAIL - int.from_bytes(data[-TAIL:-4], "little") : -TAIL]
    assert thrift.write(thrift.read(footer)) == footer


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x15", "in the middle of a value"),
        (b"\x18\x05ab", "in the middle of a value"),
        (b"\x00\x00", "1 bytes behind the end"),
        (b"\x1b\x00\x00", "of type 11, which Parquet does not use"),
    ],
)
def test_what_is_no_footer(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        thrift.read(data)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 2**31, -(2**63), 2**63 - 1])
def test_numbers_of_any_size(value: int) -> None:
    many = thrift.Items(thrift.I64, [value] * 20)
    struct = {
        1: (thrift.I64, value),
        40: (thrift.LIST, many),
        41: (thrift.TRUE, True),
        42: (thrift.DOUBLE, b"12345678"),
    }
    assert thrift.read(thrift.write(struct)) == struct


@pytest.mark.parametrize("detail", ["full", "sinks"])
def test_threads_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detail: str) -> None:
    turns = iter(range(10**6))

    def now_and_then_slow(make: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if next(turns) % 3 == 0:
                time.sleep(0.01)
            return make(*args)

        return run

    monkeypatch.setattr(sample, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(makers, "THREADS", 1)
    write_trace(tmp_path / "one", detail=detail, steps=25, keys=40)
    monkeypatch.setattr(makers, "THREADS", 4)
    for place, name in ((files, "_row_groups"), (sifting, "_find"), (sifting, "_pack")):
        monkeypatch.setattr(place, name, now_and_then_slow(getattr(place, name)))
    write_trace(tmp_path / "four", detail=detail, steps=25, keys=40)
    found = sorted((tmp_path / "one").rglob("*.parquet"))
    assert found
    for path in found:
        assert path.read_bytes() == (tmp_path / "four" / path.relative_to(tmp_path / "one")).read_bytes()
