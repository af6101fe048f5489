"""The bound against enumeration of all masks, and against the likelihood where the two are equal."""

from collections.abc import Callable
from itertools import combinations
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.evaluation.elbo import answer_masks, elbo

VOCABULARY = 3
Model = Callable[[np.ndarray], np.ndarray]


def random_distribution(length: int, seed: int) -> np.ndarray:
    """Chances of all answers, one axis a token: a model whose conditionals all stem from one distribution."""
    chances = np.random.default_rng(seed).exponential(size=(VOCABULARY,) * length) ** 2
    return np.asarray(chances / chances.sum())


def conditionals_of(chances: np.ndarray, answer: tuple[int, ...]) -> Model:
    """log p(token i | tokens not masked), by summing the table; NaN where the token is not masked."""

    def log_probabilities(masks: np.ndarray) -> np.ndarray:
        found = np.full(masks.shape, np.nan)
        for row, mask in enumerate(masks):
            given_tokens = chances[
                tuple(slice(None) if hidden else token for hidden, token in zip(mask, answer, strict=True))
            ]
            for axis, position in enumerate(np.flatnonzero(mask)):
                others = tuple(k for k in range(given_tokens.ndim) if k != axis)
                found[row, position] = log(given_tokens.sum(axis=others)[answer[position]] / given_tokens.sum())
        return found

    return log_probabilities


def enumerated(model: Model, length: int) -> float:
    """The bound by its definition: mean over l, then over all masks of l tokens."""
    total = 0.0
    for masked in range(1, length + 1):
        masks = np.array([[i in chosen for i in range(length)] for chosen in combinations(range(length), masked)])
        total += np.where(masks, model(masks), 0.0).sum(axis=1).mean() * length / masked / length
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_likelihood_of_one_distribution(seed: int) -> None:
    """Three ways: the table itself, all masks, random masks within their error."""
    chances = random_distribution(4, seed)
    answer = (0, 2, 1, 1)
    model = conditionals_of(chances, answer)
    assert enumerated(model, 4) == pytest.approx(log(chances[answer]))
    found = elbo(model, 4, draws=4096, seed=seed)
    assert found.error is not None and 0 < found.error < 0.1
    assert found.value == pytest.approx(log(chances[answer]), abs=4 * found.error)


def inconsistent(masks: np.ndarray) -> np.ndarray:
    """Log-probabilities that no single distribution has."""
    hidden = masks.sum(axis=1, keepdims=True)
    return np.asarray(-np.sqrt(hidden + np.arange(masks.shape[1])) - 0.3 * hidden)


def test_the_mean_is_right_and_the_error_is_its_spread() -> None:
    """Over 600 seeds: no bias, and the stated error is about the true one, on the large side."""
    runs = [elbo(inconsistent, 5, draws=16, seed=seed) for seed in range(600)]
    values = np.array([one.value for one in runs])
    stated = np.sqrt(np.mean([one.error**2 for one in runs if one.error is not None]))
    assert values.mean() == pytest.approx(enumerated(inconsistent, 5), abs=4 * values.std() / np.sqrt(600))
    assert 0.95 < stated / values.std() < 1.6


def test_few_draws_are_not_biased() -> None:
    """Two draws for five numbers of tokens: every number still has its chance."""
    values = np.array([elbo(inconsistent, 5, draws=2, seed=seed).value for seed in range(2000)])
    assert values.mean() == pytest.approx(enumerated(inconsistent, 5), abs=4 * values.std() / np.sqrt(2000))
    assert {int(one) for seed in range(50) for one in answer_masks(5, draws=2, seed=seed).sum(axis=1)} == {
        1,
        2,
        3,
        4,
        5,
    }


def test_strata_make_it_finer() -> None:
    """Against masks whose l is drawn without strata."""
    rng = np.random.default_rng(0)

    def plain() -> float:
        masks = rng.random((16, 5)).argsort(axis=1) < rng.integers(1, 6, (16, 1))
        return float((np.where(masks, inconsistent(masks), 0).sum(axis=1) * 5 / masks.sum(axis=1)).mean())

    ours = np.std([elbo(inconsistent, 5, draws=16, seed=seed).value for seed in range(400)])
    assert ours < 0.8 * np.std([plain() for _ in range(400)])


@given(length=st.integers(2, 40), draws=st.integers(1, 130), seed=st.integers(0, 99))
def test_masks(length: int, draws: int, seed: int) -> None:
    masks = answer_masks(length, draws=draws, seed=seed)
    counts = masks.sum(axis=1)
    assert masks.shape == (draws, length)
    # The j-th number lies in its stratum.
    assert (counts >= 1 + length * np.arange(draws) // draws).all()
    assert (counts <= -(-length * np.arange(1, draws + 1) // draws)).all()
    np.testing.assert_array_equal(masks, answer_masks(length, draws=draws, seed=seed))


def test_all_numbers_and_all_positions_have_their_share() -> None:
    masks = answer_masks(8, draws=8000)
    assert np.bincount(masks.sum(axis=1)).tolist() == [0, *[1000] * 8]
    np.testing.assert_allclose(masks.mean(axis=0), 4.5 / 8, atol=0.02)
    pairs = [tuple(mask) for mask in masks if mask.sum() == 1]
    assert len(set(pairs)) == 8


def test_one_token_takes_one_draw() -> None:
    calls: list[np.ndarray] = []

    def model(masks: np.ndarray) -> np.ndarray:
        calls.append(masks)
        return np.array([[-1.25]])

    found = elbo(model, 1)
    assert (found.value, found.error, found.draws, found.length) == (-1.25, 0.0, 1, 1)
    assert [one.tolist() for one in calls] == [[[True]]]


def test_batches_change_nothing() -> None:
    sizes: list[int] = []

    def model(masks: np.ndarray) -> np.ndarray:
        sizes.append(len(masks))
        return inconsistent(masks)

    assert elbo(model, 6, batch=50) == elbo(inconsistent, 6)
    assert sizes == [50, 50, 28]


def test_a_model_that_writes_on_its_masks_harms_nothing() -> None:
    def model(masks: np.ndarray) -> np.ndarray:
        found = inconsistent(masks)
        masks[:] = False
        return found

    assert elbo(model, 6) == elbo(inconsistent, 6)


def test_one_draw_of_many_has_no_error() -> None:
    assert elbo(inconsistent, 6, draws=1).error is None
    assert elbo(inconsistent, 6, draws=3).error is not None


def test_refusals() -> None:
    with pytest.raises(UsageError, match="length is 0; expected at least 1"):
        answer_masks(0)
    with pytest.raises(UsageError, match="draws is 0; expected at least 1"):
        elbo(inconsistent, 3, draws=0)
    with pytest.raises(UsageError, match="batch is 0; expected at least 1"):
        elbo(inconsistent, 3, batch=0)
    with pytest.raises(UsageError, match=r"returned shape \(128,\); expected that of its masks, \(128, 3\)"):
        elbo(lambda masks: np.zeros(len(masks)), 3)
    for bad in (np.nan, -np.inf, 0.5):
        with pytest.raises(UsageError, match="not finite or above 0; expected log p of a token"):
            elbo(lambda masks, bad=bad: np.full(masks.shape, bad), 3)
