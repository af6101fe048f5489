"""Tokens under sinks: counted by hand, against loops, and with the sums and lifts that must hold."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays, from_arrays
from sinklens.sinks.statistics import (
    REGIONS,
    TokenCounts,
    by_class,
    by_layer,
    by_region,
    count_tokens,
    region_of,
    table_two,
)

MASK, DOT, WORD = 99, 5, 6
TOKENS = {MASK: "<mask>", DOT: ".", WORD: " word"}
CLASSES = {MASK: "special", DOT: "punctuation", WORD: "word"}  # the mask is known by where it stands


def canvases_of(ids: object, *, blocks: object = None, prompt: int = 1) -> Canvases:
    canvas = np.asarray(ids)
    masked = canvas == MASK
    return Canvases(
        sample=0,
        prompt_length=prompt,
        ids=canvas,
        masked=masked,
        committed=np.zeros(canvas.shape, bool),
        confidence=np.full(canvas.shape, np.nan, np.float32),
        blocks=np.full((len(canvas), 2), -1) if blocks is None else np.asarray(blocks),
        tokens=TOKENS,
        classes=CLASSES,
    )


def layer_of(received: np.ndarray, number: int = 0) -> LayerArrays:
    return replace(from_arrays(received[:, None]).layer(0, 0), layer=number)


def flags(shape: tuple[int, int, int], at: list[tuple[int, int, int]]) -> np.ndarray:
    sinks = np.zeros(shape, bool)
    for cell in at:
        sinks[cell] = True
    return sinks


def small() -> tuple[LayerArrays, Canvases, np.ndarray]:
    """Two steps, two heads, four keys: a prompt of one, then a block of two, then a block of one."""
    canvases = canvases_of([[DOT, MASK, MASK, MASK], [DOT, WORD, MASK, MASK]], blocks=[[1, 3], [3, 4]])
    shape = (2, 2, 4)
    sinks = flags(shape, [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 3), (1, 1, 0)])
    return layer_of(np.ones(shape), 3), canvases, sinks


def test_counts_by_hand() -> None:
    counts = count_tokens(*small())
    assert counts.ids.tolist() == [DOT, WORD, MASK]
    assert counts.sinks.tolist() == [2, 1, 2]
    assert counts.cells.tolist() == [4, 2, 10]
    assert dict(zip(REGIONS, counts.region_sinks.tolist(), strict=True)) == {
        "prompt": 2, "answer": 1, "block": 2, "future": 0,
    }  # fmt: skip
    assert counts.region_cells.tolist() == [4, 4, 6, 2]
    assert counts.layers.tolist() == [3]
    assert counts.head_sinks.tolist() == [[2, 3]]
    assert counts.head_cells.tolist() == [[8, 8]]


def test_table_two_by_hand() -> None:
    layer, canvases, sinks = small()
    rows = table_two([count_tokens(layer, canvases, sinks)], [canvases])
    assert [(row.token, row.name, row.token_class, row.sinks) for row in rows] == [
        (DOT, ".", "punctuation", 2),
        (MASK, "<mask>", "mask", 2),
        (WORD, " word", "word", 1),
    ]
    assert [row.share for row in rows] == pytest.approx([0.4, 0.4, 0.2])
    assert [row.base for row in rows] == pytest.approx([0.25, 0.625, 0.125])
    assert [row.lift for row in rows] == pytest.approx([1.6, 0.64, 1.6])
    assert all((row.low, row.high, row.n) == (None, None, 1) for row in rows)
    (first,) = table_two([count_tokens(layer, canvases, sinks)], [canvases], top=1)
    assert first == rows[0]  # shares are of all sinks, also of those that are not shown
    assert table_two([count_tokens(layer, canvases, sinks)], [canvases], top=0) == []
    json.dumps([asdict(row) for row in rows], allow_nan=False)


def test_intervals_resample_samples() -> None:
    """Two samples with all sinks on another token: any share from 0 to 1, the counts of cells notwithstanding."""
    layer, canvases, _ = small()
    dots = count_tokens(layer, canvases, flags((2, 2, 4), [(0, 0, 0), (1, 0, 0), (1, 1, 0)]))
    masks = count_tokens(layer, canvases, flags((2, 2, 4), [(0, 0, 3)]))
    row = table_two([dots, masks], [canvases, canvases])[0]
    assert (row.token, row.share, row.low, row.high, row.n) == (DOT, 0.75, 0.0, 1.0, 2)
    without = table_two([dots, count_tokens(layer, canvases, np.zeros((2, 2, 4), bool))], [canvases] * 2)[0]
    assert (without.share, without.low, without.high, without.n) == (1.0, None, None, 1)


def test_classes_and_regions_by_hand() -> None:
    layer, canvases, sinks = small()
    counts = [count_tokens(layer, canvases, sinks)]
    assert {row.name: row.sinks for row in by_class(counts, [canvases])} == {"mask": 2, "punctuation": 2, "word": 1}
    assert [(row.name, row.sinks, row.cells) for row in by_region(counts)] == [
        ("prompt", 2, 4),
        ("answer", 1, 4),
        ("block", 2, 6),
        ("future", 0, 2),
    ]
    assert [(row.name, row.share) for row in by_layer(counts)] == [("3", 1.0)]


def test_without_texts_ids_stand_for_themselves() -> None:
    layer, canvases, sinks = small()
    bare = replace(canvases, tokens={}, classes={})
    counts = [count_tokens(layer, bare, sinks)]
    assert [(row.name, row.token_class) for row in table_two(counts, [bare])] == [
        ("5", "unknown"),
        ("99", "mask"),
        ("6", "unknown"),
    ]
    assert {row.name: row.sinks for row in by_class(counts, [bare])} == {"mask": 2, "unknown": 3}


def test_regions_without_blocks() -> None:
    steps = np.array([0])
    names = [REGIONS[code] for code in region_of(canvases_of([[DOT, DOT, MASK]]), steps)[0]]
    assert names == ["prompt", "block", "block"]
    names = [REGIONS[code] for code in region_of(canvases_of([[DOT, DOT, WORD]]), steps)[0]]
    assert names == ["prompt", "answer", "answer"]


def test_growing_canvas_counts_what_is_there() -> None:
    """Autoregressive: position 2 appears at step 1; -1 and NaN before that are no token and no cell."""
    received = np.ones((2, 1, 3))
    received[0, 0, 2] = np.nan
    canvases = canvases_of([[DOT, WORD, -1], [DOT, WORD, WORD]])
    counts = count_tokens(layer_of(received), canvases, flags((2, 1, 3), [(1, 0, 2), (0, 0, 2)]))
    assert (counts.ids.tolist(), counts.sinks.tolist(), counts.cells.tolist()) == ([DOT, WORD], [0, 1], [2, 3])
    assert counts.head_sinks.tolist() == [[1]] and counts.head_cells.tolist() == [[5]]


def test_stored_steps_may_be_few() -> None:
    """Every second step stored: tokens are read at the steps' own numbers."""
    canvases = canvases_of([[DOT, MASK], [DOT, MASK], [DOT, WORD]])
    layer = replace(layer_of(np.ones((2, 1, 2))), steps=np.array([0, 2]))
    counts = count_tokens(layer, canvases, flags((2, 1, 2), [(1, 0, 1)]))
    assert dict(zip(counts.ids.tolist(), counts.sinks.tolist(), strict=True)) == {DOT: 0, WORD: 1, MASK: 0}


