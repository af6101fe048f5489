"""One pass over a trace: its numbers against single functions, what is left out and why, threads, and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sinklens.errors import UsageError
from sinklens.sinks.arrays import Canvases, LayerArrays, MemoryTrace, from_arrays
from sinklens.sinks.detect import detect_sinks
from sinklens.sinks.document import document, join_tracks
from sinklens.sinks.survey import PARTS, USUAL, Question, survey
from sinklens.sinks.track import track_sinks


def received(seed: int, *, steps: int = 12, keys: int = 40) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sums = rng.lognormal(0, 0.4, (steps, 3, 2, keys))
    sums[2:9, :, :, 3] += 15
    return (sums * (keys / sums.sum(-1, keepdims=True))).astype(np.float32)


def together(*traces: MemoryTrace) -> MemoryTrace:
    """Several samples in one."""
    contents: dict[tuple[int, int], LayerArrays] = {}
    texts: dict[int, Canvases] = {}
    for number, one in enumerate(traces):
        contents |= {(number, layer): arrays for (_, layer), arrays in one.contents.items()}
        texts[number] = replace(one.texts[0], sample=number)
    return MemoryTrace(contents=contents, texts=texts)


def test_a_survey_gives_what_single_functions_give() -> None:
    trace = together(*(from_arrays(received(seed)) for seed in range(3)))
    found = document(survey(trace), layers=3, draws=50)
    json.dumps(found, allow_nan=False)
    sinks = sum(int(detect_sinks(received(seed)).sum()) for seed in range(3))
    assert found["overview"]["sinks"] == sinks > 0
    assert found["overview"]["cells"] == 3 * 12 * 3 * 2 * 40
    assert found["tracks"]["tracks"] == len(track_sinks(trace))
    assert found["question"]["parts"] == list(USUAL) and found["mechanism"] is found["agreement"] is None


def test_threads_change_nothing() -> None:
    trace = together(*(from_arrays(received(seed)) for seed in range(2)))
    one, four = (survey(trace, workers=workers) for workers in (1, 4))
    assert document(one, layers=3, draws=20) == document(four, layers=3, draws=20)
    first, second = join_tracks(one), join_tracks(four)
    assert first is not None and second is not None and first.tracks == second.tracks


def test_a_sample_too_short_for_a_sink_does_not_stop_the_others() -> None:
    short = from_arrays(received(1, keys=5))
    both = together(from_arrays(received(0)), short)
    found = document(survey(both, Question(parts=PARTS)), layers=3, draws=20)
    alone = document(survey(from_arrays(received(0)), Question(parts=PARTS)), layers=3, draws=20)
    assert found["overview"]["sinks"] == alone["overview"]["sinks"] > 0
    with pytest.raises(UsageError, match="no key is seen by 8 queries or more"):
        survey(short)


def test_a_question_that_nothing_could_meet_is_refused() -> None:
    with pytest.raises(UsageError, match="epsilon 100 cannot be exceeded"):
        survey(from_arrays(received(0)), Question(value=100.0))


def test_what_cannot_be_followed_is_left_out_with_the_reason() -> None:
    found = survey(from_arrays(received(0)), Question(value=0.0))
    assert "epsilon 0" in found.missing["tracks"] and found.samples[0].total("tokens") is not None
    trace = from_arrays(received(0))
    kept = {where: replace(one, kept=one.excess > 1) for where, one in trace.contents.items()}
    cut = replace(trace, contents=kept, detail="sinks")
    found = survey(cut, Question(value=1.5, parts=PARTS))
    assert set(found.missing) == {"tracks", "profile", "agreement", "mechanism"}
    assert set(survey(cut).missing) == {"profile"}


def test_layers_and_samples_are_counted_once_and_must_be_there() -> None:
    trace = from_arrays(received(0))
    once, twice = (survey(trace, layers=layers) for layers in ([0], [0, 0]))
    assert once.samples[0].total("cells") == twice.samples[0].total("cells")
    with pytest.raises(UsageError, match=r"layers \[9\] are not in this trace; it has \[0, 1, 2\]"):
        survey(trace, layers=[9])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expected": np.ones((12, 40))}, r"expected has shape \(12, 40\) beside received"),
        ({"viewers": np.ones((12, 3, 5, 40))}, "viewers has shape"),
        ({"masked": np.zeros((11, 40), bool)}, r"masked has shape \(11, 40\); expected \[step, key\], here \(12, 40\)"),
        ({"ids": np.zeros((12, 9), int)}, r"ids has shape \(12, 9\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(options: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_arrays(received(0), **options)


def test_expected_may_be_the_same_for_all() -> None:
    plain = from_arrays(received(0))
    for expected in (np.ones(40), np.ones((1, 1, 1, 40)), np.ones((12, 3, 2, 40))):
        given = from_arrays(received(0), expected)
        np.testing.assert_array_equal(given.layer(0, 1).fair_share, plain.layer(0, 1).fair_share)
