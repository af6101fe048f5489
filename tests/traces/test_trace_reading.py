"""Opening a trace: only what is needed is read, quickly, and what is wrong is said."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sinklens.errors import TraceError, UsageError
from sinklens.traces.read import open_trace
from sinklens.traces.rows import AttentionRows, GroupRows, StepRows
from sinklens.traces.write import TraceWriter
from traces.synthetic import end_of, manifest, write_trace


def large_step(step: int, rng: np.random.Generator, *, layers: int, heads: int, keys: int) -> StepRows:
    """Attention of a size that counts, with one group."""
    uniform = np.ones((layers, 1, keys), np.float32)
    received, masked = rng.lognormal(-1, 1, (2, layers, heads, keys)).astype(np.float32)
    rows = AttentionRows(
        layers=range(layers),
        heads=range(heads),
        received=received,
        expected=uniform,
        viewers=uniform,
        queries=keys,
        groups={"masked": GroupRows(received=masked, expected=uniform, viewers=uniform)},
    )
    return StepRows(
        step=step,
        ids=np.arange(keys),
        masked=np.ones(keys, bool),
        committed=np.array([0]),
        committed_ids=np.array([0]),
        confidence=np.zeros(keys, np.float32),
        attention=rows,
    )


def write_large(folder: Path, *, steps: int, layers: int, heads: int, keys: int) -> Path:
    rng = np.random.default_rng(0)
    with TraceWriter.create(folder, manifest(layers=layers, heads=heads), samples=1) as writer:
        with writer.sample(0) as sample:
            for step in range(steps):
                sample.add(large_step(step, rng, layers=layers, heads=heads, keys=keys))
            sample.end(end_of(0))
        writer.finish()
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large(tmp_path_factory.mktemp("large") / "a", steps=32, layers=16, heads=16, keys=128)


class CountingFile:
    """A file that counts the bytes read from it."""

    def __init__(self, path: Path, counts: list[int]) -> None:
        self.file, self.counts = path.open("rb"), counts

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.counts.append(len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The size of every read from a Parquet file."""
    sizes: list[int] = []
    original: Callable[..., Any] = pq.ParquetFile
    with ExitStack() as files:

        def counting(source: Any, **options: Any) -> Any:
            file = CountingFile(Path(source), sizes)
            files.callback(file.file.close)
            return original(file, **options)

        monkeypatch.setattr(pq, "ParquetFile", counting)
        yield sizes


def test_one_layer_touches_only_its_row_groups(large: Path, counts: list[int]) -> None:
    trace = open_trace(large)
    trace.layer(0, 0)  # footers are known from here on
    counts.clear()
    whole = (large / "samples" / "00000" / "attention.parquet").stat().st_size
    assert trace.layer(0, 11).received.shape == (32, 16, 128)
    assert 0.3 * whole / 16 < sum(counts) < 0.8 * whole / 16  # one layer of 16, and one of its two large columns
    counts.clear()
    trace.layer(0, 11, groups=True)
    assert 0.8 * whole / 16 < sum(counts) < 1.3 * whole / 16
    counts.clear()
    assert trace.table("attention", ["received"], layers=[3, 4]).num_rows == 2 * 32 * 16
    assert 0.7 * whole / 16 < sum(counts) < 1.3 * whole / 16
    rows = trace.table("attention", ["received"], layers=[3])
    assert rows.column_names == ["received"] and rows.num_rows == 32 * 16