def test_no_sinks_is_none_not_nan() -> None:
    layer, canvases, _ = small()
    counts = [count_tokens(layer, canvases, np.zeros((2, 2, 4), bool))]
    assert table_two(counts, [canvases]) == []
    rows = by_class(counts, [canvases]) + by_region(counts) + by_layer(counts)
    assert all(row.share is None and row.lift is None and row.low is None and row.n == 0 for row in rows)
    assert sum(row.base or 0 for row in by_region(counts)) == pytest.approx(1)
    assert by_class([], []) == [] and by_region([]) == [] and table_two([], []) == []
    json.dumps([asdict(row) for row in rows], allow_nan=False)


def test_counts_of_other_heads_do_not_add() -> None:
    layer, canvases, sinks = small()
    other = replace(layer, heads=np.array([4, 7]))
    with pytest.raises(UsageError, match=r"heads \[0, 1\] and \[4, 7\] do not add"):
        count_tokens(layer, canvases, sinks) + count_tokens(other, canvases, sinks)


@st.composite
def runs(draw: st.DrawFn) -> tuple[LayerArrays, Canvases, np.ndarray]:
    steps, heads, keys = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    ids = rng.choice([MASK, DOT, WORD, 7], size=(steps, keys))
    first = rng.integers(1, keys + 1, steps)
    blocks = np.column_stack([first, first + rng.integers(0, 3, steps)]) if draw(st.booleans()) else None
    received = rng.gamma(1.0, size=(steps, heads, keys))
    received[rng.random(received.shape) < 0.1] = np.nan
    canvases = canvases_of(ids, blocks=blocks)
    return layer_of(received), canvases, rng.random(received.shape) < 0.3


