"""The summary of a table of tracks: known shares, intervals over samples, the null beside them."""

import json

import numpy as np
import pyarrow as pa
import pytest

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays, MemoryTrace
from sinklens.sinks.motion import summarise_tracks
from sinklens.sinks.track import Tracked, TrackRule, follow_sinks, track_sinks
from sinks.track_paths import canvases_of, drift, head, layer_of, stay


def layer(number: int, received: np.ndarray) -> LayerArrays:
    return LayerArrays(**{**vars(layer_of(received)), "layer": number})


def followed(samples: int, *, layers: int = 4) -> Tracked:
    """Every layer: a sink that moves right in shallow layers and left in deep ones, a static one and a flicker."""
    rng = np.random.default_rng(0)
    contents, texts = {}, {}
    for sample in range(samples):
        texts[sample] = canvases_of(np.zeros((96, 128), bool), sample=sample)
        for number in range(layers):
            sign = 1 if 2 * number < layers else -1
            moving = drift(60, hops=[sign * (1 + number)] * 11, hold=3, first=int(rng.integers(3, 40)))
            contents[sample, number] = layer(number, head(96, 128, moving, stay(120, 30, 70), stay(2, 88, 88)))
    return follow_sinks(MemoryTrace(contents=contents, texts=texts), TrackRule(shifted=5))


def test_shares_of_known_tracks() -> None:
    both = followed(6)
    report = summarise_tracks(both.tracks, layers_total=4, null=both.null)
    assert (report["samples"], report["tracks"], report["null_draws"]) == (6, 72, 5)
    third = {"value": pytest.approx(1 / 3), "low": pytest.approx(1 / 3), "high": pytest.approx(1 / 3), "n": 6}
    for name in ("static", "flicker", "moving"):
        entry = dict(report["shares"][name])
        assert entry.pop("null") is not None
        assert entry.pop("tracks") == 24
        assert entry == third
    assert report["shares"]["moving"]["null"] < 0.1  # chance alone: far from a third
    assert report["shares"]["moving right"]["value"] == pytest.approx(1 / 6)
    assert report["shares"]["right_minus_left"]["value"] == pytest.approx(0)
    assert report["shares"]["jumping"]["value"] == 0
    assert report["handoffs_per_track"]["value"] == pytest.approx(11 / 3)
    assert report["handoffs_per_track"]["null"] < 1
    assert report["lifetimes"]["tracks"]["median"] == 36
    assert report["lifetimes"]["stays"]["median"] == 3
    assert report["lifetimes"]["tracks"]["lives"] == 72
    json.dumps(report, allow_nan=False)


def test_direction_by_depth() -> None:
    depth = summarise_tracks(followed(5).tracks, layers_total=4)["depth"]
    assert [row["right_minus_left"] for row in depth["layers"]] == pytest.approx([1 / 3, 1 / 3, -1 / 3, -1 / 3])
    assert [row["velocity"] for row in depth["layers"]] == pytest.approx(np.array([11, 22, -33, -44]) / 35)
    assert [row["depth"] for row in depth["layers"]] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [row["tracks"] for row in depth["layers"]] == [15] * 4
    assert [row["chains"] for row in depth["layers"]] == [5] * 4
    assert [row["right_minus_left_null"] for row in depth["layers"]] == [None] * 4
    velocity = depth["spearman"]["velocity"]
    assert (velocity["value"], velocity["low"], velocity["high"], velocity["n"]) == (
        pytest.approx(-0.8), pytest.approx(-0.8), pytest.approx(-0.8), 5,
    )  # fmt: skip


def test_the_null_is_averaged_over_draws_and_told_by_layer() -> None:
    """Draw 0: one of one moves right; draw 1: one of three moves left. By layer the draws are pooled."""
    null = pa.table(
        {
            "draw": pa.array([0, 1, 1, 1], pa.int32()),
            "layer": pa.array([0, 1, 1, 1], pa.int32()),
            "kind": ["moving right", "moving left", "static", "static"],
            "velocity": [1.0, -1.0, None, None],
            "handoffs": pa.array([2, 1, 0, 0], pa.int32()),
        }
    )
    report = summarise_tracks(followed(2).tracks, layers_total=4, null=null)
    assert report["shares"]["moving"]["null"] == pytest.approx((1 + 1 / 3) / 2)
    assert report["shares"]["static"]["null"] == pytest.approx(1 / 3)
    assert report["handoffs_per_track"]["null"] == pytest.approx((2 + 1 / 3) / 2)
    by_layer = [row["right_minus_left_null"] for row in report["depth"]["layers"]]
    assert by_layer == [1.0, pytest.approx(-1 / 3), None, None]


def test_layers_without_tracks_and_one_sample() -> None:
    both = followed(1)
    report = summarise_tracks(both.tracks, layers_total=6, null=both.null)
    assert report["depth"]["layers"][5] == {
        "layer": 5, "depth": 1.0, "tracks": 0, "right_minus_left": None, "right_minus_left_null": None,
        "chains": 0, "velocity": None,
    }  # fmt: skip
    assert report["depth"]["layers"][0]["right_minus_left_null"] is not None
    assert report["shares"]["moving"]["value"] == pytest.approx(1 / 3)
    assert report["shares"]["moving"]["low"] is None  # one sample: no interval
    assert report["lifetimes"]["tracks"]["median_low"] is None
    json.dumps(report, allow_nan=False)


def test_the_interval_is_over_samples_and_not_over_tracks() -> None:
    """One sample with many moving tracks, one with many static ones."""
    table = track_sinks(head(96, 128, stay(120, 30, 70)))
    moving = track_sinks(head(96, 128, drift(60, hops=[1] * 11, hold=3, first=20)))
    sample = pa.array([0] * 50 + [1] * 50, pa.int32())
    tracks = pa.concat_tables([table] * 50 + [moving] * 50).set_column(0, "sample", sample)
    entry = summarise_tracks(tracks, layers_total=1)["shares"]["moving"]
    assert (entry["value"], entry["low"], entry["high"], entry["n"], entry["null"]) == (0.5, 0.0, 1.0, 2, None)


def test_no_tracks_at_all() -> None:
    report = summarise_tracks(track_sinks(np.ones((20, 1, 40))), layers_total=2)
    assert (report["samples"], report["tracks"]) == (0, 0)
    assert report["shares"]["moving"]["value"] is None
    assert report["depth"]["spearman"]["velocity"]["value"] is None
    json.dumps(report, allow_nan=False)


def test_layers_that_the_model_does_not_have() -> None:
    with pytest.raises(UsageError, match="layers_total is 2, but there are tracks in layer 3; expected more"):
        summarise_tracks(followed(1).tracks, layers_total=2)


def test_a_stay_that_the_shift_cuts_in_two_counts_once_under_the_null() -> None:
    """Long static sinks are cut in nearly every draw; the null has as many tracks as there are."""
    received = np.full((64, 6, 40), 0.5, np.float32)
    received[2:62, :, 5] = received[3:60, :, 20].max() + 12
    tracked = follow_sinks(received, TrackRule(shifted=5))
    assert len(tracked.tracks) == 6
    per_draw = np.bincount(tracked.null["draw"].to_numpy(), minlength=5)
    assert (per_draw == 6).all()