def test_reading_a_layer_loads_no_other(large: Path) -> None:
    """The memory of a fresh process grows by a few layers' worth at most, not by the whole table."""
    code = f"""
import resource
from sinklens.traces.read import open_trace
trace = open_trace({str(large)!r})
trace.layer(0, 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace.layer(0, 7)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, 'torch' in __import__('sys').modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, torch = done.stdout.split()
    assert int(grown) < 8 * (32 * 16 * 128 * 4)  # all of it would be 32 times that array
    assert torch == "False"


def test_tables_and_datasets(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "a", samples=3))
    assert trace.table("attention").num_rows == 3 * 4 * 3 * 4
    assert trace.table("steps", ["sample", "step"], samples=[2]).to_pydict() == {
        "sample": [2] * 4,
        "step": [0, 1, 2, 3],
    }
    assert set(trace.table("attention", ["layer"], layers=[1]).to_pydict()["layer"]) == {1}
    assert trace.table("attention", samples=[]).num_rows == 0
    data = trace.dataset("attention")
    assert data.count_rows() == 3 * 4 * 3 * 4
    import pyarrow.compute as pc

    assert data.to_table(filter=(pc.field("layer") == 2) & (pc.field("sample") == 1)).num_rows == 16
    for name in ("attention", "uniform", "norms", "hidden", "steps", "tokens", "sample", "timing"):
        assert trace.table(name).schema.equals(trace.dataset(name).schema)
    assert repr(trace) == f"Trace({str(tmp_path / 'a')!r}, 'synthetic', 3 of 3 samples, full)"


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "a", samples=3, norms=False))
    for message, action in {
        "layer 3 is not in this trace; it has 0 to 2": lambda: trace.layer(0, 3),
        "sample 7 is not in this trace; it has 0 to 2": lambda: trace.layer(7, 0),
        "unknown table 'heads'; expected one of 'attention', ": lambda: trace.table("heads"),
        "this trace has no table 'norms': it was not recorded": lambda: trace.table("norms"),
        "this trace has no table 'maps': it was not recorded": lambda: trace.dataset("maps"),
        "unknown column of attention 'mass'; expected one of 'sample', ": lambda: trace.table("attention", ["mass"]),
        "table 'steps' has no layers; leave them out": lambda: trace.table("steps", layers=[0]),
    }.items():
        with pytest.raises(UsageError, match=message):
            action()


def test_what_is_not_a_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"there is no folder .*nowhere; give the folder that a trace was written to"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"is not a trace: it has no manifest\.json"):
        open_trace(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(TraceError, match=r"is not a trace: manifest\.json does not say format 'sinklens-trace'"):
        open_trace(str(tmp_path))


def changed(folder: Path, **entries: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_versions_and_damage_of_the_manifest(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "a")
    changed(folder, version=3, brand_new=True)
    wanted = r"was written by a newer sinklens \(format 3\); this one reads up to 1; upgrade sinklens"
    with pytest.raises(TraceError, match=wanted):
        open_trace(folder)
    with pytest.raises(TraceError, match=wanted):
        TraceWriter.create(folder, manifest(), samples=2, resume=True)
    changed(folder, version="one")
    with pytest.raises(TraceError, match=r"is damaged \(version is 'one'\)"):
        open_trace(folder)
    changed(folder, version=1)
    assert open_trace(folder).manifest["brand_new"]  # what is not known is kept and does no harm
    changed(folder, model={"name": "x"})
    with pytest.raises(TraceError, match=r"is damaged \(it lacks model.family, .*restore it from a copy"):
        open_trace(folder)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])
    with pytest.raises(TraceError, match=r"manifest.json is damaged \(.*record the trace again"):
        open_trace(folder)
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"manifest.json is damaged"):
        open_trace(folder)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "a")
    file = folder / "samples" / "00001" / "attention.parquet"
    data = file.read_bytes()
    advice = r"delete the folder .*00001 and resume the trace, which records that sample again"

    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=rf"00001/attention\.parquet of sample 1 cannot be read \(.*{advice}"):
        open_trace(folder).layer(1, 0)
    with pytest.raises(TraceError, match=rf"attention\.parquet of sample 1 cannot be read \(.*{advice}"):
        open_trace(folder).table("attention")
    assert open_trace(folder).layer(0, 0).received.shape == (4, 4, 12)  # the others are not harmed

    file.unlink()
    with pytest.raises(TraceError, match=rf"attention\.parquet of sample 1 is missing; {advice}"):
        open_trace(folder).layer(1, 0)

    flipped = bytearray(data)
    place = pq.read_metadata(folder / "samples" / "00000" / "attention.parquet").row_group(0).column(4)
    flipped[place.data_page_offset + place.total_compressed_size // 2] ^= 0x10
    file.write_bytes(flipped)
    with pytest.raises(TraceError, match=rf"attention\.parquet of sample 1 cannot be read \(.*{advice}"):
        open_trace(folder).layer(1, 1)

    (folder / "samples" / "00000" / "norms.parquet").unlink()
    with pytest.raises(TraceError, match=r"norms\.parquet of sample 0 is missing"):
        open_trace(folder).layer(0, 1, norms=True)
    assert open_trace(folder).layer(0, 1).key_norm is None


@pytest.mark.parametrize("left", [0, 1])
def test_steps_that_were_lost_are_noticed(tmp_path: Path, left: int) -> None:
    folder = write_trace(tmp_path / "a", samples=1)
    file = folder / "samples" / "00000" / "steps.parquet"
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, left), file)
    with pytest.raises(TraceError, match=rf"steps\.parquet of sample 0 cannot be read \({left} rows for 4 steps\)"):
        open_trace(folder).canvases(0)


def test_rows_that_were_lost_are_noticed(tmp_path: Path) -> None:
    folder = write_trace(tmp_path / "a", samples=1)
    for name in ("attention", "uniform"):
        file = folder / "samples" / "00000" / f"{name}.parquet"
        rows, data = pq.read_table(file), file.read_bytes()
        pq.write_table(rows.slice(1), file)
        with pytest.raises(TraceError, match=r"of sample 0 cannot be read \(.*(each step and head|does not cover)"):
            open_trace(folder).layer(0, 0)
        file.write_bytes(data)
    rewritten = folder / "samples" / "00000" / "attention.parquet"
    before = open_trace(folder).layer(0, 2, groups=True).received
    pq.write_table(pq.read_table(rewritten), rewritten, write_statistics=False, compression="snappy")
    np.testing.assert_array_equal(open_trace(folder).layer(0, 2, groups=True).received, before)