@settings(max_examples=60)
@given(run=runs())
def test_counts_against_loops(run: tuple[LayerArrays, Canvases, np.ndarray]) -> None:
    layer, canvases, sinks = run
    counts = count_tokens(*run)
    found: dict[int, list[int]] = {}
    regions = {name: [0, 0] for name in REGIONS}
    for step, head, key in np.ndindex(sinks.shape):
        if np.isnan(layer.received[step, head, key]):
            continue
        start, stop = canvases.blocks[step]
        if key < canvases.prompt_length:
            region = "prompt"
        elif start < 0:
            region = "block" if canvases.masked.any() else "answer"
        else:
            region = "answer" if key < start else "block" if key < stop else "future"
        for tally in (found.setdefault(int(canvases.ids[step, key]), [0, 0]), regions[region]):
            tally[0] += int(sinks[step, head, key])
            tally[1] += 1
    there = counts.cells > 0
    pairs = np.column_stack([counts.sinks, counts.cells])[there].tolist()
    assert dict(zip(counts.ids[there].tolist(), pairs, strict=True)) == found
    assert np.column_stack([counts.region_sinks, counts.region_cells]).tolist() == list(regions.values())


@settings(max_examples=40)
@given(first=runs(), second=runs())
def test_shares_sum_to_one_and_counts_add(
    first: tuple[LayerArrays, Canvases, np.ndarray], second: tuple[LayerArrays, Canvases, np.ndarray]
) -> None:
    canvases = [first[1], second[1]]
    counts = [count_tokens(*first), count_tokens(*second)]
    total = sum(int(one.sinks.sum()) for one in counts)
    tables = (
        table_two(counts, canvases, top=9, draws=20),
        by_class(counts, canvases, draws=20),
        by_region(counts, draws=20),
        by_layer(counts, draws=20),
    )
    for rows in tables:
        assert sum(row.sinks for row in rows) == total
        if total:
            assert sum(row.share or 0 for row in rows) == pytest.approx(1)
    if counts[0].heads.tolist() == counts[1].heads.tolist():
        both = counts[0] + counts[1]
        assert both.sinks.sum() == both.region_sinks.sum() == both.head_sinks.sum() == total
        swapped = counts[1] + counts[0]
        for name in vars(both):
            np.testing.assert_array_equal(getattr(both, name), getattr(swapped, name))


def test_layers_of_a_sample_add() -> None:
    _, canvases, sinks = small()
    parts = [count_tokens(layer_of(np.ones((2, 2, 4)), number), canvases, sinks) for number in (1, 0, 2)]
    whole: TokenCounts = sum(parts[1:], parts[0])
    assert whole.layers.tolist() == [0, 1, 2]
    assert whole.head_sinks.tolist() == [[2, 3]] * 3
    assert whole.sinks.tolist() == [6, 3, 6]
    assert [row.share for row in by_layer([whole])] == pytest.approx([1 / 3] * 3)


@settings(max_examples=30)
@given(run=runs())
def test_sinks_everywhere_have_lift_one(run: tuple[LayerArrays, Canvases, np.ndarray]) -> None:
    layer, canvases, sinks = run
    counts = [count_tokens(layer, canvases, np.ones(sinks.shape, bool))]
    rows = table_two(counts, [canvases], top=9) + by_class(counts, [canvases]) + by_region(counts) + by_layer(counts)
    assert all(row.lift == pytest.approx(1) for row in rows)
