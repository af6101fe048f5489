"""What a chain of hand-offs is called, the frontiers, and how often the name is right."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.sinks.frontier import frontiers
from sinklens.sinks.kinds import KINDS, MOVING, motion
from sinklens.sinks.track import track_layer
from sinks import mixtures
from sinks.mixtures import DEVELOPMENT, mixture
from sinks.track_paths import canvases_of, drift, head, layer_of


@pytest.mark.parametrize(
    ("moves", "kind"),
    [
        ([1], "moving right"),
        ([-8], "moving left"),
        ([9], "jumping"),
        ([26], "jumping"),
        ([2, 1, 3, -1], "moving right"),  # three of four
        ([2, -1, 3, -1], "jumping"),
        ([1, 1, 1, 1, -60], "moving right"),  # one wide hop among many small ones
        ([30, 12, 40], "jumping"),
        ([30, 12, 40, 9], "moving right"),  # four without turning
        ([-30, -12, -40, 9, -20], "jumping"),
    ],
)
def test_motion(moves: list[int], kind: str) -> None:
    assert motion(np.array(moves)) == kind


@given(st.lists(st.integers(-100, 100).filter(bool), min_size=1, max_size=30))
def test_a_mirrored_motion_has_the_mirrored_kind(moves: list[int]) -> None:
    mirrored = {"moving right": "moving left", "moving left": "moving right", "jumping": "jumping"}
    assert motion(-np.array(moves)) == mirrored[motion(np.array(moves))]


def test_frontiers() -> None:
    """Prompt of two; positions 2 to 5 are unmasked in the order 3, 2 and 5, 4."""
    masked = np.array([[1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1], [1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]], bool)
    found = frontiers(canvases_of(masked, prompt_length=2), np.arange(4))
    nan = np.nan
    np.testing.assert_array_equal(found, [[2, 2, 4, nan], [5, 5, 4, nan], [nan, 3, 3.5, 4]])
    np.testing.assert_array_equal(frontiers(canvases_of(masked, prompt_length=2), np.array([0, 2])), found[:, [0, 2]])


@pytest.mark.parametrize(
    ("order", "name"), [("left", "first_masked"), ("right", "last_masked"), ("outwards", "committed")]
)
def test_each_frontier_can_be_followed(order: str, name: str) -> None:
    steps, keys = 80, 80
    where = np.arange(keys)
    rank = {"left": where, "right": keys - 1 - where, "outwards": np.argsort(np.argsort(np.abs(where - 20.2)))}[order]
    masked = rank >= np.arange(steps)[:, None]
    position = np.argsort(rank)  # what is committed in each step
    if order == "outwards":  # far enough out, one side only is left
        sink = {step: int(position[step - 1]) - 2 for step in range(45, 75)}
    else:
        sink = {step: int(position[step]) + (2 if order == "right" else -2) for step in range(10, 70)}
    row = track_layer(layer_of(head(steps, keys, sink)), canvases_of(masked)).tracks.to_pylist()[0]
    assert row["kind"] == "frontier"
    assert row["velocity_frontier"] == pytest.approx(0, abs=0.01)
    if order != "outwards":
        assert row["frontier"] == name


def test_a_frontier_that_does_not_move_is_not_followed() -> None:
    masked = np.zeros((64, 96), bool)
    masked[:, 50:] = True
    sink = drift(20, hops=[1] * 40, hold=1, first=5)
    row = track_layer(layer_of(head(64, 96, sink)), canvases_of(masked)).tracks.to_pylist()[0]
    assert (row["kind"], row["frontier"], row["velocity_frontier"]) == ("moving right", None, None)
    assert row["velocity_commit"] is None  # nothing was committed


def test_a_short_drift_beside_a_frontier_does_not_follow_it() -> None:
    """The distance varies little because the drift is short: not less than a fifth of what the drift does."""
    masked = np.arange(96) >= 20 + np.arange(128)[:, None] // 2
    sink = drift(20, hops=[1] * 5, hold=3, first=10)
    row = track_layer(layer_of(head(128, 96, sink)), canvases_of(masked)).tracks.to_pylist()[0]
    assert (row["kind"], row["frontier"]) == ("moving right", "first_masked")


def test_autoregressive_runs_have_the_newest_token_as_their_frontier() -> None:
    """A head that looks at the token three back follows it."""
    steps, keys = 60, 90
    canvases = canvases_of(np.zeros((steps, keys), bool), prompt_length=20)
    committed = np.arange(keys) == 20 + np.arange(steps)[:, None]
    canvases = type(canvases)(**{**vars(canvases), "committed": committed})
    sink = {step: 20 + step - 4 for step in range(5, 55)}
    row = track_layer(layer_of(head(steps, keys, sink)), canvases).tracks.to_pylist()[0]
    assert (row["kind"], row["frontier"], row["velocity_commit"]) == ("frontier", "committed", 1.0)


def test_kinds_are_those_of_the_generator() -> None:
    assert set(mixtures.KINDS) == set(KINDS)
    assert set(MOVING) < set(KINDS)


def test_mixtures_are_attention() -> None:
    for number in range(5):
        layer = mixture(DEVELOPMENT, number).layer
        keys = layer.received.shape[-1]
        np.testing.assert_allclose(layer.received.sum(-1), keys, rtol=1e-5)
        np.testing.assert_allclose(sum(group.expected for group in layer.groups.values()), 1, rtol=1e-5)


def test_most_kinds_are_right_on_the_development_heads() -> None:
    """A bound well below what is reached there (0.89): the held-out figure is the benchmark's."""
    counts: Counter[bool] = Counter()
    for number in range(80):
        one = mixture(DEVELOPMENT, number)
        rows = track_layer(one.layer, one.canvases).tracks.to_pylist()
        for truth in one.truths:
            shared = [(truth.where[row["birth"] : row["death"] + 1] == row["positions"]).sum() for row in rows]
            counts[rows[int(np.argmax(shared))]["kind"] == truth.kind] += 1
    assert counts[True] / counts.total() > 0.8
