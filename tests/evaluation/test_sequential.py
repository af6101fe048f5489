"""Betting: what the wealth is, how rarely it cries wolf under constant watching, and what its interval covers."""

import json
from dataclasses import asdict
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln
from scipy.stats import binom

from sinklens.errors import UsageError
from sinklens.evaluation.sequential import compare_sequentially, log_wealth, stop_at

PROBLEMS = 400
SIGNS = st.sampled_from([-1, 0, 1])


def simulate(gained: float, lost: float, *, runs: int, seed: int) -> np.ndarray:
    """d of PROBLEMS problems in each of many runs."""
    u = np.random.default_rng(seed).random((runs, PROBLEMS))
    return (u < gained).astype(float) - ((u >= gained) & (u < gained + lost))


def paths(differences: np.ndarray, *, at: float = 0.0) -> np.ndarray:
    """Log-wealth after every problem of every run, a hundred runs at a time to hold less."""
    return np.concatenate([log_wealth(part, at=at) for part in np.array_split(differences, len(differences) // 100)])


@given(gained=st.integers(0, 60), lost=st.integers(0, 60), same=st.integers(0, 20), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_wealth_is_the_beta_mixture(gained: int, lost: int, same: int, seed: int) -> None:
    """Up to 127 discordant pairs exactly, in whatever order they come; pairs that agree move nothing."""
    d = np.repeat([1, -1, 0, 0], [gained, lost, same, 1])
    np.random.default_rng(seed).shuffle(d)
    closed = (gained + lost) * log(2) + betaln(gained + 0.5, lost + 0.5) - betaln(0.5, 0.5)
    assert log_wealth(d)[-1] == pytest.approx(closed, abs=1e-9)


@pytest.mark.parametrize(
    ("d", "expected"),
    [([1], 1), ([1, 1], 1 + 1 / 2), ([1, -1], 1 - 1 / 2), ([1, 0, -1, 1, -1], 1 - 2 / 2 + 3 / 8), ([0.5, 0.5], 9 / 8)],
)
def test_wealth_by_hand(d: list[float], expected: float) -> None:
    """Mean of the product of (1 + lambda d): the means of lambda^2 and lambda^4 are 1/2 and 3/8."""
    assert exp(log_wealth(d)[-1]) == pytest.approx(expected)


@pytest.mark.parametrize("at", [-0.9, -0.3, 0.0, 0.02, 0.5])
@pytest.mark.parametrize("past", [[], [1, 1, 0, -1], [0.4, -0.2, 1, 1, 1]])
def test_no_bet_gains_on_average_if_the_mean_is_true(at: float, past: list[float]) -> None:
    """Whatever came before: the expected wealth after the next problem is that before it, for any law of mean `at`."""
    before = exp(log_wealth(past, at=at)[-1]) if past else 1.0
    for low, high in ((-1.0, 1.0), (at - 0.05, 1.0), (-1.0, at + 0.05)):
        up = (at - low) / (high - low)
        after = [exp(log_wealth([*past, d], at=at)[-1]) for d in (low, high)]
        assert (1 - up) * after[0] + up * after[1] == pytest.approx(before, rel=1e-9)


@pytest.mark.parametrize("share", [0.05, 0.2, 1.0])
def test_false_alarms_over_2000_null_runs(share: float) -> None:
    """No difference, `share` of the problems discordant, a look after each of 400: at most 5 % ever stop."""
    half = share / 2
    top = paths(simulate(half, half, runs=2000, seed=1)).max(axis=-1)
    assert np.mean(top >= log(stop_at(1))) <= 0.05
    assert np.mean(top >= log(stop_at(4))) <= 0.05 / 4
    assert np.mean(top >= log(4)) > 0.03  # the test can fail: a threshold of 4 is crossed far more often


def test_looking_at_a_fixed_test_does_cry_wolf() -> None:
    """The same runs under a z test at 5 % after every problem: why this module exists."""
    d = simulate(0.1, 0.1, runs=2000, seed=1)
    discordant = np.cumsum(np.abs(d), axis=-1)
    z = np.abs(np.cumsum(d, axis=-1)) / np.sqrt(np.maximum(discordant, 1))
    assert np.mean(((z > 1.96) & (discordant >= 6)).any(axis=-1)) > 0.2


def test_false_alarms_with_nested_draws() -> None:
    """One draw against five, skewed: equal means are all that is asked."""
    rng = np.random.default_rng(3)
    ease = rng.beta(4, 1, (1000, PROBLEMS))
    d = (rng.random(ease.shape) < ease) - rng.binomial(5, ease) / 5
    assert np.mean(paths(d).max(axis=-1) >= log(stop_at(1))) <= 0.05


@pytest.mark.parametrize(("gained", "lost"), [(0.15, 0.05), (0.05, 0.0), (0.1, 0.1), (0.02, 0.3)])
def test_the_confidence_sequence_holds_the_truth_at_all_times(gained: float, lost: float) -> None:
    """A true difference is ruled out at some time in at most 5 % of runs, within the error of 1,000 runs."""
    top = paths(simulate(gained, lost, runs=1000, seed=2), at=gained - lost).max(axis=-1)
    assert np.mean(top >= log(20)) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 1000)


def test_power() -> None:
    """15 % against 5 % discordant, ten points: 19 of 20 runs stop within 400 problems, half within 170."""
    stopped = paths(simulate(0.15, 0.05, runs=1000, seed=4)) >= log(20)
    assert stopped.any(axis=-1).mean() > 0.93
    first = np.where(stopped.any(axis=-1), stopped.argmax(axis=-1) + 1, PROBLEMS + 1)
    assert np.median(first) < 170


def test_the_price_of_looking() -> None:
    """10 % against 5 %: McNemar's test at n = 400 finds it in about 70 % of runs, watching in about 40 %."""
    d = simulate(0.1, 0.05, runs=1000, seed=4)
    gained, lost = (d > 0).sum(axis=-1), (d < 0).sum(axis=-1)
    fixed = np.mean(2 * binom.cdf(np.minimum(gained, lost), gained + lost, 0.5) <= 0.05)
    watched = np.mean(paths(d).max(axis=-1) >= log(20))
    assert 0.66 < fixed < 0.75
    assert 0.36 < watched < 0.46


def cells(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a and b whose difference is d."""
    return (d >= 0).astype(int), (d <= 0).astype(int)


@pytest.mark.parametrize("seed", range(4))
def test_one_run_looked_at_in_two_ways(seed: int) -> None:
    """Stop, wealth and interval of the public function follow from the wealth against each hypothesis."""
    d = simulate(0.16, 0.05, runs=1, seed=seed)[0, :150]
    found = compare_sequentially(*cells(d))
    path = log_wealth(d)
    reached = np.flatnonzero(path >= log(20))
    assert found.stopped_at == (reached[0] + 1 if len(reached) else None)
    assert found.log_wealth == path[-1]
    assert (found.n, found.alpha, found.value) == (150, 0.05, pytest.approx(d.mean()))
    assert found.low is not None and found.high is not None
    for at in np.arange(-20, 21) / 40:
        out = (log_wealth(d, at=float(at)) >= log(20)).any()
        assert out == (not found.low < at < found.high)


def test_zero_is_ruled_out_exactly_when_it_stops() -> None:
    stops = 0
    for d in simulate(0.12, 0.06, runs=30, seed=9)[:, :200]:
        found = compare_sequentially(*cells(d))
        assert found.low is not None and found.high is not None
        assert (found.low < 0 < found.high) == (found.stopped_at is None)
        stops += found.stopped_at is not None
    assert 3 < stops < 27


def test_more_contrasts_stop_later_and_widen() -> None:
    d = simulate(0.2, 0.05, runs=1, seed=6)[0]
    one, four = compare_sequentially(*cells(d)), compare_sequentially(*cells(d), contrasts=4)
    assert one.stopped_at is not None and four.stopped_at is not None
    assert one.stopped_at < four.stopped_at
    assert one.low is not None and one.high is not None and four.low is not None and four.high is not None
    assert four.low < one.low and one.high < four.high
    assert (four.alpha, four.contrasts) == (1 / 80, 4)


@given(d=st.lists(SIGNS, min_size=2, max_size=40), data=st.data())
@settings(max_examples=25, deadline=None)
def test_going_on_never_widens(d: list[int], data: st.DataObject) -> None:
    early = data.draw(st.integers(1, len(d) - 1))
    first = compare_sequentially(*cells(np.array(d[:early])))
    last = compare_sequentially(*cells(np.array(d)))
    mirrored = compare_sequentially(*cells(-np.array(d)))
    json.dumps(asdict(last), allow_nan=False)
    if last.low is not None and last.high is not None:
        assert first.low is not None and first.high is not None
        assert -1 <= first.low <= last.low < last.high <= first.high <= 1
        assert (mirrored.low, mirrored.high) == (-last.high, -last.low)
    assert mirrored.log_wealth == pytest.approx(last.log_wealth)
    if first.stopped_at is not None:
        assert last.stopped_at == first.stopped_at


def test_an_order_that_no_difference_explains_leaves_nothing() -> None:
    """All problems gained first, all lost then: a drawn order does this with a chance below alpha."""
    found = compare_sequentially(*cells(np.repeat([1, -1], 60)))
    assert (found.value, found.low, found.high) == (0.0, None, None)


def test_draws_nested_in_problems() -> None:
    a, b = [1, 1, 0, 1], [[0, 1], [0, 0], [0, 0], [1, 1]]
    found = compare_sequentially(a, b)
    assert found.value == pytest.approx(1.5 / 4)
    assert found.log_wealth == log_wealth([0.5, 1, 0, 0])[-1]


def test_refusals() -> None:
    for wrong in (0, True, 1.5):
        with pytest.raises(UsageError, match=f"contrasts is {wrong}; expected the number of primary contrasts"):
            compare_sequentially([1], [0], contrasts=wrong)
    with pytest.raises(UsageError, match="at is 2; expected a difference between -1 and 1"):
        log_wealth([0, 1], at=2)
    for bad in ([0, 2], [float("nan")], 1.0):
        with pytest.raises(UsageError, match="differences must be numbers from -1 to 1"):
            log_wealth(bad)
