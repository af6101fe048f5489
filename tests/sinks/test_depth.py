"""Sinks by depth: known profiles, and the rank correlation against scipy's."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays, from_arrays
from sinklens.sinks.depth import QUANTITIES, LayerDepth, average_ranks, combine_depth, depth_profile, spearman
from sinklens.sinks.detect import detect_sinks

KEYS = 40


def layer_of(sinks: int, share: float, number: int = 0) -> LayerArrays:
    """Two steps and heads with so many sinks of that fair share each; the others share what is left of KEYS."""
    received = np.full((2, 1, 2, KEYS), (KEYS - sinks * share) / (KEYS - sinks))
    received[..., :sinks] = share
    return replace(from_arrays(received).layer(0, 0), layer=number)


def part_of(sinks: int, share: float, number: int = 0) -> LayerDepth:
    layer = layer_of(sinks, share, number)
    return depth_profile(layer, detect_sinks(layer.received, layer.expected, viewers=layer.viewers))


def test_one_layer_by_hand() -> None:
    part = part_of(2, 10.0)
    assert part.layer == 0 and tuple(part.values) == QUANTITIES
    assert part.values["sinks"] == 2
    assert part.values["absorbed"] == pytest.approx(0.5)
    assert part.values["share"] == pytest.approx(10)
    assert part.values["mass"] == pytest.approx(0.25)
    assert part.values["gini"] == pytest.approx(0.5 - 2 / KEYS)  # two of forty hold half of it
    effective = np.exp(-(2 * 0.25 * np.log(0.25) + 38 * (0.5 / 38) * np.log(0.5 / 38)))
    assert part.values["effective"] == pytest.approx(effective, rel=1e-5)


def test_fewer_and_stronger_with_depth() -> None:
    samples = [[part_of(4 - layer, 5.0 + 3 * layer, layer) for layer in range(4)] for _ in range(3)]
    summary = combine_depth(samples)
    assert summary.layers == [0, 1, 2, 3]
    assert [one.value for one in summary.by_layer["sinks"]] == [4, 3, 2, 1]
    assert summary.spearman["sinks"].value == -1 and summary.spearman["sinks"].n == 3
    assert summary.spearman["share"].value == summary.spearman["mass"].value == 1
    json.dumps(asdict(summary), allow_nan=False)


def test_correlation_is_of_each_sample_then_averaged() -> None:
    up = [part_of(1, 5.0 + layer, layer) for layer in range(3)]
    down = [part_of(1, 9.0 - layer, layer) for layer in range(3)]
    found = combine_depth([up, down]).spearman["share"]
    assert (found.value, found.low, found.high, found.n) == (0.0, -1.0, 1.0, 2)
    alone = combine_depth([up])
    assert (alone.spearman["share"].value, alone.spearman["share"].low) == (1.0, None)
    assert alone.spearman["sinks"].value is None  # one everywhere: no rank to correlate
    assert alone.by_layer["sinks"][0].high is None


def test_missing_layers_and_samples() -> None:
    whole = [part_of(1, 5.0 + layer, layer) for layer in range(3)]
    summary = combine_depth([whole, whole[:2]])
    assert [one.n for one in summary.by_layer["share"]] == [1, 1, 1]  # the same samples in all layers
    assert summary.spearman["share"].n == 1  # two layers say nothing
    assert combine_depth([]).layers == []


def test_trace_of_sinks_knows_less() -> None:
    layer = layer_of(1, 10.0)
    kept = np.zeros(layer.received.shape, bool)
    kept[..., 0] = True
    values = depth_profile(replace(layer, kept=kept), kept).values
    assert values["gini"] is None and values["effective"] is None
    assert values["share"] == pytest.approx(10) and values["sinks"] == 1
    received = layer.received.copy()
    received[0, 0] = 1.0  # nothing stands out here, so the greatest key was not kept
    kept[0, 0] = False
    values = depth_profile(replace(layer, received=received, kept=kept), kept).values
    assert values["share"] is None and values["mass"] is None and values["sinks"] == 0.75


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
def test_spearman_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs, float).T
    np.testing.assert_array_equal(average_ranks(first), stats.rankdata(first))
    found = spearman(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_spearman_leaves_out_what_is_not_known() -> None:
    assert spearman([0, 1, 2, 3], [5.0, np.nan, 6.0, 7.0]) == 1.0
    assert spearman([0, 1, 2], [5.0, np.nan, 6.0]) is None
    with pytest.raises(UsageError, match=r"shapes \(2,\) and \(3,\) are no pairs"):
        spearman([1, 2], [1, 2, 3])
