"""How likely a diffusion language model finds an answer: a lower bound, by random masks.

Of the L tokens of the answer, l are masked, l drawn from 1..L, then which ones; the model sees the others and the
prompt (equation 6 of LLaDA, arXiv 2502.09992):

    elbo = E over l and masks of  L / l  x  sum over masked i of log p(token i | what is not masked)

It is at most the log-likelihood, and equal to it where the model's conditionals all stem from one distribution. The
draws of l are stratified: with N draws, the j-th is 1 + floor(L (j + u) / N) with its own uniform u, so that all l have
their share. Masks are positions, never "where the mask id stands": the answer may contain that id itself. They depend
on the length, the seed and the number of draws alone, so all cells and all answers of a length share them, and
differences between cells are free of most of the error.

It is an `elbo`, never to be set beside the perplexity of an autoregressive model, which is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinklens.errors import UsageError

DRAWS = 128
ROUNDING = 1e-3  # a log-probability from a half-precision softmax may lie this far above 0


@dataclass(frozen=True, kw_only=True)
class Elbo:
    """A lower bound of log p(answer | prompt), natural logarithm, summed over the tokens."""

    value: float
    error: float | None  # standard error over the masks; 0 where nothing is random, None with one draw of many
    length: int  # tokens of the answer
    draws: int


def elbo(
    log_probabilities: Callable[[Bool[np.ndarray, "draw token"]], Any],
    length: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    batch: int = DRAWS,
) -> Elbo:
    """The bound for an answer of `length` tokens.

    log_probabilities: called with masks [draw, token], at most `batch` at a time; returns, in the same shape, the log
    probability of the true token at every position of the answer, given the tokens that are not masked. What it says
    of tokens that are not masked is not read. A model whose logits are shifted by one is for the callable to shift.

    The error is that of collapsed strata: neighbours in the order of l are close in mean, so half of their squared
    difference is the variance of each. It errs on the large side.
    """
    masks = answer_masks(length, draws=draws, seed=seed)
    if batch < 1:
        raise UsageError(f"batch is {batch}; expected at least 1")
    values = np.concatenate(
        [_weighted(log_probabilities, masks[start : start + batch]) for start in range(0, len(masks), batch)]
    )
    return Elbo(value=float(values.mean()), error=_error(values, length), length=length, draws=len(values))


def answer_masks(length: int, *, draws: int = DRAWS, seed: int = 0) -> Bool[np.ndarray, "draw token"]:
    """Which tokens of an answer are masked in each draw, in the order of their number. One draw where length is 1."""
    for name, value in (("length", length), ("draws", draws)):
        if value < 1:
            raise UsageError(f"{name} is {value}; expected at least 1")
    if length == 1:
        return np.ones((1, 1), np.bool_)
    rng = np.random.default_rng((seed, length))
    # The uniform is below 1 but the sum may round up to the next stratum, and the last one has none.
    masked = np.minimum(1 + np.floor(length * (np.arange(draws) + rng.random(draws)) / draws), length)
    ranks = rng.random((draws, length)).argsort(axis=1).argsort(axis=1)
    return np.asarray(ranks < masked[:, None])


def _weighted(
    log_probabilities: Callable[[Bool[np.ndarray, "draw token"]], Any], masks: Bool[np.ndarray, "draw token"]
) -> Float[np.ndarray, " draw"]:
    """L / l x the sum over masked tokens, of each mask."""
    found = np.asarray(log_probabilities(masks.copy()), np.float64)
    if found.shape != masks.shape:
        raise UsageError(f"log_probabilities returned shape {found.shape}; expected that of its masks, {masks.shape}")
    read = found[masks]
    if not (np.isfinite(read).all() and (read <= ROUNDING).all()):
        raise UsageError("log_probabilities returned a value that is not finite or above 0; expected log p of a token")
    return np.asarray(np.where(masks, found, 0.0).sum(axis=1) * masks.shape[1] / masks.sum(axis=1))


def _error(values: Float[np.ndarray, " draw"], length: int) -> float | None:
    if length == 1:
        return 0.0
    if len(values) == 1:
        return None
    pairs = values[: len(values) // 2 * 2].reshape(-1, 2)
    variance = float(np.square(pairs[:, 0] - pairs[:, 1]).mean()) / 2
    return sqrt(variance / len(values))
