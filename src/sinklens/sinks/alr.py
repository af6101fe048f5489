"""How well key norms foretell attention: ALR, its reference points, and rank correlations. Numpy alone.

A query pays a[p] to the keys p = 1..n. Keys are dropped from the largest norm to the smallest; m drops have lost

    L_m = sum of a[p] over the m keys dropped first        Lref_m = the same, the smallest a[p] dropped first

    ALR = sum over m = 1..n of (L_m - Lref_m)              (arXiv 2406.11430)

0 is an order as good as the oracle's. A random order has, in the mean, L_m = A m / n with A the sum of a, so

    expected ALR = A (n + 1) / 2 - sum of Lref_m = A n G / 2,     G: the Gini coefficient of a

and ALR / expected ALR is 0 for the oracle, 1 for chance, more than 1 for an order worse than chance; it does not grow
with n. Where attention is flat, or goes to the query's own key, both are near 0 and their ratio is noise. The stake

    stake = expected ALR / n      the attention that chance loses beyond the oracle, mean over all budgets

is 1/2 at most, for a query that looks at one key alone. Below STAKE, a tenth of that, no order loses a twentieth of a
query's attention more than another does on average: with A = 1 that is G < 0.1, normal values that vary by 18 %.

Functions that reduce the key axis give an array [...], or a number for a single row.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError

STAKE = 0.05  # below it a ratio of two small numbers says nothing
LEVELS = 101  # of a loss curve: 0, 1, ... 100 % dropped
FEWEST = 8  # keys that a rank correlation is taken over

Floats = Float[np.ndarray, "..."]


def by_query_head(norms: Float[np.ndarray, "*axes kv_head key"], heads: int) -> Float[np.ndarray, "*axes head key"]:
    """Norms of keys as query heads see them: head j reads kv head j // (heads / kv heads)."""
    if heads % norms.shape[-2]:
        raise UsageError(f"{heads} heads cannot share {norms.shape[-2]} kv heads; pass the model's query heads")
    return np.repeat(norms, heads // norms.shape[-2], axis=-2)


def attention_loss(attention: Any, norms: Any) -> Floats:
    """L_1 .. L_n along the last axis: keys dropped from the largest norm down, of equal norms the later one first."""
    paid, sizes = _alike(attention, norms)
    order = np.argsort(sizes, axis=-1, kind="stable")[..., ::-1]
    return np.cumsum(np.take_along_axis(paid, order, axis=-1), axis=-1)


def oracle_loss(attention: Any) -> Floats:
    """Lref_1 .. Lref_n: the keys that get the least are dropped first."""
    return np.cumsum(np.sort(_read("attention", attention), axis=-1), axis=-1)


def alr(attention: Any, norms: Any) -> Any:
    """ALR of every row [..., key].

    >>> float(round(alr([0.4, 0.3, 0.2, 0.1], [4.0, 1.0, 2.0, 3.0]), 9))
    0.6
    """
    above = attention_loss(attention, norms) - oracle_loss(attention)
    return np.maximum(above, 0.0).sum(-1)  # below 0 by rounding alone


def expected_alr(attention: Any) -> Any:
    """The mean of ALR over all orders.

    >>> float(round(expected_alr([0.4, 0.3, 0.2, 0.1]), 9))
    0.5
    """
    paid = _read("attention", attention)
    at_random = paid.sum(-1) * (paid.shape[-1] + 1) / 2
    return np.maximum(at_random - oracle_loss(paid).sum(-1), 0.0)


def stake(attention: Any) -> Any:
    """Expected ALR over the number of keys."""
    paid = _read("attention", attention)
    return expected_alr(paid) / paid.shape[-1]


def loss_curve(losses: Float[np.ndarray, "*axes key"]) -> Float[np.ndarray, "*axes level"]:
    """L at 0, 1, ... 100 % compression. What is kept is rounded up, as a cache does."""
    n = losses.shape[-1]
    kept = -(-n * (100 - np.arange(LEVELS)) // 100)
    return np.concatenate([np.zeros_like(losses[..., :1]), losses], axis=-1)[..., n - kept]


def mass_kept(attention: Any, norms: Any, *, keep: int) -> Any:
    """Share of the attention that lies on the `keep` keys of smallest norm; NaN where there is none.

    >>> float(round(mass_kept([0.4, 0.3, 0.2, 0.1], [4.0, 1.0, 2.0, 3.0], keep=2), 9))
    0.5
    """
    paid = _read("attention", attention)
    if not 0 < keep <= paid.shape[-1]:
        raise UsageError(f"keep is {keep} of {paid.shape[-1]} keys; expected a number from 1 to that")
    losses, total = attention_loss(paid, norms), paid.sum(-1)
    lost = np.concatenate([np.zeros_like(losses[..., :1]), losses], axis=-1)[..., paid.shape[-1] - keep]
    shares = np.full(total.shape, np.nan)
    np.divide(total - lost, total, out=shares, where=total > 0)
    return shares[()]


def half(keys: int) -> int:
    """What is kept of so many keys at 50 %."""
    return -(-keys // 2)


def mid_ranks(values: Any) -> Floats:
    """Ranks from 0 along the last axis; equal values share the mean of theirs.

    >>> mid_ranks([3.0, 1.0, 3.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    given = _read("values", values)
    order = np.argsort(given, axis=-1, kind="stable")
    ranked = np.take_along_axis(given, order, axis=-1)
    place = np.arange(given.shape[-1])
    fresh: Bool[np.ndarray, "..."] = np.ones(given.shape, bool)
    fresh[..., 1:] = ranked[..., 1:] != ranked[..., :-1]
    last: Bool[np.ndarray, "..."] = np.ones(given.shape, bool)
    last[..., :-1] = fresh[..., 1:]
    begins = np.maximum.accumulate(np.where(fresh, place, 0), axis=-1)
    ends = np.minimum.accumulate(np.where(last, place, place[-1])[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(given.shape)
    np.put_along_axis(ranks, order, (begins + ends) / 2, axis=-1)
    return ranks


def spearman(first: Any, second: Any) -> Any:
    """Rank correlation along the last axis; NaN with fewer than FEWEST keys, or where all of one are equal."""
    one, other = _alike(first, second)
    return (_unit_ranks(one) * _unit_ranks(other)).sum(-1)


def permuted_spearman(first: Any, second: Any, orders: Int[np.ndarray, "draw key"]) -> Any:
    """What chance gives, [draw, ...]: `first` moved by each order, the same for all rows, against `second`.

    Heads and layers see the same tokens, so they share the order: their means vary as much as those of real tokens.
    """
    one, other = _alike(first, second)
    ranked, beside = _unit_ranks(one), _unit_ranks(other)
    return np.stack([(ranked[..., order] * beside).sum(-1) for order in orders])


def draw_orders(keys: int, *, draws: int, seed: Any) -> Int[np.ndarray, "draw key"]:
    """Random orders of so many keys. seed: one number, or several."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(keys) for _ in range(draws)])


def rank_correlations(profiles: Float[np.ndarray, "layer key"]) -> Float[np.ndarray, "layer layer"]:
    """Spearman between every two profiles."""
    ranked = _unit_ranks(_read("profiles", profiles))
    found: np.ndarray = ranked @ ranked.T
    return found


def _unit_ranks(values: Floats) -> Floats:
    """Ranks with mean 0 and length 1, so that a product of two is their correlation."""
    ranks = mid_ranks(values)
    centred = ranks - (values.shape[-1] - 1) / 2
    length = np.sqrt((centred**2).sum(-1, keepdims=True))
    enough = (length > 0) & (values.shape[-1] >= FEWEST)
    unit = np.full(values.shape, np.nan)
    np.divide(centred, length, out=unit, where=enough)
    return unit


def _alike(first: Any, second: Any) -> tuple[Floats, Floats]:
    one, other = _read("attention", first), _read("norms", second)
    if one.shape != other.shape:
        raise UsageError(
            f"shapes {one.shape} and {other.shape} differ; expected one norm a key, for kv heads by `by_query_head`"
        )
    return one, other


def _read(name: str, values: Any) -> Floats:
    """Float64: sums of a thousand small numbers."""
    given = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
    if given.ndim == 0 or given.shape[-1] == 0:
        raise UsageError(f"{name} has shape {given.shape}; expected [..., key] with at least one key")
    return given
