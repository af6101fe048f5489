"""How attention received is spread: by hand on small arrays, against loops in float64 on random ones."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays, from_arrays
from sinklens.sinks.detect import detect_sinks
from sinklens.sinks.profile import (
    EDGES,
    EPSILONS,
    concentration,
    layer_mass,
    main_sink,
    mean_known,
    not_sinks_curve,
    score_histogram,
    share_not_sinks,
)


def layer_of(rows: object, **given: object) -> LayerArrays:
    """One step, one head a row, unless the array says otherwise; bidirectional unless `given` says otherwise."""
    received = np.asarray(rows, np.float32)
    while received.ndim < 3:
        received = received[None]
    return from_arrays(received[:, None], **given).layer(0, 0)  # type: ignore[arg-type]


def causal(keys: int) -> tuple[np.ndarray, np.ndarray]:
    """What uniform causal attention gives each key, and how many queries see it."""
    visible = np.tri(keys)
    return (visible / visible.sum(1, keepdims=True)).sum(0), visible.sum(0)


@st.composite
def layers(draw: st.DrawFn) -> LayerArrays:
    """Random attention with a few peaks, some keys missing, bidirectional or causal."""
    steps, heads, keys = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(9, 24))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    shape = (steps, 1, heads, keys)
    received = rng.gamma(0.4, 2.0, shape) + 8 * (rng.random(shape) < 0.05)
    expected, viewers = causal(keys) if draw(st.booleans()) else (np.ones(keys), np.full(keys, float(keys)))
    received = received * expected
    received[:, :, :, keys - draw(st.integers(0, 3)) :] = np.nan
    return from_arrays(received, expected, viewers=viewers).layer(0, 0)


def rows_of(layer: LayerArrays) -> list[tuple[int, int, list[tuple[int, float, float, float]]]]:
    """(step, head, [(key, received, fair share, viewers) of the visible keys]) in plain Python."""
    found = []
    for step, head in np.ndindex(layer.received.shape[:2]):
        row = []
        for key in range(layer.received.shape[2]):
            value, by = float(layer.received[step, head, key]), float(layer.expected[step, 0, key])
            if not np.isnan(value) and by > 0:
                row.append((key, value, value / by, float(layer.viewers[step, 0, key])))
        found.append((step, head, row))
    return found


def test_histogram_by_hand() -> None:
    layer = layer_of([[0.0, 0.5, 1.0, 1.0, 2.0, 7.0, 100.0, np.nan]])
    assert score_histogram(layer, [0, 1, 2, 7]).tolist() == [2, 2, 1, 2]
    assert score_histogram(layer, [0.0]).tolist() == [7]


@given(layer=layers())
def test_histogram_counts_every_scored_key_once(layer: LayerArrays) -> None:
    shares = [share for _, _, row in rows_of(layer) for _, _, share, viewers in row if viewers >= 8]
    counts = score_histogram(layer)
    assert len(counts) == len(EDGES) and counts.sum() == len(shares)
    assert score_histogram(layer, min_viewers=1).sum() == sum(len(row) for _, _, row in rows_of(layer))
    rough = score_histogram(layer, [0, 1, 3])
    near = sum(min(abs(share - 1), abs(share - 3)) < 1e-5 for share in shares)
    below_one, above_three = sum(share < 1 for share in shares), sum(share >= 3 for share in shares)
    assert abs(rough[0] - below_one) <= near and abs(rough[2] - above_three) <= near


def test_histograms_of_layers_add() -> None:
    rng = np.random.default_rng(0)
    parts = [layer_of(rng.gamma(0.5, size=(3, 2, 16))) for _ in range(2)]
    both = layer_of(np.concatenate([part.received for part in parts]))
    np.testing.assert_array_equal(sum(score_histogram(part) for part in parts), score_histogram(both))


def test_not_sinks_by_hand() -> None:
    """Nine keys, one with 8 and the others 1/8: it exceeds them by 7.875; without it each exceeds none."""
    layer = layer_of([[8.0] + [0.125] * 8])
    not_sinks, total = share_not_sinks(layer, [0, 3, 7.87, 7.875])
    assert (not_sinks.tolist(), total) == ([8, 8, 8, 9], 9)  # more than epsilon: equal is not enough
    assert share_not_sinks(layer, [3.0], min_viewers=10)[0].tolist() == [9]


@settings(max_examples=40)
@given(layer=layers())
def test_not_sinks_are_what_detection_leaves(layer: LayerArrays) -> None:
    epsilons = [0.0, 0.5, 1.0, 2.5]
    not_sinks, total = share_not_sinks(layer, epsilons)
    assert total == sum(len(row) for _, _, row in rows_of(layer))
    for epsilon, count in zip(epsilons, not_sinks, strict=True):
        found = detect_sinks(layer.received, layer.expected, epsilon, viewers=layer.viewers)
        assert count == total - found.sum()
    assert (np.diff(share_not_sinks(layer, EPSILONS)[0]) >= 0).all()


def test_curve_over_samples() -> None:
    parts = [(np.array([8, 9]), 10), (np.array([18, 20]), 20)]
    first, second = not_sinks_curve(parts)
    assert (first.value, first.low, first.high, first.n) == (26 / 30, 0.8, 0.9, 2)
    assert second.value == 29 / 30
    with pytest.raises(UsageError, match="no samples came"):
        not_sinks_curve([])


def test_main_sink_by_hand() -> None:
    received = np.zeros((2, 1, 10))
    received[0, 0, 3], received[0, 0, 7] = 6.0, 4.0
    received[1, 0, 7] = 10.0
    main = main_sink(layer_of(received))
    assert main.position.tolist() == [[3], [7]]
    assert main.score.tolist() == [[6.0], [10.0]]
    np.testing.assert_allclose(main.mass, [[0.6], [1.0]])


def test_main_sink_is_not_the_token_that_sees_itself() -> None:
    """Causal: the last key gets half of its only row, 5 fair shares; the first key gets 2. It is the main sink."""
    expected, viewers = causal(10)
    received = expected.copy()
    received[0] = 2 * expected[0]
    received[9] = 0.5
    layer = layer_of(received, expected=expected, viewers=viewers)
    assert main_sink(layer).position.tolist() == [[0]]
    assert main_sink(layer).score.tolist() == pytest.approx(np.array([[2.0]]))
    assert main_sink(layer, min_viewers=1).position.tolist() == [[9]]
    nobody = main_sink(layer, min_viewers=11)
    assert nobody.position.tolist() == [[-1]] and np.isnan(nobody.score).all() and np.isnan(nobody.mass).all()


@given(layer=layers())
def test_main_sink_is_the_largest(layer: LayerArrays) -> None:
    main = main_sink(layer)
    for step, head, row in rows_of(layer):
        scored = [entry for entry in row if entry[3] >= 8]
        if not scored:
            assert main.position[step, head] == -1
            continue
        best = max(share for _, _, share, _ in scored)
        _, value, _, viewers = next(entry for entry in scored if entry[0] == main.position[step, head])
        assert main.score[step, head] == pytest.approx(best, rel=1e-6)
        assert main.mass[step, head] == pytest.approx(value / viewers, rel=1e-6)


def test_main_sink_of_a_trace_of_sinks() -> None:
    """Where nothing stands out by more than one fair share, the greatest key was not kept: it is not known."""
    received = np.array([[[6.0] + [0.5] * 9], [[1.0] * 10]])
    kept = np.zeros(received.shape, bool)
    kept[0, 0, 0] = True
    main = main_sink(replace(layer_of(received), kept=kept))
    assert main.position.tolist() == [[0], [-1]]
    assert main.score[0, 0] == 6.0 and np.isnan(main.score[1, 0]) and np.isnan(main.mass[1, 0])


def test_layer_mass_by_hand() -> None:
    received = np.zeros((2, 2, 8))
    received[:] = 1.0
    received[0, 0] = [4, 4, 0, 0, 0, 0, 0, 0]
    sinks = np.zeros(received.shape, bool)
    sinks[0, 0, :2] = True  # all of step 0, nothing of step 1
    sinks[:, 1, 5] = True  # an eighth of both
    np.testing.assert_allclose(layer_mass(layer_of(received), sinks), [0.5, 0.125])


@pytest.mark.parametrize("keys", [8, 9, 64])
def test_uniform_attention_is_equal_and_spread_over_all(keys: int) -> None:
    spread = concentration(layer_of(np.ones((1, 1, keys))))
    assert spread.gini[0, 0] == pytest.approx(0, abs=1e-6)
    assert spread.effective[0, 0] == pytest.approx(keys, rel=1e-6)
    assert spread.uniform[0, 0] == pytest.approx(keys, rel=1e-6)


def test_uniform_causal_attention_is_equal_too() -> None:
    """Fair shares are all 1; the effective number is below n, and `uniform` says which one to compare with."""
    expected, viewers = causal(32)
    spread = concentration(layer_of(expected, expected=expected, viewers=viewers))
    assert spread.gini[0, 0] == pytest.approx(0, abs=1e-6)
    assert spread.effective[0, 0] == pytest.approx(float(spread.uniform[0, 0]), rel=1e-6)
    share = expected / expected.sum()
    assert spread.effective[0, 0] == pytest.approx(exp(-(share * np.log(share)).sum()), rel=1e-5)
    assert spread.effective[0, 0] < 30


def test_all_on_one_key() -> None:
    spread = concentration(layer_of([[10.0] + [0.0] * 9]))
    assert spread.gini[0, 0] == pytest.approx(0.9)  # (n - 1) / n
    assert spread.effective[0, 0] == pytest.approx(1.0)


@settings(max_examples=40)
@given(layer=layers())
def test_concentration_against_its_definition(layer: LayerArrays) -> None:
    """Gini as the mean absolute difference over twice the mean; entropy term by term."""
    spread = concentration(layer)
    for step, head, row in rows_of(layer):
        shares = [share for _, _, share, viewers in row if viewers >= 8]
        if shares:
            apart = sum(abs(one - other) for one in shares for other in shares)
            gini = apart / (2 * len(shares) * sum(shares))
            assert spread.gini[step, head] == pytest.approx(gini, abs=1e-6)
        total = sum(value for _, value, _, _ in row)
        entropy = -sum(value / total * log(value / total) for _, value, _, _ in row if value > 0)
        assert spread.effective[step, head] == pytest.approx(exp(entropy), rel=1e-5)


def test_no_attention_at_all_is_nan_without_a_warning() -> None:
    for layer in (layer_of(np.zeros((1, 1, 9))), layer_of(np.full((1, 1, 9), np.nan))):
        spread = concentration(layer)
        assert np.isnan(spread.gini).all() and np.isnan(spread.effective).all()
    assert np.isnan(mean_known(np.array([np.nan])))
    assert mean_known(np.array([1.0, np.nan, 3.0])) == 2.0


def test_traces_of_sinks_are_refused_where_every_key_counts() -> None:
    layer = layer_of(np.ones((1, 1, 9)))
    layer = replace(layer, kept=np.zeros(layer.received.shape, bool))
    with pytest.raises(UsageError, match=r"a histogram of scores needs .* record one with detail 'full'$"):
        score_histogram(layer)
    with pytest.raises(UsageError, match=r"concentration needs the score of every key"):
        concentration(layer)
    with pytest.raises(UsageError, match=r"at epsilon 0.5 needs .* detail 'full', or ask for 1 and above"):
        share_not_sinks(layer, [0.5, 2])
    assert share_not_sinks(layer, [1, 2])[0].tolist() == [9, 9]


def test_bounds_are_checked() -> None:
    layer = layer_of(np.ones((1, 1, 9)))
    with pytest.raises(UsageError, match=r"edges \[0, 2, 1\] are not increasing"):
        score_histogram(layer, [0, 2, 1])
    with pytest.raises(UsageError, match="edges begin at 1; fair shares begin at 0"):
        score_histogram(layer, [1, 2])
    with pytest.raises(UsageError, match=r"epsilons \[\] are not increasing numbers"):
        share_not_sinks(layer, [])
