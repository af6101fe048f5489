"""ALR and rank correlations: known answers, brute force over all orders, and what must hold for any numbers."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata, spearmanr

from sinklens.errors import UsageError
from sinklens.sinks.alr import (
    FEWEST,
    STAKE,
    alr,
    attention_loss,
    by_query_head,
    draw_orders,
    expected_alr,
    half,
    loss_curve,
    mass_kept,
    mid_ranks,
    oracle_loss,
    permuted_spearman,
    rank_correlations,
    spearman,
    stake,
)

PAID = (0.4, 0.3, 0.2, 0.1)
rows = arrays(np.float64, st.integers(2, 12), elements=st.floats(0, 1, allow_subnormal=False))


@pytest.mark.parametrize(("norms", "value"), [((4, 1, 2, 3), 0.6), ((1, 2, 3, 4), 0.0), ((4, 3, 2, 1), 1.0)])
def test_the_published_vectors(norms: tuple[int, ...], value: float) -> None:
    assert alr(PAID, norms) == pytest.approx(value, abs=1e-12)


def test_its_expectation_is_the_mean_over_all_orders() -> None:
    every = [float(alr(PAID, order)) for order in permutations(range(4))]
    assert expected_alr(PAID) == pytest.approx(np.mean(every), abs=1e-12)
    assert expected_alr(PAID) == pytest.approx(0.5, abs=1e-12)
    assert stake(PAID) == pytest.approx(0.125, abs=1e-12)


def test_rows_are_independent_and_in_any_number_of_axes() -> None:
    rng = np.random.default_rng(0)
    paid, norms = rng.random((2, 3, 5)), rng.random((2, 3, 5))
    one_by_one = [[alr(paid[i, j], norms[i, j]) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(alr(paid, norms), one_by_one)
    np.testing.assert_allclose(expected_alr(paid), [[expected_alr(paid[i, j]) for j in range(3)] for i in range(2)])


@given(paid=rows, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_what_holds_for_any_row(paid: np.ndarray, seed: int) -> None:
    n, rng = len(paid), np.random.default_rng(seed)
    norms = rng.permutation(n).astype(float)
    assert alr(paid, norms) >= 0
    assert alr(paid, -mid_ranks(paid)) == pytest.approx(0, abs=1e-9)  # norms fall as attention grows
    worst = alr(paid, mid_ranks(paid))
    assert worst == pytest.approx(2 * expected_alr(paid), abs=1e-9)
    assert alr(paid, norms) <= worst + 1e-9
    order = rng.permutation(n)
    assert alr(paid[order], norms[order]) == pytest.approx(alr(paid, norms), abs=1e-9)  # the cache's order is nothing
    assert alr(3 * paid, norms) == pytest.approx(3 * alr(paid, norms), abs=1e-9)
    gini = np.abs(paid[:, None] - paid[None]).sum() / (2 * n * max(paid.sum(), 1e-300))
    assert stake(paid) == pytest.approx(paid.sum() * gini / 2, abs=1e-9)


def test_equal_norms_are_dropped_from_the_end() -> None:
    """As a cache that keeps the lower of two equal positions."""
    np.testing.assert_allclose(attention_loss(PAID, (1, 1, 2, 1)), [0.2, 0.3, 0.6, 1.0])


def test_the_stake_of_flat_and_of_sharp_attention() -> None:
    n = 1000
    assert stake(np.full(n, 1 / n)) == pytest.approx(0, abs=1e-12)
    assert stake(np.eye(n)[0]) == pytest.approx(0.5, abs=1e-3)
    wavy = np.random.default_rng(0).normal(1, 0.18, n)
    assert stake(wavy / wavy.sum()) == pytest.approx(STAKE, rel=0.1)
    own = np.zeros(n)  # all but a hundredth went to the query's own key
    own[0] = 0.01
    assert stake(own) < STAKE


def test_the_curve_keeps_as_many_as_a_cache_does() -> None:
    paid = np.full(7, 1 / 7)
    curve = loss_curve(oracle_loss(paid))
    assert len(curve) == 101
    for percent in (0, 1, 50, 90, 99, 100):
        kept = -(-7 * (100 - percent) // 100)  # ceil
        assert curve[percent] == pytest.approx((7 - kept) / 7)


def test_mass_kept_by_hand() -> None:
    assert mass_kept(PAID, (4, 1, 2, 3), keep=2) == pytest.approx(0.5)
    assert mass_kept(np.multiply(PAID, 0.5), (1, 2, 3, 4), keep=2) == pytest.approx(0.7)  # a share of what is there
    assert mass_kept(PAID, (4, 1, 2, 3), keep=4) == 1.0
    assert np.isnan(mass_kept((0.0, 0.0), (1.0, 2.0), keep=1))
    assert [half(n) for n in (1, 2, 7)] == [1, 1, 4]
    with pytest.raises(UsageError, match="keep is 5 of 4 keys; expected a number from 1"):
        mass_kept(PAID, PAID, keep=5)


@given(
    values=arrays(np.int64, (3, 9), elements=st.integers(0, 4)),
    other=arrays(np.int64, (3, 9), elements=st.integers(0, 4)),
)
@settings(deadline=None, max_examples=60)
def test_ranks_and_correlations_are_scipys(values: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_array_equal(mid_ranks(values) + 1, rankdata(values, axis=-1))
    found = spearman(values, other)
    for row in range(3):
        if len(set(values[row])) > 1 and len(set(other[row])) > 1:
            assert found[row] == pytest.approx(spearmanr(values[row], other[row]).statistic, abs=1e-12)
        else:
            assert np.isnan(found[row])


def test_few_keys_have_no_correlation() -> None:
    line = np.arange(FEWEST)
    assert spearman(line, -line) == pytest.approx(-1)
    assert np.isnan(spearman(line[1:], -line[1:]))


def test_the_null_is_centred_and_shared_by_all_rows() -> None:
    rng = np.random.default_rng(1)
    norms = np.tile(rng.random(40), (6, 1))
    paid = -norms  # every head says the same
    drawn = permuted_spearman(norms, paid, draw_orders(40, draws=400, seed=(0, 1)))
    assert drawn.shape == (400, 6)
    assert abs(drawn.mean()) < 0.03
    assert drawn.std() == pytest.approx(1 / np.sqrt(39), rel=0.15)
    np.testing.assert_allclose(drawn[:, 0], drawn[:, 5])  # so a mean over heads varies as one head does
    order = draw_orders(40, draws=1, seed=5)
    assert permuted_spearman(norms, paid, order)[0, 0] == pytest.approx(
        spearmanr(norms[0][order[0]], paid[0]).statistic
    )


def test_layers_are_compared_pair_by_pair() -> None:
    profiles = np.random.default_rng(2).random((4, 30))
    profiles[3] = np.exp(profiles[1])
    found = rank_correlations(profiles)
    np.testing.assert_allclose(found, spearmanr(profiles.T).statistic, atol=1e-12)
    assert found[1, 3] == pytest.approx(1)


def test_query_heads_read_their_kv_head() -> None:
    norms = np.arange(6.0).reshape(1, 2, 3)
    np.testing.assert_array_equal(by_query_head(norms, 4)[0], norms[0][[0, 0, 1, 1]])
    with pytest.raises(UsageError, match="3 heads cannot share 2 kv heads"):
        by_query_head(norms, 3)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match=r"shapes \(4,\) and \(3,\) differ; expected one norm a key"):
        alr(PAID, (1, 2, 3))
    with pytest.raises(UsageError, match=r"attention has shape \(0,\); expected"):
        oracle_loss([])
