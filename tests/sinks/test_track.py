"""Tracks of heads whose content is known, and what the table holds."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from sinklens.errors import UsageError
from sinklens.sinks.arrays import MemoryTrace, Received, from_arrays
from sinklens.sinks.track import Tracked, TrackRule, follow_sinks, track_layer, track_sinks
from sinks.mixtures import DEVELOPMENT, mixture
from sinks.track_paths import canvases_of, drift, head, layer_of, stay


def rows(received: np.ndarray, **options: object) -> list[dict[str, object]]:
    return track_sinks(received, **options).to_pylist()


def test_a_static_sink_is_one_track_with_all_it_held() -> None:
    (row,) = rows(head(20, 40, stay(7, 3, 12)))
    assert (row["sample"], row["layer"], row["head"]) == (0, 0, 0)
    assert (row["birth"], row["death"], row["lifetime"]) == (3, 12, 10)
    assert (row["born_before"], row["alive_after"]) == (False, False)
    assert row["positions"] == [7] * 10
    assert row["scores"] == [9.0] * 10
    assert row["masked"] == [False] * 10
    assert row["tokens"] == [7] * 10
    assert row["mean_excess"] == pytest.approx(8.0)
    assert (row["kind"], row["velocity"], row["handoffs"], row["moves"]) == ("static", None, 0, [])
    assert row["frontier"] is None and row["split"] is None
    ends = {"birth": 3, "death": 12, "lifetime": 10, "born_before": False, "alive_after": False}
    assert row["stays"] == [{"position": 7, **ends}]


def test_ends_of_the_trace_are_not_births_and_deaths() -> None:
    (row,) = rows(head(20, 40, stay(7, 0, 19)))
    assert (row["born_before"], row["alive_after"], row["kind"]) == (True, True, "static")
    before, after = rows(head(20, 40, stay(7, 0, 4), stay(9, 15, 19)))
    assert (before["born_before"], before["alive_after"]) == (True, False)
    assert (after["born_before"], after["alive_after"]) == (False, True)


@pytest.mark.parametrize(("sign", "kind"), [(1, "moving right"), (-1, "moving left")])
def test_a_drift_is_one_track(sign: int, kind: str) -> None:
    (row,) = rows(head(128, 192, drift(90, hops=[2 * sign] * 14, hold=4, first=10)))
    assert row["kind"] == kind
    assert (row["birth"], row["death"], row["handoffs"]) == (10, 69, 14)
    assert row["moves"] == [2 * sign] * 14
    assert row["positions"] == [90 + 2 * sign * (at // 4) for at in range(60)]
    assert row["velocity"] == pytest.approx(28 * sign / 59)


def test_a_drift_that_never_holds_is_one_track() -> None:
    """Every step a death and a birth of equal mass."""
    (row,) = rows(head(128, 192, drift(20, hops=[1] * 99, hold=1, first=5)))
    assert (row["kind"], row["handoffs"], row["velocity"]) == ("moving right", 99, 1.0)


def test_a_jump() -> None:
    (row,) = rows(head(128, 192, stay(62, 20, 38) | stay(88, 39, 70)))
    assert (row["kind"], row["moves"], row["birth"], row["death"]) == ("jumping", [26], 20, 70)
    assert [one["position"] for one in row["stays"]] == [62, 88]


def test_a_jump_within_few_steps_cannot_be_told_from_chance() -> None:
    """One shift in 12 fits by chance, or two: above 5 %."""
    assert [row["kind"] for row in rows(head(12, 64, stay(20, 2, 5) | stay(50, 6, 9)))] == ["static", "static"]


@pytest.mark.parametrize("late", [-1, 1])
def test_a_hand_off_may_be_one_step_off(late: int) -> None:
    received = head(256, 64, stay(20, 50, 99), stay(50, 100 + late, 180))
    (row,) = rows(received)
    assert (row["kind"], row["moves"]) == ("jumping", [30])
    assert row["positions"] == [20] * (50 + (late > 0)) + [50] * (81 - (late > 0))
    assert row["lifetime"] == 131
    assert len(rows(head(256, 64, stay(20, 50, 99), stay(50, 102, 180)))) == 2  # two steps off is none


def test_flicker() -> None:
    (row,) = rows(head(20, 40, stay(7, 5, 5)))
    assert (row["kind"], row["lifetime"]) == ("flicker", 1)
    (row,) = rows(head(20, 40, stay(7, 19, 19)))
    assert (row["kind"], row["lifetime"], row["alive_after"]) == ("static", 1, True)  # not seen to end


def test_two_that_cross() -> None:
    right = drift(40, hops=[2] * 30, hold=3, first=10)
    left = drift(101, hops=[-2] * 30, hold=3, first=11)
    first, second = sorted(rows(head(128, 160, right, left)), key=lambda row: row["birth"])
    assert (first["kind"], second["kind"]) == ("moving right", "moving left")
    assert dict(zip(range(10, 103), first["positions"], strict=True)) == right
    assert dict(zip(range(11, 104), second["positions"], strict=True)) == left


def test_a_jump_beside_a_drift_and_a_flicker_that_fits_by_chance() -> None:
    moving = drift(20, hops=[1] * 39, hold=2, first=5)
    jumping = stay(150, 12, 60) | stay(110, 61, 100)
    kinds = {row["kind"] for row in rows(head(320, 192, moving, jumping))}
    assert kinds == {"moving right", "jumping"}
    kinds = sorted(str(row["kind"]) for row in rows(head(128, 192, moving, stay(170, 40, 40))))
    assert kinds == ["flicker", "moving right"]


def test_a_frontier_follower() -> None:
    steps, keys, prompt = 64, 96, 16
    masked = np.arange(keys) >= prompt + np.arange(steps)[:, None]
    front = prompt + np.arange(steps)
    sink = {step: int(front[step] // 2 * 2 + 3) for step in range(5, 60)}
    canvases = canvases_of(masked, prompt_length=prompt)
    row = track_layer(layer_of(head(steps, keys, sink)), canvases).tracks.to_pylist()[0]
    assert (row["kind"], row["frontier"]) == ("frontier", "first_masked")
    assert row["velocity"] == pytest.approx(1.0, abs=0.03)
    assert row["velocity_frontier"] == pytest.approx(0.0, abs=0.03)
    assert row["velocity_commit"] == pytest.approx(1.0, abs=0.03)
    assert row["masked"] == [True] * 55
    assert row["tokens"] == [-5] * 55
    slower = {step: 24 + step // 3 for step in range(5, 60)}
    row = track_layer(layer_of(head(steps, keys, slower)), canvases).tracks.to_pylist()[0]
    assert row["kind"] == "moving right"
    assert row["velocity_frontier"] == pytest.approx(1 / 3 - 1, abs=0.05)
    assert row["velocity_commit"] == pytest.approx(1 / 3, abs=0.05)


def split_layer(*, masked_to: int, unmasked_to: int, few: bool = False) -> tuple[object, object]:
    steps, keys = 24, 40
    queries = (4, 36) if few else (20, 20)
    masked = np.tile(np.arange(keys) < queries[0], (steps, 1))
    groups, total = {}, 0
    for name, place, count in (("masked", masked_to, queries[0]), ("unmasked", unmasked_to, queries[1])):
        weights = np.full((steps, 1, keys), 0.7 / (keys - 1), np.float32)
        weights[..., place] = 0.3
        share = np.full((steps, 1, keys), count / keys, np.float32)
        groups[name] = Received(
            received=weights * count, expected=share, viewers=np.full((steps, 1, keys), count, np.float32)
        )
        total = total + weights * count
    return layer_of(np.asarray(total, np.float32), groups=groups), canvases_of(masked)


def test_split() -> None:
    layer, canvases = split_layer(masked_to=30, unmasked_to=5)
    found = track_layer(layer, canvases).tracks.to_pylist()
    assert {(row["positions"][0], row["kind"], row["split"]) for row in found} == {
        (30, "split", "masked"),
        (5, "split", "unmasked"),
    }
    (row,) = track_layer(*split_layer(masked_to=30, unmasked_to=30)).tracks.to_pylist()
    assert (row["kind"], row["split"]) == ("static", None)
    (row,) = track_layer(*split_layer(masked_to=30, unmasked_to=5, few=True)).tracks.to_pylist()
    assert (row["kind"], row["split"]) == ("static", None)  # four queries are too few to tell
    bare = replace(layer, groups={})
    assert {row["kind"] for row in track_layer(bare, canvases).tracks.to_pylist()} == {"static"}


def test_readings() -> None:
    layer, canvases = split_layer(masked_to=30, unmasked_to=5)
    trace = MemoryTrace(contents={(0, 0): layer}, texts={0: canvases})
    assert [row["positions"][0] for row in track_sinks(trace, reading="masked").to_pylist()] == [30]
    assert [row["positions"][0] for row in track_sinks(trace, reading="unmasked").to_pylist()] == [5]
    with pytest.raises(UsageError, match="unknown reading 'queries'; expected one of 'received'"):
        track_sinks(trace, reading="queries")


def test_keys_of_a_growing_canvas() -> None:
    """Autoregressive: keys that are not there yet are NaN. A sink from its first step on was born in that step."""
    steps, keys = 40, 60
    received = head(steps, keys, stay(0, 0, 39), stay(30, 11, 20))
    received[np.arange(keys) >= 20 + np.arange(steps)[:, None, None]] = np.nan
    expected = np.where(np.isnan(received), 0, 1).astype(np.float32)
    table = track_sinks({"received": received, "expected": expected, "viewers": expected * 30})
    first, new = table.to_pylist()
    assert (first["positions"][0], first["born_before"], first["lifetime"]) == (0, True, 40)
    assert (new["positions"][0], new["birth"], new["death"], new["born_before"]) == (30, 11, 20, False)


def test_keys_that_few_queries_see_are_never_born() -> None:
    received = head(20, 40, stay(7, 3, 12), stay(30, 3, 12))
    viewers = np.full((20, 1, 40), 40.0)
    viewers[..., 30] = 7
    given = {"received": received, "viewers": viewers}
    assert [row["positions"][0] for row in track_sinks(given).to_pylist()] == [7]
    assert len(track_sinks(given, min_viewers=7)) == 2
    with pytest.raises(UsageError, match=r"no key is seen by 41 queries or more \(at most 40\).*pass min_viewers=40"):
        track_sinks(received, min_viewers=41)


def test_every_fourth_step() -> None:
    """Births and deaths are step numbers; lifetimes count four steps for each stored one."""
    masked = np.zeros((80, 40), bool)
    masked[:33, 7] = True
    layer = layer_of(head(20, 40, stay(7, 3, 12), stay(9, 15, 15)), every=4)
    row, short = track_layer(layer, canvases_of(masked)).tracks.to_pylist()
    assert (row["birth"], row["death"], row["lifetime"]) == (12, 48, 40)
    assert row["masked"] == [True] * 6 + [False] * 4
    assert row["stays"][0]["lifetime"] == 40
    assert (short["kind"], short["lifetime"]) == ("flicker", 4)
    moving = layer_of(head(60, 192, drift(20, hops=[2] * 40, hold=1, first=5)), every=4)
    (row,) = track_layer(moving, canvases_of(np.zeros((240, 192), bool))).tracks.to_pylist()
    assert row["velocity"] == 0.5


def test_what_may_be_given() -> None:
    received = np.stack([head(20, 40, stay(7, 3, 12)), head(20, 40, stay(8, 3, 12))], axis=1)
    expected = track_sinks(received)
    assert expected["layer"].to_pylist() == [0, 1]
    assert track_sinks(torch.from_numpy(received)).equals(expected)
    assert track_sinks(from_arrays(received)).equals(expected)
    assert track_sinks({"received": received}).equals(expected)
    assert track_sinks(received, layers=[1]).equals(expected.slice(1, 1))
    assert track_sinks(received[:, 1]).to_pylist()[0]["positions"] == [8] * 10
    assert track_sinks({"received": received[:, 1], "expected": np.full((20, 1, 40), 2.0)}).num_rows == 1
    named = track_sinks({"received": received, "ids": np.full((20, 40), 3), "masked": np.ones((20, 40), bool)})
    assert named.to_pylist()[0]["tokens"] == [3] * 10
    assert named.to_pylist()[0]["masked"] == [True] * 10


def test_nothing_found_is_an_empty_table_of_the_same_columns() -> None:
    none = track_sinks(np.ones((20, 1, 40)))
    assert none.num_rows == 0
    assert none.schema == track_sinks(head(20, 40, stay(7, 3, 12))).schema


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (np.ones((4, 10)), {}, r"received has shape \(4, 10\); expected \[step, layer, head, key\]"),
        ({"attention": np.ones((4, 1, 10))}, {}, "the mapping has .'attention'.; expected 'received' and any of"),
        (np.ones((4, 1, 10)), {"layers": [3]}, r"layers \[3\] are not in this trace; it has \[0\]"),
        (np.ones((4, 1, 10)), {"samples": [2]}, r"samples \[2\] are not in this trace; it has \[0\]"),
        (np.ones((4, 1, 10)), {"epsilon": 0.0}, "epsilon is 0.0; expected a finite number above 0"),
        (np.ones((4, 1, 10)), {"draws": 19}, "draws is 19; expected 20 or more"),
        (np.ones((4, 1, 10)), {"seed": -1}, "seed is -1; expected 0 or more"),
    ],
)
def test_arguments_that_cannot_be_meant(given: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        track_sinks(given, **options)


def test_rules_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="shifted is 21; expected 0 to 20"):
        TrackRule(shifted=21)
    with pytest.raises(UsageError, match="no layers to join; expected at least one"):
        Tracked.join([])
    received = head(20, 40, stay(7, 3, 12))
    thin = replace(layer_of(received), kept=received > 2)
    assert track_layer(thin, canvases_of(np.zeros((20, 40), bool))).tracks.num_rows == 1
    with pytest.raises(UsageError, match=r"epsilon 1\.5 follows keys down to an excess of 0\.75, but this trace keeps"):
        track_layer(thin, canvases_of(np.zeros((20, 40), bool)), rule=TrackRule(epsilon=1.5))


def test_the_same_seed_gives_the_same_tracks_whatever_else_is_in_the_layer() -> None:
    alike = replace(DEVELOPMENT, steps=(96, 96), keys=(128, 128), sinks=(4, 4))
    received = np.concatenate([mixture(alike, number).layer.received for number in range(6)], axis=1)
    together = track_sinks(received[:, None])
    assert together.equals(track_sinks(received[:, None]))
    first = together.filter(pa.compute.equal(together["head"], 0))
    assert first.equals(track_sinks(received[:, None, :1]))


def test_ties_are_settled_the_same_way_every_time() -> None:
    """One sink leaves, two of equal strength appear at equal distance: the lower position takes over."""
    received = head(128, 64, stay(30, 20, 50), stay(26, 51, 90), stay(34, 51, 90))
    joined = next(row for row in rows(received) if row["handoffs"])
    assert joined["moves"] == [-4]
    near = head(128, 64, stay(30, 20, 50), stay(26, 51, 90), stay(33, 51, 90))
    assert next(row for row in rows(near) if row["handoffs"])["moves"] == [3]


def test_many_layers_join_and_the_null_is_beside_them() -> None:
    received = np.stack([head(64, 96, drift(10, hops=[1] * 50, hold=1, first=4))] * 2, axis=1)
    both = follow_sinks(received, TrackRule(shifted=3))
    assert both.tracks["layer"].to_pylist() == [0, 1]
    assert set(both.null["draw"].to_pylist()) == {0, 1, 2}
    assert set(both.null["layer"].to_pylist()) == {0, 1}
    joined = [row["handoffs"] > 0 for row in both.null.to_pylist()]
    assert len(joined) >= 2 * 3 * 51  # one for every stay that joins no other
    assert np.mean(joined) < 0.2
    assert follow_sinks(received).null.num_rows == 0
    assert follow_sinks(received).tracks.equals(both.tracks)  # looking at the null changes nothing
    json.dumps(both.tracks.to_pylist(), allow_nan=False)


def test_the_document_lists_every_column_in_its_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tracks.md").read_text("utf-8")
    section = text.split("## The table")[1].split("\n## ")[0]
    listed = [name for line in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", line)]
    assert listed == track_sinks(head(20, 40, stay(7, 3, 12))).column_names
