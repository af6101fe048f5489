"""What is written is what is read: every array, every table, at the width the manifest promises."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sinklens.sinks.arrays import TraceLike
from sinklens.traces import gather
from sinklens.traces import sample as sample_module
from sinklens.traces.estimate import estimate_bytes
from sinklens.traces.read import open_trace
from sinklens.traces.rows import AttentionRows
from sinklens.traces.storage import round_mantissa
from sinklens.traces.write import TraceWriter
from traces.synthetic import MASK_ID, end_of, manifest, steps_of, write_trace

RECEIVED_ERROR, NORM_ERROR = 2.0**-13, 2.0**-9


def assert_close(stored: np.ndarray, came: np.ndarray, error: float) -> None:
    """Equal within a relative error; behind the keys of that step there is nothing."""
    keys = came.shape[-1]
    np.testing.assert_allclose(stored[..., :keys], came, rtol=error, atol=0)
    assert np.isnan(stored[..., keys:]).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_array_of_every_layer_comes_back(tmp_path: Path, causal: bool, exact: bool) -> None:
    options: dict[str, Any] = {"causal": causal, "every": 2, "steps": 5}
    trace = open_trace(write_trace(tmp_path / "a", exact=exact, **options))
    assert isinstance(trace, TraceLike)
    assert (trace.samples, trace.layers, trace.heads, trace.causal) == ([0, 1], [0, 1, 2], [0, 1, 2, 3], causal)
    assert (trace.name, trace.detail, trace.complete) == ("synthetic", "full", True)
    came = [rows for rows in steps_of(1, **options) if rows.attention is not None]
    wide, narrow = (0, 0) if exact else (RECEIVED_ERROR, NORM_ERROR)
    for layer in trace.layers:
        read = trace.layer(1, layer, groups=True, norms=True)
        assert read.layer == layer and read.kept is None
        assert read.steps.tolist() == [0, 2, 4] and read.heads.tolist() == [0, 1, 2, 3]
        assert set(read.groups) == ({"last_row"} if causal else {"masked", "unmasked"})
        for index, rows in enumerate(came):
            seen = rows.attention
            assert seen is not None
            for name, part in seen.readings.items():
                stored = read if name is None else read.groups[name]
                assert_close(stored.received[index], part.received[layer], wide)
                keys = part.expected.shape[-1]
                for kind in ("expected", "viewers"):
                    np.testing.assert_array_equal(getattr(stored, kind)[index, :, :keys], getattr(part, kind)[layer])
                    assert not getattr(stored, kind)[index, :, keys:].any()
            for name in ("key_norm", "value_norm", "output_norm", "hidden_norm"):
                assert_close(getattr(read, name)[index], getattr(seen, name)[layer], narrow)
            for name in ("output_rank", "output_size"):
                np.testing.assert_array_equal(getattr(read, name)[index], getattr(seen, name)[layer])
        assert read.null_mass is None


@pytest.mark.parametrize("causal", [False, True])
def test_canvases_hold_every_step(tmp_path: Path, causal: bool) -> None:
    options: dict[str, Any] = {"causal": causal, "every": 3}
    trace = open_trace(write_trace(tmp_path / "a", **options))
    canvases, end = trace.canvases(1), end_of(1)
    assert canvases.ids.shape == (4, 12) and canvases.prompt_length == 8
    for index, rows in enumerate(steps_of(1, **options)):
        keys = len(rows.ids)
        np.testing.assert_array_equal(canvases.ids[index, :keys], rows.ids)
        assert (canvases.ids[index, keys:] == -1).all()
        np.testing.assert_array_equal(canvases.masked[index, :keys], rows.masked)
        assert np.flatnonzero(canvases.committed[index]).tolist() == rows.committed.tolist()
        confidence = canvases.confidence[index, : len(rows.confidence)]
        np.testing.assert_array_equal(confidence, rows.confidence)
        assert canvases.blocks[index].tolist() == ([-1, -1] if causal else [8, 12])
    assert canvases.label(MASK_ID) == "<99>"
    assert canvases.tokens == {one: text for one, (text, _) in end.tokens.items()}
    assert canvases.classes == {one: name for one, (_, name) in end.tokens.items() if name is not None}
    info = trace.info(1)
    assert (info.prompt, info.text, info.prompt_length, info.steps, info.positions) == ("prompt 1", None, 8, 4, 12)
    np.testing.assert_array_equal(info.ids, end.ids)


def test_what_was_not_asked_for_is_not_read(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "a"))
    bare = trace.layer(0, 0)
    assert bare.groups == {} and bare.key_norm is None and bare.output_norm is None and bare.hidden_norm is None
    assert trace.layer(0, 0, groups=True).key_norm is None
    assert trace.layer(0, 0, norms=True).groups == {}


def test_what_was_not_recorded_is_none(tmp_path: Path) -> None:
    with TraceWriter.create(tmp_path / "a", manifest(), samples=1) as writer:
        with writer.sample(0) as sample:
            for rows in steps_of(0, norms=False):
                assert rows.attention is not None
                sample.add(replace(rows, attention=replace(rows.attention, groups={})))
            sample.end(end_of(0))
        writer.finish()
    trace = open_trace(tmp_path / "a")
    read = trace.layer(0, 2, groups=True, norms=True)
    assert read.groups == {} and trace.maps(0) == []
    for name in ("key_norm", "value_norm", "output_norm", "hidden_norm", "output_rank", "output_size", "null_mass"):
        assert getattr(read, name) is None
    assert not (tmp_path / "a" / "samples" / "00000" / "norms.parquet").exists()


def test_expected_may_differ_between_layers_and_heads(tmp_path: Path) -> None:
    """One row for all while they agree, else one a layer, and one a head where masks differ between heads."""

    def stretched(rows: AttentionRows, step: int) -> AttentionRows:
        heads = 4 if step == 2 else 1
        expected = np.broadcast_to(rows.expected, (3, heads, rows.expected.shape[-1])).copy()
        if step > 0:
            expected *= 1 + np.arange(3 * heads).reshape(3, heads, 1)
        return replace(rows, expected=expected, viewers=np.ones_like(expected))

    with TraceWriter.create(tmp_path / "a", manifest(), samples=1) as writer:
        with writer.sample(0) as sample:
            for rows in steps_of(0, steps=3):
                assert rows.attention is not None
                sample.add(replace(rows, attention=stretched(rows.attention, rows.step)))
            sample.end(end_of(0, steps=3))
        writer.finish()
    trace = open_trace(tmp_path / "a")
    uniform = trace.table("uniform", ["step", "layer", "head"]).to_pylist()
    count = {step: sum(row["step"] == step for row in uniform) for step in range(3)}
    assert count == {0: 1, 1: 3, 2: 12}
    read = trace.layer(0, 2)
    assert read.expected.shape == (3, 4, 12)
    np.testing.assert_allclose(read.expected[:, :, 0], [[1, 1, 1, 1], [3, 3, 3, 3], [9, 10, 11, 12]])


def test_maps_come_back(tmp_path: Path) -> None:
    trace = open_trace(write_trace(tmp_path / "a", with_maps=True, causal=True))
    came = [rows.attention for rows in steps_of(1, with_maps=True, causal=True)]
    read = trace.maps(1)
    assert [site[:3] for site in read] == [(step, 1, 2) for step in range(4)]
    for (*_, values), rows in zip(read, came, strict=True):
        assert rows is not None
        np.testing.assert_allclose(values, rows.maps[1, 2], rtol=RECEIVED_ERROR)


@pytest.mark.parametrize("detail", ["full", "sinks"])
@pytest.mark.parametrize("causal", [False, True])
def test_many_small_row_groups_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causal: bool, detail: str
) -> None:
    """However often the buffer is emptied, every table and every layer is the same."""
    whole = open_trace(write_trace(tmp_path / "whole", causal=causal, detail=detail, steps=7, with_maps=True))
    monkeypatch.setattr(sample_module, "BUFFER_BYTES", 4000)
    monkeypatch.setattr(sample_module, "SIFTED_BYTES", 1)
    monkeypatch.setattr(gather, "GROUP_BYTES", 1)
    often = open_trace(write_trace(tmp_path / "often", causal=causal, detail=detail, steps=7, with_maps=True))
    group_counts = [
        sum(fragment.num_row_groups for fragment in trace.dataset("attention").get_fragments())
        for trace in (whole, often)
    ]
    assert group_counts[0] == 2 < group_counts[1]  # samples: three small layers share a row group
    for name in ("steps", "timing", "tokens", "sample", "maps"):
        assert whole.table(name).equals(often.table(name))
    for layer in whole.layers:
        for name in ("attention", "uniform", "norms", "hidden"):
            tables = [trace.table(name, layers=[layer]) for trace in (whole, often)]
            order = [("sample", "ascending"), ("step", "ascending")]
            assert tables[0].sort_by(order).equals(tables[1].sort_by(order))
        arrays = [trace.layer(1, layer, groups=True, norms=True) for trace in (whole, often)]
        for one in fields(arrays[0]):
            if one.name != "groups":
                np.testing.assert_array_equal(getattr(arrays[0], one.name), getattr(arrays[1], one.name))


def test_arrays_are_copied(tmp_path: Path) -> None:
    """A recorder may fill the same arrays again for the next step."""
    rows = next(iter(steps_of(0, steps=1)))
    assert rows.attention is not None
    before = rows.attention.received.copy()
    writer = TraceWriter.create(tmp_path / "a", manifest(), samples=1, exact=True)
    with writer, writer.sample(0) as sample:
        sample.add(rows)
        rows.attention.received[:] = 7
        rows.ids[:] = 7
        sample.end(end_of(0, steps=1))
    trace = open_trace(tmp_path / "a")
    np.testing.assert_array_equal(trace.layer(0, 1).received[0], before[1])
    assert (trace.canvases(0).ids != 7).any()


@given(
    values=hnp.arrays(np.uint32, st.integers(1, 40)),
    bits=st.integers(1, 23),
)
@settings(max_examples=300, deadline=None)
def test_rounding_any_bits(values: np.ndarray, bits: int) -> None:
    """Any float32, NaN and infinity included: the error is half a unit of the last bit kept, what is dropped is 0."""
    came = values.view(np.float32)
    stored = round_mantissa(came, bits)
    finite = np.isfinite(came)
    np.testing.assert_array_equal(stored[~finite], came[~finite])
    assert np.isfinite(stored[finite]).all()
    normal = finite & (np.abs(came) >= np.finfo(np.float32).tiny)
    exact = came[normal].astype(np.float64)
    assert (np.abs(stored[normal] / exact - 1) <= 2.0 ** -(bits + 1)).all()
    held = finite & (np.abs(came) < 1e38)
    assert not (stored[held].view(np.uint32) & np.uint32((1 << (23 - bits)) - 1)).any()
    again = round_mantissa(stored, bits)
    np.testing.assert_array_equal(again[held], stored[held])


def test_rounding_ties_go_to_even() -> None:
    came = np.array([1 + 2**-13, 1 + 3 * 2**-13, -(1 + 2**-13)], np.float32)
    assert round_mantissa(came, 12).tolist() == [1.0, 1 + 2**-11, -1.0]


def test_the_manifest_says_how_it_is_stored(tmp_path: Path) -> None:
    write_trace(tmp_path / "a", samples=1)
    plain = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert plain["format"] == "sinklens-trace" and plain["version"] == 1 and plain["complete"] is True
    assert plain["unit"] == "attention_sum" and plain["samples"] == 1 and plain["impl"] == ["synthetic"]
    assert plain["created"] <= plain["finished"]
    assert plain["storage"] == {
        "float": "float32", "received_bits": 12, "norm_bits": 8, "exact": False, "compression": "zstd", "level": 3,
        "encoding": "BYTE_STREAM_SPLIT",
    }  # fmt: skip
    chunks = pq.read_metadata(tmp_path / "a" / "samples" / "00000" / "attention.parquet").row_group(0)
    received = chunks.column(4)
    assert received.path_in_schema == "received.list.element" and received.compression == "ZSTD"
    assert "BYTE_STREAM_SPLIT" in received.encodings and not received.has_dictionary_page
    write_trace(tmp_path / "b", samples=1, exact=True)
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["storage"]["exact"] is True


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": 3, "heads": 4, "keys": 12, "steps": 4},
        {"layers": 2, "heads": 16, "keys": 64, "steps": 20, "every": 3},
        {"layers": 4, "heads": 6, "keys": 48, "steps": 16, "norms": False},
    ],
    ids=["small", "every third step", "without norms"],
)
def test_the_estimate_is_near(tmp_path: Path, sizes: dict[str, Any], causal: bool, exact: bool) -> None:
    folder = write_trace(tmp_path / "a", causal=causal, exact=exact, **sizes)
    real = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    guess = estimate_bytes(samples=2, kv_heads=2, causal=causal, exact=exact, **sizes)
    assert real / 1.5 < guess < real * 1.5
    fewer = estimate_bytes(samples=2, kv_heads=2, causal=causal, exact=exact, detail="sinks", **sizes | {"keys": 192})
    assert fewer < estimate_bytes(samples=2, kv_heads=2, causal=causal, exact=exact, **sizes | {"keys": 192})


def test_a_later_step_may_have_wider_numbers(tmp_path: Path) -> None:
    """Numbers of one column lie one step behind the other: the width of the first does not decide."""

    def narrowed(rows: AttentionRows, step: int) -> AttentionRows:
        return replace(rows, received=rows.received.astype(np.float16)) if step == 0 else rows

    came = [rows.attention for rows in steps_of(0)]
    with TraceWriter.create(tmp_path / "a", manifest(), samples=1, exact=True) as writer:
        with writer.sample(0) as sample:
            for rows in steps_of(0):
                assert rows.attention is not None
                sample.add(replace(rows, attention=narrowed(rows.attention, rows.step)))
            sample.end(end_of(0))
        writer.finish()
    read = open_trace(tmp_path / "a").layer(0, 1)
    for step, seen in enumerate(came):
        assert seen is not None
        np.testing.assert_array_equal(read.received[step], narrowed(seen, step).received[1].astype(np.float32))
