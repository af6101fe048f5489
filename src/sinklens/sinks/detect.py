"""Which tokens are attention sinks: those that receive far more than the other tokens of the same row.

A row is one step of one layer and head. Every token j that some query may see has a score, in one of three units:

    fair_share   received_j / expected_j     expected: what uniform attention under the same mask would give
    mean         received_j / viewers_j      viewers: queries that may see the key
    percent      100 x mean

and its excess is the score minus the mean score of the OTHER visible tokens of the row. A sink exceeds them by more
than epsilon (Rulli et al., arXiv 2510.15731). In fair shares uniform attention has excess 0 under any mask; in `mean`
and `percent` it has not, because early keys of causal attention are seen by queries that see few keys.

Arrays are numpy, or torch on any device; the answer is of the same kind. The last axis is the key, the axes before it
are free. A key that is NaN in `received`, or has 0 in `expected`, is not there: no sink, and not among the others.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from sinklens.errors import UsageError, choose

UNITS = ("fair_share", "mean", "percent")
MIN_VIEWERS = 8  # queries that must see a key before it can be called a sink
LEAST_AVERAGE = 0.05  # fair shares; a null term of the softmax may take much, but not nearly all


def detect_sinks(
    received: Any,
    expected: Any = None,
    epsilon: Any = 3.0,
    unit: str = "fair_share",
    min_viewers: int = MIN_VIEWERS,
    *,
    viewers: Any = None,
) -> Any:
    """True where a key exceeds the mean of the others by more than epsilon; same shape as `received`.

    >>> detect_sinks([4.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    array([ True, False, False, False, False, False, False, False])

    expected: broadcasts against `received`; None is square bidirectional attention, where it is 1 for every key.
    Padding must then be NaN. min_viewers: a key that fewer queries see is never a sink, but counts among the others.
    viewers: how many queries see each key. Without it they follow from `expected`: a query sees at most the K visible
    keys, so viewers_j <= K x expected_j, and never more than there are queries (the sum of `expected`). That is exact
    without a mask and close at the end of causal rows, where min_viewers matters; under a narrow window it is too
    many. The units `mean` and `percent` divide by viewers and need the exact numbers.

    An epsilon that no key could exceed is an error. The score is largest when all queries that see a key give it
    everything: viewers_j / expected_j fair shares, a mean of 1. If all queries see it, the others then have 0, so that
    this is the largest excess as well; a key that some do not see can reach it where the softmax has a null term.
    """
    if not isinstance(epsilon, Real) or not 0 <= float(epsilon) < float("inf"):
        raise UsageError(f"epsilon is {epsilon!r}; expected a finite number, 0 or more")
    rows = _rows(received, expected, viewers=viewers, unit=unit)
    compared = rows.visible & (rows.count > 1)
    if not bool(compared.any()):
        return compared  # all False: nothing is there that could be a sink
    if viewers is None and unit == "fair_share":
        _refuse_shares(rows)
    eligible = _eligible(rows, compared, min_viewers)
    largest = _largest_score(rows, eligible)
    if float(epsilon) >= largest:
        hint = "" if unit == "fair_share" else "unit='fair_share', where 1 is uniform attention, or "
        raise UsageError(
            f"epsilon {epsilon:g} cannot be exceeded in unit {unit!r}: at most {largest:.4g} is possible, for a key to "
            f"which all its queries give everything; use {hint}a smaller epsilon"
        )
    return eligible & (_excess(rows) > float(epsilon))


def excess(received: Any, expected: Any = None, *, unit: str = "fair_share", viewers: Any = None) -> Any:
    """Score minus the mean score of the other visible keys; NaN where a key is not there, or is the only one.

    >>> excess([7.0, 1.0, 0.0, 0.0])
    array([ 6.66666667, -1.33333333, -2.66666667, -2.66666667])

    Arguments as in `detect_sinks`. float32 stays float32, with sums in float64.
    """
    return _excess(_rows(received, expected, viewers=viewers, unit=unit, count_viewers=False))


def top_sinks(
    received: Any, expected: Any = None, *, k: Any, min_viewers: int = MIN_VIEWERS, viewers: Any = None
) -> Any:
    """True at the k keys with the highest fair share of each row; of equal ones, those further left.

    Fewer where fewer are eligible. Arguments as in `detect_sinks`; a row always has its top k, sinks or not.
    """
    if not isinstance(k, Integral) or k < 0:
        raise UsageError(f"k is {k!r}; expected a whole number of keys, 0 or more")
    rows = _rows(received, expected, viewers=viewers, unit="fair_share")
    eligible = _eligible(rows, rows.visible, min_viewers)
    k, keys = int(k), rows.score.shape[-1]
    if k >= keys:
        return eligible
    if k == 0:
        return eligible & False
    xp = rows.xp
    score = xp.where(eligible, rows.score, -float("inf"))
    last = np.partition(score, keys - k, axis=-1)[..., [keys - k]] if xp is np else score.topk(k).values[..., -1:]
    above, equal = score > last, score == last
    left = k - above.sum(-1)[..., None]  # places for those that equal the last one
    return eligible & (above | (equal & (xp.cumsum(equal, -1) <= left)))


def eligible_keys(received: Any, expected: Any = None, *, min_viewers: int = MIN_VIEWERS, viewers: Any = None) -> Any:
    """True at the visible keys that at least min_viewers queries see; an error where these are none of the visible."""
    rows = _rows(received, expected, viewers=viewers, unit="fair_share")
    return _eligible(rows, rows.visible, min_viewers)


@dataclass(frozen=True, kw_only=True, eq=False)
class MapSums:
    """What attention maps say about each key, ready for `detect_sinks` and `excess`."""

    received: Any  # [..., key] column sums over the queries
    expected: Any  # [..., key] the same for uniform attention; broadcasts against received
    viewers: Any  # [..., key] queries that may see the key; likewise


def received_of_map(attention: Any, *, visible: Any = None, causal: bool = False) -> MapSums:
    """Sums of attention maps [..., query, key] that are already there, numpy or torch.

    visible: bool, broadcasts against the maps, True where a query may see a key. Queries that see nothing (padding) are
    not counted. causal: a query sees the keys up to its own position; with fewer queries than keys they are the last
    ones, as under a cache. Both together: what both allow. Neither: everything is visible.

    Nothing is guessed. Maps that contradict this are refused: weight on a hidden key, or, where all is said to be
    visible, nothing but zeros above the diagonal.

        sums = received_of_map(maps, causal=True)
        sinks = detect_sinks(sums.received, sums.expected, viewers=sums.viewers)
    """
    xp = _library(attention)
    maps = _floats(xp, attention)
    if maps.ndim < 2:
        raise UsageError(f"attention has shape {tuple(maps.shape)}; expected [..., query, key]")
    seen = _visible(xp, maps, visible, causal)
    counted = seen.any(-1)[..., None]
    if bool(xp.isnan(xp.where(seen, maps, 0)).any()):
        raise UsageError("attention holds NaN where a query may see a key; hide those queries: visible= False there")
    if bool((xp.where(counted & ~seen, maps, 0) > 1e-3).any()):
        raise UsageError(
            "attention gives weight to keys that are said to be hidden; "
            "expected zeros there: check `visible` and `causal`, and that the last axis is the key"
        )
    if visible is None and not causal and _looks_causal(xp, maps):
        raise UsageError(
            "attention is 0 wherever a later key meets an earlier query, but all keys are said to be visible; "
            "pass causal=True, or visible= with what the queries could really see"
        )
    width = seen.sum(-1)[..., None]
    sums = (xp.where(seen, maps, 0), seen / xp.where(width > 0, width, 1), seen)
    sums = tuple(xp.asarray(one.sum(-2, dtype=xp.float64), dtype=maps.dtype) for one in sums)
    return MapSums(received=sums[0], expected=sums[1], viewers=sums[2])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Scores of every key and what the rules need beside them. `viewers` and `expected` broadcast against `score`."""

    xp: Any  # numpy or torch
    unit: str
    score: Any  # 0 where not visible
    visible: Any
    count: Any  # visible keys of the row, [..., 1]
    expected: Any
    viewers: Any  # None: not asked for


def _rows(received: Any, expected: Any, *, viewers: Any, unit: str, count_viewers: bool = True) -> _Rows:
    """count_viewers: work out how many queries see each key where it is not given; not for who does not ask."""
    choose("unit", unit, UNITS)
    if unit != "fair_share" and expected is not None and viewers is None:
        raise UsageError(
            f"unit {unit!r} divides by the number of queries that see each key, which does not follow from `expected`; "
            "pass viewers=, or use unit='fair_share'"
        )
    xp = _library(received)
    sums = _floats(xp, received)
    if sums.ndim == 0:
        raise UsageError(f"received is a single number, {received}; expected an array whose last axis is the key")
    uniform = xp.ones_like(sums[..., :1]) if expected is None else _beside(xp, sums, expected, "expected")
    visible = ~xp.isnan(sums) & (uniform > 0)
    count = visible.sum(-1)[..., None]
    seen_by: Any = None
    if viewers is None and (count_viewers or unit != "fair_share"):
        queries = xp.where(visible, uniform, 0).sum(-1)[..., None]
        seen_by = xp.round(xp.minimum(xp.where(visible, uniform, 0) * count, queries))
    elif viewers is not None:
        seen_by = _beside(xp, sums, viewers, "viewers")
    by = uniform if unit == "fair_share" else seen_by
    score = sums / xp.where(by > 0, by, 1)
    score = xp.where(visible & (by > 0), score * 100 if unit == "percent" else score, 0)
    return _Rows(xp=xp, unit=unit, score=score, visible=visible, count=count, expected=uniform, viewers=seen_by)


def _excess(rows: _Rows) -> Any:
    """(score - mean of all) x n / (n - 1) = score - mean of the others; equal scores give exactly 0 this way."""
    xp, score = rows.xp, rows.score
    total = score.sum(-1, dtype=xp.float64)[..., None]
    if not bool(xp.isfinite(total).all()):
        raise UsageError("received holds infinite values; expected column sums of attention, NaN where there is no key")
    count = xp.where(rows.count > 1, rows.count, 2)
    mean = xp.asarray(total / count, dtype=score.dtype)
    stretch = xp.asarray(count / (count - 1), dtype=score.dtype)
    return xp.where(rows.visible & (rows.count > 1), (score - mean) * stretch, float("nan"))


def _refuse_shares(rows: _Rows) -> None:
    """Sums over queries average one fair share. Far less: a map, or means, were passed in their place."""
    average = float(rows.score.sum() / max(1, int(rows.visible.sum())))
    if average < LEAST_AVERAGE:
        raise UsageError(
            f"received averages {average:.2g} of what uniform attention gives; expected column sums over all queries, "
            "which average 1: make them with received_of_map(attention), or multiply means by the number of queries"
        )


def _largest_score(rows: _Rows, eligible: Any) -> float:
    if rows.unit != "fair_share":
        return 1.0 if rows.unit == "mean" else 100.0
    most = rows.xp.where(eligible, rows.viewers, 0) / rows.xp.where(eligible, rows.expected, 1)
    return float(most.max())


def _eligible(rows: _Rows, candidates: Any, min_viewers: int) -> Any:
    """Candidates that enough queries see. If there are candidates and none is left, no answer could be meant."""
    eligible = candidates & (rows.viewers >= min_viewers)
    if min_viewers <= 1 or bool(eligible.any()) or not bool(candidates.any()):
        return eligible
    most = float(rows.xp.where(candidates, rows.viewers, 0).max())
    raise UsageError(
        f"no key is seen by {min_viewers} queries or more, so none could be a sink; "
        f"lower min_viewers to {most:g}, which is what the most visible key has, or less"
    )


def _visible(xp: Any, maps: Any, visible: Any, causal: bool) -> Any:
    queries, keys = maps.shape[-2:]
    if causal and queries > keys:
        raise UsageError(f"causal=True with {queries} queries and {keys} keys; expected no more queries than keys")
    seen = _beside(xp, maps, np.tri(queries, keys, keys - queries if causal else keys, dtype=bool), "causal")
    if visible is None:
        return seen
    allowed = _beside(xp, maps, visible, "visible")
    if allowed.dtype != xp.asarray(True).dtype:
        raise UsageError(f"visible holds {allowed.dtype}; expected bool, True where the query may see the key")
    return seen & allowed


def _looks_causal(xp: Any, maps: Any) -> bool:
    queries, keys = maps.shape[-2:]
    return 1 < queries <= keys and not bool(xp.triu(maps, keys - queries + 1).any())


def _library(values: Any) -> Any:
    """The module that computes on `values`: torch for its tensors, which are loaded then, else numpy."""
    if hasattr(values, "detach"):
        import torch

        return torch
    return np


def _floats(xp: Any, values: Any) -> Any:
    """An array of float32 or float64; half precision becomes float32, whole numbers float64."""
    array = values.detach() if hasattr(values, "detach") else np.asarray(values)
    if array.dtype in (xp.float32, xp.float64):
        return array
    return xp.asarray(array, dtype=xp.float32 if array.dtype.itemsize == 2 else xp.float64)


def _beside(xp: Any, received: Any, values: Any, name: str) -> Any:
    """`values` as an array of the same library, on the same device, that broadcasts against `received`."""
    if xp is np:
        array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    else:
        array = xp.asarray(values, device=received.device).detach()
    whole, part = tuple(received.shape), tuple(array.shape)
    try:
        fits = np.broadcast_shapes(whole, part) == whole
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(f"{name} has shape {part}, which does not broadcast against {whole}")
    return array if array.dtype == xp.asarray(True).dtype else _floats(xp, array)
