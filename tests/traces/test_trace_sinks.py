"""A trace that keeps only what stands out finds the same sinks as one that keeps every key."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import detect_sinks, excess
from sinklens.sinks.track import track_sinks
from sinklens.traces.read import Trace, open_trace
from sinklens.traces.rows import AttentionRows, GroupRows, StepRows
from sinklens.traces.write import TraceWriter
from traces.synthetic import end_of, manifest, write_trace

CLOSE = 1e-4  # scores this near a threshold may fall on either side: the mean of the rest is a float32


def spiky_steps(seed: int, *, causal: bool, steps: int, keys: int, heads_differ: bool) -> Iterator[StepRows]:
    """Scores of every kind: spikes, values about 1 fair share above the rest, zeros, keys that nobody sees."""
    rng = np.random.default_rng(seed)
    layers, heads = 2, 4
    for step in range(steps):
        now = keys + step if causal else keys
        seen = rng.random((layers, heads if heads_differ else 1, now)) > 0.1

        def reading(seen: np.ndarray, now: int = now) -> GroupRows:
            expected = (rng.uniform(0.2, 2, seen.shape) * seen).astype(np.float32)
            share = rng.lognormal(-1, 1, (layers, heads, now)) * (rng.random((layers, heads, now)) > 0.2)
            share += rng.choice([0, 0, 0, 0, 1.1, 1.6, 6], share.shape) * rng.uniform(0.9, 1.1, share.shape)
            viewers = np.ceil(expected * now)
            return GroupRows(received=(share * expected).astype(np.float32), expected=expected, viewers=viewers)

        groups = ("last_row",) if causal else ("masked", "unmasked")
        attention = AttentionRows(
            layers=range(layers),
            heads=range(heads),
            **vars(reading(seen)),
            queries=now,
            groups={name: reading(seen & (rng.random(seen.shape) > 0.1)) for name in groups},
            key_norm=rng.random((layers, 2, now), dtype=np.float32),
            output_norm=rng.random((layers, heads, now), dtype=np.float32),
            hidden_norm=rng.random((layers, now), dtype=np.float32),
        )
        yield StepRows(
            step=step,
            ids=np.zeros(now, np.int64),
            masked=np.zeros(now, bool),
            committed=np.zeros(0, np.int64),
            committed_ids=np.zeros(0, np.int64),
            confidence=np.full(now, np.nan, np.float32),
            attention=attention,
        )


def both(folder: Path, steps: list[StepRows], *, causal: bool) -> tuple[Trace, Trace]:
    for detail in ("full", "sinks"):
        with TraceWriter.create(folder / detail, manifest(causal=causal, detail=detail, layers=2), samples=1) as writer:
            with writer.sample(0) as sample:
                for rows in steps:
                    sample.add(rows)
                sample.end(end_of(0))
            writer.finish()
    return open_trace(folder / "full"), open_trace(folder / "sinks")


def readings(layer: LayerArrays) -> list[LayerArrays]:
    return [layer.reading(name) for name in ("received", *layer.groups)]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    causal=st.booleans(),
    steps=st.integers(1, 5),
    keys=st.integers(2, 24),
    heads_differ=st.booleans(),
    epsilon=st.floats(1, 8),
)
def test_the_same_sinks_at_any_epsilon_of_1_or_more(seed: int, epsilon: float, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        full, few = both(Path(folder), list(spiky_steps(seed, **options)), causal=options["causal"])
        for number in full.layers:
            complete, sparse = (trace.layer(0, number, groups=True, norms=True) for trace in (full, few))
            assert sparse.kept is not None and complete.kept is None
            for one, other in zip(readings(complete), readings(sparse), strict=True):
                compare(one, other, sparse.kept, epsilon)
            compare_norms(complete, sparse)


def compare(one: LayerArrays, other: LayerArrays, kept: np.ndarray, epsilon: float) -> None:
    np.testing.assert_array_equal(one.expected, other.expected)
    np.testing.assert_array_equal(one.received[kept], other.received[kept])
    above, found = (excess(layer.received, layer.expected) for layer in (one, other))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found[kept], above[kept], rtol=CLOSE, atol=CLOSE)
        for threshold in (1.0, 1.5, 3.0, epsilon):
            clear = np.abs(above - threshold) > CLOSE
            np.testing.assert_array_equal((above > threshold)[clear], (found > threshold)[clear])
    visible = np.broadcast_to(one.expected > 0, one.received.shape)
    share, filled = (np.where(visible, layer.fair_share, 0).sum(-1) for layer in (one, other))
    np.testing.assert_allclose(filled, share, rtol=1e-5)


def compare_norms(one: LayerArrays, other: LayerArrays) -> None:
    """Kept values are the same, and so is the mean over keys."""
    assert other.kept is not None and one.output_norm is not None and other.output_norm is not None
    np.testing.assert_array_equal(one.output_norm[other.kept], other.output_norm[other.kept])
    by_kv_head = other.kept.reshape(len(one.steps), 2, 2, -1).any(2)
    assert one.key_norm is not None and other.key_norm is not None
    np.testing.assert_array_equal(one.key_norm[by_kv_head], other.key_norm[by_kv_head])
    assert one.hidden_norm is not None and other.hidden_norm is not None
    np.testing.assert_array_equal(one.hidden_norm[by_kv_head.any(1)], other.hidden_norm[by_kv_head.any(1)])
    for name in ("output_norm", "key_norm", "hidden_norm"):
        before, after = getattr(one, name), getattr(other, name)
        np.testing.assert_array_equal(np.isnan(before), np.isnan(after))
        np.testing.assert_allclose(np.nanmean(after, -1), np.nanmean(before, -1), rtol=1e-5)


def test_a_sink_is_kept_one_step_before_it_rises_and_one_after_it_falls(tmp_path: Path) -> None:
    steps = []
    for rows in spiky_steps(0, causal=False, steps=6, keys=10, heads_differ=False):
        assert rows.attention is not None
        calm = GroupRows(received=np.ones((2, 4, 10), np.float32), expected=np.ones((2, 1, 10), np.float32),
                         viewers=np.full((2, 1, 10), 10.0))  # fmt: skip
        received = calm.received.copy()
        if rows.step in (2, 3):
            received[0, 1, 4] = 8
        seen = AttentionRows(
            layers=(0, 1), heads=range(4), received=received, expected=calm.expected, viewers=calm.viewers, queries=10
        )
        steps.append(StepRows(**{**vars(rows), "attention": seen}))
    _, few = both(tmp_path, steps, causal=False)
    kept = few.layer(0, 0).kept
    assert kept is not None
    assert np.argwhere(kept).tolist() == [[step, 1, 4] for step in (1, 2, 3, 4)]
    rows = few.table("attention", layers=[0]).to_pylist()
    assert rows[2 * 4 + 1]["position"] == [4] and rows[2 * 4 + 1]["keys"] == 10 and rows[0]["position"] == []
    assert rows[2 * 4 + 1]["rest_share"] == 1.0
    assert few.layer(0, 1).kept is not None and not few.layer(0, 1).kept.any()


def wandering_steps(seed: int, *, steps: int, keys: int) -> Iterator[StepRows]:
    """Sinks that stay, jump, drift, rise slowly and flicker for a step, over noise."""
    rng = np.random.default_rng(seed)
    layers, heads = 2, 4
    where = rng.integers(0, keys, (layers, heads, 1))
    expected = np.ones((layers, 1, keys), np.float32)
    for step in range(steps):
        moves = rng.random(where.shape) < 0.25
        where = np.where(moves, (where + rng.integers(1, 6, where.shape)) % keys, where)
        share = rng.lognormal(-1, 0.7, (layers, heads, keys))
        np.put_along_axis(share, where, rng.choice([1.2, 2.5, 4, 8, 12], where.shape) * rng.uniform(0.8, 1.2), -1)
        seen = AttentionRows(
            layers=range(layers),
            heads=range(heads),
            received=share.astype(np.float32),
            expected=expected,
            viewers=expected * keys,
            queries=keys,
        )
        yield StepRows(
            step=step,
            ids=np.arange(keys),
            masked=np.arange(keys) > step,
            committed=np.array([step]),
            committed_ids=np.array([step]),
            confidence=np.full(keys, np.nan, np.float32),
            attention=seen,
        )


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(2, 24), epsilon=st.sampled_from([2.0, 3.0, 5.0]))
def test_the_same_tracks(seed: int, steps: int, epsilon: float) -> None:
    """Every column of every track, scores in bridged gaps and hand-offs included."""
    with tempfile.TemporaryDirectory() as folder:
        traces = both(Path(folder), list(wandering_steps(seed, steps=steps, keys=30)), causal=False)
        one, other = (track_sinks(trace, epsilon, draws=20) for trace in traces)
    assert one.num_rows > 0 and one.column_names == other.column_names
    for name in one.column_names:
        for before, after in zip(one[name].to_pylist(), other[name].to_pylist(), strict=True):
            if isinstance(before, float) or (isinstance(before, list) and before and isinstance(before[0], float)):
                np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
            else:
                assert before == after, name


@pytest.mark.parametrize("causal", [False, True])
def test_detect_sinks_agrees_on_attention(tmp_path: Path, causal: bool) -> None:
    """The public function on softmax attention with planted sinks: not one position differs, and there are some."""
    full, few = (
        open_trace(write_trace(tmp_path / detail, causal=causal, detail=detail, keys=40, steps=6))
        for detail in ("full", "sinks")
    )
    found = 0
    for layer in full.layers:
        one, other = (trace.layer(1, layer) for trace in (full, few))
        for epsilon in (1.0, 3.0):
            sinks = detect_sinks(one.received, one.expected, epsilon, viewers=one.viewers)
            np.testing.assert_array_equal(
                sinks, detect_sinks(other.received, other.expected, epsilon, viewers=other.viewers)
            )
            found += int(sinks.sum())
    assert found > 10
    sizes = [sum(file.stat().st_size for file in trace.path.rglob("attention.parquet")) for trace in (full, few)]
    assert sizes[1] < sizes[0] * (0.8 if causal else 0.5)


def test_a_single_key_has_no_others(tmp_path: Path) -> None:
    """One visible key: nothing stands out, the only share is that of the rest."""
    steps = list(spiky_steps(1, causal=True, steps=1, keys=1, heads_differ=False))
    assert steps[0].attention is not None
    steps[0].attention.expected[:] = 1
    full, few = both(tmp_path, steps, causal=True)
    np.testing.assert_allclose(few.layer(0, 0).received, full.layer(0, 0).received, rtol=1e-6)
