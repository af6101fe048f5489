"""Detection against an oracle of plain loops, and on attention whose sinks are known: none in uniform attention."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.detect import detect_sinks, excess, received_of_map, top_sinks

# --- the oracle: float64, one number at a time ------------------------------------------------------------------------


def oracle_excess(received: Any, expected: Any, *, viewers: Any, unit: str) -> list[float]:
    """Excess of every key of one row; NaN where it is not there or alone."""
    scores: dict[int, float] = {}
    for j, value in enumerate(received):
        if not math.isnan(value) and expected[j] > 0:
            by = expected[j] if unit == "fair_share" else viewers[j]
            scores[j] = float(value) / float(by) * (100.0 if unit == "percent" else 1.0)
    result = [math.nan] * len(received)
    for j, score in scores.items():
        others = [other for k, other in scores.items() if k != j]
        if others:
            result[j] = score - math.fsum(others) / len(others)
    return result


def oracle_expected(visible: Any) -> tuple[list[float], list[int]]:
    """What uniform attention gives each key under a mask [query, key], and how many queries see it."""
    queries, keys = visible.shape
    expected = [0.0] * keys
    viewers = [0] * keys
    for i in range(queries):
        seen = [j for j in range(keys) if visible[i, j]]
        for j in seen:
            expected[j] += 1.0 / len(seen)
            viewers[j] += 1
    return expected, viewers


# --- masks and maps ---------------------------------------------------------------------------------------------------


def mask_of(kind: str, queries: int, keys: int, *, size: int) -> np.ndarray:
    i, j = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)[None]
    if kind in {"bidirectional", "rectangular"}:
        return np.ones((queries, keys), bool)
    if kind == "causal":
        return np.asarray(j <= i)
    if kind == "window":
        return np.asarray((j <= i) & (j > i - size))
    if kind == "two-sided window":
        return np.asarray(abs(i - j) < size)
    padded = min(size, keys - 2)
    return np.asarray((j >= padded) & (i >= padded) & np.ones((queries, keys), bool))


KINDS = ("bidirectional", "rectangular", "causal", "window", "two-sided window", "padded")


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    kind = draw(st.sampled_from(KINDS))
    keys = draw(st.integers(3, 70))
    square = kind not in ("rectangular", "causal")
    queries = keys if square else draw(st.integers(1, keys if kind == "causal" else 90))
    return mask_of(kind, queries, keys, size=draw(st.integers(1, 12)))


def softmax_under(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = np.where(mask, np.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0), np.float32)


@settings(max_examples=150, deadline=None)
@given(masks(), st.sampled_from([1e-3, 0.1, 1.0]), st.sampled_from([1, 8]), st.booleans())
def test_uniform_attention_has_no_sinks_under_any_mask(
    mask: np.ndarray, epsilon: float, min_viewers: int, give_viewers: bool
) -> None:
    maps = softmax_under(np.zeros(mask.shape), mask)
    sums = received_of_map(maps, visible=mask)
    expected, viewers = oracle_expected(mask)
    np.testing.assert_allclose(sums.expected, expected, rtol=1e-6)
    np.testing.assert_array_equal(sums.viewers, viewers)
    most = max(viewers) if give_viewers else min(viewers)
    given_viewers = sums.viewers if give_viewers else None
    least = min(min_viewers, most)
    if sum(one > 0 for one in expected) < 2 or not _reachable(sums, mask, given_viewers, epsilon=epsilon, least=least):
        return
    assert not detect_sinks(sums.received, sums.expected, epsilon, min_viewers=least, viewers=given_viewers).any()
    share = excess(sums.received, sums.expected)
    assert np.nanmax(np.abs(share)) < 1e-4


def _reachable(sums: Any, mask: np.ndarray, viewers: Any, *, epsilon: float, least: int) -> bool:
    """A window of one leaves no choice: every key gets exactly its share, and no excess can be had."""
    if viewers is None:
        return True
    eligible = (sums.viewers >= least) & (sums.expected > 0)
    return bool(eligible.any()) and bool((sums.viewers[eligible] / sums.expected[eligible]).max() > epsilon)


@pytest.mark.parametrize("kind", KINDS)
def test_one_key_that_takes_all_is_the_only_sink(kind: str) -> None:
    mask = mask_of(kind, 40, 40, size=16)
    logits = np.zeros((40, 40))
    logits[:, 20] = 30.0
    sums = received_of_map(softmax_under(logits, mask), visible=mask)
    sinks = detect_sinks(sums.received, sums.expected, viewers=sums.viewers)
    assert np.flatnonzero(sinks).tolist() == [20]


# --- the rule ---------------------------------------------------------------------------------------------------------


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """received, expected, viewers of random attention; some keys hidden, some NaN."""
    mask = draw(masks())
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads = draw(st.integers(1, 3))
    logits = generator.normal(scale=draw(st.sampled_from([0.1, 2.0, 8.0])), size=(heads, *mask.shape))
    sums = received_of_map(softmax_under(logits, mask), visible=mask)
    received = sums.received.copy()
    received[generator.random(received.shape) < draw(st.sampled_from([0.0, 0.2]))] = np.nan
    return received, sums.expected[None], sums.viewers[None]


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from(["fair_share", "mean", "percent"]), st.sampled_from([0.0, 0.05, 0.5, 2.0]))
def test_agrees_with_the_oracle(problem: tuple[np.ndarray, np.ndarray, np.ndarray], unit: str, epsilon: float) -> None:
    received, expected, viewers = problem
    got = excess(received, expected, unit=unit, viewers=viewers)
    assert got.dtype == np.float32 and got.shape == received.shape
    truth = np.array([oracle_excess(row, expected[0], viewers=viewers[0], unit=unit) for row in received])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(truth))
    by = {"fair_share": expected, "mean": viewers, "percent": viewers / 100}[unit]
    scale = float(np.nan_to_num(received / np.where(by > 0, by, 1)).max(initial=1.0))  # scores are float32
    np.testing.assert_allclose(got, truth, rtol=1e-6, atol=1e-6 * scale, equal_nan=True)
    try:
        sinks = detect_sinks(received, expected, epsilon, unit, 4, viewers=viewers)
    except UsageError as error:
        assert "cannot be exceeded" in str(error) or "lower min_viewers" in str(error)
        return
    decided = ~(np.abs(truth - epsilon) < 1e-5 * scale)  # not within rounding of the threshold
    wanted = (truth > epsilon) & (viewers >= 4)
    np.testing.assert_array_equal(sinks[decided], wanted[decided])


@settings(max_examples=100, deadline=None)
@given(rows(), st.sampled_from(["fair_share", "mean", "percent"]), st.integers(0, 5), st.booleans())
def test_torch_and_numpy_say_the_same(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray], unit: str, k: int, exact: bool
) -> None:
    received, expected, viewers = problem
    tensors = [torch.tensor(one) for one in problem]
    known: dict[str, Any] = {"viewers": viewers} if exact or unit != "fair_share" else {}
    in_torch = {name: torch.tensor(value) for name, value in known.items()}
    left, right = excess(received, expected, unit=unit, **known), excess(*tensors[:2], unit=unit, **in_torch)
    assert right.dtype == torch.float32 and right.device == tensors[0].device
    np.testing.assert_allclose(left, right.numpy(), rtol=1e-5, atol=1e-5, equal_nan=True)
    for call in (
        lambda sums, uniform, more: detect_sinks(sums, uniform, 0.3, unit, 2, **more),
        lambda sums, uniform, more: top_sinks(sums, uniform, k=k, min_viewers=2, **more),
    ):
        try:
            mine = call(received, expected, known)
        except UsageError as error:
            with pytest.raises(UsageError) as other:
                call(*tensors[:2], in_torch)
            assert str(other.value) == str(error)
            continue
        yours = call(*tensors[:2], in_torch)
        assert mine.dtype == bool and yours.dtype == torch.bool
        np.testing.assert_array_equal(mine, yours.numpy())


def test_known_answer() -> None:
    """Eight keys, one with 4.5 of 8: the others have .5, it exceeds them by 4."""
    received = np.array([4.5] + [0.5] * 7, np.float32)
    np.testing.assert_allclose(excess(received), [4.0] + [0.5 - (4.5 + 6 * 0.5) / 7] * 7, rtol=1e-6)
    assert detect_sinks(received, epsilon=3.9).tolist() == [True] + [False] * 7
    assert not detect_sinks(received, epsilon=4.0).any()  # more than, not at least
    np.testing.assert_allclose(excess(received, unit="mean"), excess(received) / 8, rtol=1e-6)
    np.testing.assert_allclose(excess(received, unit="percent"), excess(received) * 12.5, rtol=1e-6)


def test_a_list_is_float64_and_half_precision_is_float32() -> None:
    assert excess([2, 1, 0]).dtype == np.float64
    assert excess(np.ones(3, np.float16)).dtype == np.float32
    assert excess(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_tensor_that_needs_gradients_is_only_read() -> None:
    sums = torch.full((9,), 0.5, requires_grad=True)
    assert not detect_sinks(sums).any() and not excess(sums).requires_grad


def test_numpy_and_torch_may_be_mixed() -> None:
    received, ones = np.array([4.5] + [0.5] * 7), np.ones(8)
    assert detect_sinks(received, torch.ones(8)).tolist() == detect_sinks(torch.tensor(received), ones).tolist()


def test_padding_and_keys_to_come_are_not_among_the_others() -> None:
    """NaN, or expected 0: the same as if the key were cut away."""
    alone = excess(np.array([5.0, 1.0, 0.0]), np.ones(3))
    with_nan = excess(np.array([5.0, 1.0, np.nan, 0.0]), np.ones(4))
    with_zero = excess(np.array([5.0, 1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0, 1.0]))
    for got in (with_nan, with_zero):
        assert np.isnan(got[2])
        np.testing.assert_allclose(got[[0, 1, 3]], alone)


def test_keys_with_few_viewers_are_no_sinks_but_count_among_the_others() -> None:
    received = np.array([9.0, 9.0] + [0.0] * 16)
    viewers = np.array([7.0, 8.0] + [18.0] * 16)
    assert np.flatnonzero(detect_sinks(received, np.ones(18), viewers=viewers)).tolist() == [1]
    assert np.flatnonzero(detect_sinks(received, np.ones(18), min_viewers=7, viewers=viewers)).tolist() == [0, 1]
    np.testing.assert_allclose(excess(received, np.ones(18), viewers=viewers)[1], 9.0 - 9.0 / 17)


def test_viewers_follow_from_expected_at_the_end_of_causal_rows() -> None:
    """The last 7 keys of a causal row are seen by fewer than 8 queries, and are left out without being told."""
    mask = np.tril(np.ones((64, 64), bool))
    expected, _ = oracle_expected(mask)
    received = np.array(expected) * 0.1
    received[-7:] = np.array(expected)[-7:] * 50  # 50 fair shares, from very few queries
    assert not detect_sinks(received, np.array(expected))[-7:].any()
    assert detect_sinks(received, np.array(expected), min_viewers=1)[-7:].all()


def test_dividing_by_viewers_alone_would_call_uniform_causal_attention_a_sink() -> None:
    """Why the fair share: in units of S x mean, UNIFORM causal attention would have a sink, its first key."""
    found = {}
    for size in (64, 1024):
        mask = np.tril(np.ones((size, size), bool))
        sums = received_of_map(softmax_under(np.zeros((size, size)), mask), causal=True)
        by_viewers = excess(sums.received, sums.expected, unit="mean", viewers=sums.viewers) * size
        found[size] = float(by_viewers.max())
        assert by_viewers.argmax() == 0
        harmonic = math.fsum(1 / i for i in range(1, size + 1))  # the first key's S x mean, by hand
        others = math.fsum(
            size / (size - j) * math.fsum(1 / i for i in range(j + 1, size + 1)) for j in range(1, size)
        ) / (size - 1)
        assert found[size] == pytest.approx(harmonic - others, rel=1e-4)
        assert not detect_sinks(sums.received, sums.expected, 1e-3, viewers=sums.viewers).any()
    assert found[64] == pytest.approx(3.16, abs=0.01)
    assert found[1024] == pytest.approx(5.87, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(8, 80))
def test_excess_of_square_attention_is_the_share_above_one_stretched(seed: int, keys: int) -> None:
    """Shares sum to S, so that the others' mean follows from the key's own share."""
    maps = np.random.default_rng(seed).dirichlet(np.full(keys, 0.2), size=keys)
    sums = received_of_map(maps, visible=np.ones((keys, keys), bool))
    np.testing.assert_allclose(excess(sums.received), (sums.received - 1) * keys / (keys - 1), atol=1e-9 * keys)
    fewer = [int(detect_sinks(sums.received, epsilon=epsilon).sum()) for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert fewer == sorted(fewer, reverse=True)


# --- what cannot be meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unit", "epsilon", "largest"), [("mean", 3, "1"), ("percent", 100, "100")])
def test_an_epsilon_out_of_reach_names_the_largest(unit: str, epsilon: float, largest: str) -> None:
    message = (
        rf"epsilon {epsilon} cannot be exceeded in unit '{unit}': at most {largest} is possible.*unit='fair_share'"
    )
    with pytest.raises(UsageError, match=message):
        detect_sinks(np.ones(64), epsilon=epsilon, unit=unit)


def test_the_largest_excess_of_square_attention_is_the_number_of_keys() -> None:
    """Just below it, a key that takes everything is found; at it, nothing could be."""
    received = np.zeros(16)
    received[3] = 16.0
    assert np.flatnonzero(detect_sinks(received, epsilon=15.99)).tolist() == [3]
    with pytest.raises(UsageError, match=r"epsilon 16 cannot be exceeded in unit 'fair_share': at most 16 .*a smaller"):
        detect_sinks(received, epsilon=16)


def test_the_longest_row_decides_what_can_be_reached() -> None:
    received = np.full((2, 40), 1.0)
    received[0, 10:] = np.nan
    assert not detect_sinks(received, epsilon=20).any()
    with pytest.raises(UsageError, match="at most 10 is possible"):
        detect_sinks(received[:1], epsilon=20)


@pytest.mark.parametrize("causal", [True, False])
def test_the_bound_is_reached_by_a_key_that_takes_everything(causal: bool) -> None:
    mask = np.tril(np.ones((32, 32), bool)) if causal else np.ones((32, 32), bool)
    taken = np.zeros((32, 32))
    taken[:, 0] = 1.0
    sums = received_of_map(taken, visible=mask)
    largest = float(sums.viewers[0] / sums.expected[0])
    assert detect_sinks(sums.received, sums.expected, largest - 1e-3, viewers=sums.viewers)[0]
    assert excess(sums.received, sums.expected)[0] == pytest.approx(largest)


def test_too_few_viewers_everywhere_is_an_error_with_a_way_out() -> None:
    last_row = np.array([0.7, 0.1, 0.1, 0.1])
    uniform, one = np.full(4, 0.25), np.ones(4)
    with pytest.raises(UsageError, match=r"no key is seen by 8 queries or more.*lower min_viewers to 1"):
        detect_sinks(last_row, uniform, 1.0, viewers=one)
    with pytest.raises(UsageError, match="lower min_viewers to 1"):
        top_sinks(last_row, uniform, k=1)
    assert detect_sinks(last_row, uniform, 1.0, min_viewers=1).tolist() == [True, False, False, False]
    assert top_sinks(last_row, uniform, k=1, min_viewers=1).tolist() == [True, False, False, False]


def test_where_nothing_is_there_nothing_is_a_sink() -> None:
    assert not detect_sinks(np.full((2, 9), np.nan)).any()
    assert not detect_sinks(np.ones((2, 9)), np.zeros(9)).any()
    assert detect_sinks(np.empty((0, 9))).shape == (0, 9)
    assert not top_sinks(np.full((2, 9), np.nan), k=3).any()
    lonely = np.array([1.0, np.nan])
    assert np.isnan(excess(lonely)).all() and not detect_sinks(lonely, min_viewers=1).any()


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf, "3"])
def test_an_epsilon_that_is_no_threshold_is_refused(epsilon: Any) -> None:
    with pytest.raises(UsageError, match=r"epsilon is (-1.0|nan|inf|'3'); expected a finite number, 0 or more"):
        detect_sinks(np.ones(9), epsilon=epsilon)


def test_arguments_that_do_not_fit_are_refused() -> None:
    ones = np.ones((2, 9))
    with pytest.raises(UsageError, match="unknown unit 'sum'; expected one of 'fair_share', 'mean', 'percent'"):
        detect_sinks(ones, unit="sum")
    with pytest.raises(UsageError, match=r"expected has shape \(8,\), which does not broadcast against \(2, 9\)"):
        detect_sinks(ones, np.ones(8))
    with pytest.raises(UsageError, match=r"viewers has shape \(3, 2, 9\), which does not broadcast"):
        excess(ones, np.ones(9), viewers=np.ones((3, 2, 9)))
    with pytest.raises(UsageError, match=r"unit 'percent' divides by the number of queries.*pass viewers="):
        excess(ones, np.ones(9), unit="percent")
    with pytest.raises(UsageError, match=r"received is a single number, 3.0; expected an array"):
        excess(3.0)
    with pytest.raises(UsageError, match="received holds infinite values"):
        excess([math.inf, 1.0])
    for k in (-1, 1.5):
        with pytest.raises(UsageError, match=rf"k is {k}; expected a whole number of keys"):
            top_sinks(ones, k=k)


# --- top k ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(0, 32), st.booleans())
def test_top_sinks_are_those_of_a_stable_sort(seed: int, keys: int, k: int, in_torch: bool) -> None:
    generator = np.random.default_rng(seed)
    received = generator.integers(0, 4, (3, 2, keys)).astype(np.float64)  # many ties
    received[generator.random(received.shape) < 0.2] = np.nan
    viewers = generator.integers(1, 4, (3, 1, keys)).astype(np.float64)
    viewers[..., 0] = 3.0
    received[..., 0] = 1.0
    uniform = np.full(keys, 0.5)
    as_given = torch.tensor(received) if in_torch else received
    got = np.asarray(top_sinks(as_given, uniform, k=k, min_viewers=2, viewers=viewers))
    for step, head in product(range(3), range(2)):
        row = received[step, head]
        eligible = [j for j in range(keys) if not math.isnan(row[j]) and viewers[step, 0, j] >= 2]
        wanted = sorted(eligible, key=lambda j: (-row[j], j))[:k]
        assert np.flatnonzero(got[step, head]).tolist() == sorted(wanted)


# --- maps -------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(masks(), st.integers(0, 2**32 - 1), st.booleans())
def test_sums_of_maps_agree_with_loops(mask: np.ndarray, seed: int, in_torch: bool) -> None:
    maps = softmax_under(np.random.default_rng(seed).normal(size=(2, *mask.shape)), mask)
    sums = received_of_map(torch.tensor(maps) if in_torch else maps, visible=mask)
    expected, viewers = oracle_expected(mask)
    np.testing.assert_allclose(np.asarray(sums.received), maps.astype(np.float64).sum(1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.asarray(sums.expected), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(sums.viewers), viewers)


def test_causal_queries_are_the_last_keys_and_padding_adds_to_it() -> None:
    np.testing.assert_allclose(received_of_map(np.eye(2, 4, 2), causal=True).expected, [7 / 12, 7 / 12, 7 / 12, 1 / 4])
    not_first = np.array([False, True, True])
    sums = received_of_map(np.eye(3), visible=not_first, causal=True)
    np.testing.assert_allclose(sums.expected, [0, 1.5, 0.5])
    np.testing.assert_array_equal(sums.viewers, [0, 2, 1])
    np.testing.assert_array_equal(sums.received, [0, 1, 1])


def test_queries_that_see_nothing_may_hold_anything() -> None:
    maps = np.array([[np.nan, np.nan], [0.5, 0.5]])
    sums = received_of_map(maps, visible=np.array([[False, False], [True, True]]))
    np.testing.assert_array_equal(sums.received, [0.5, 0.5])
    np.testing.assert_array_equal(sums.viewers, [1, 1])
    with pytest.raises(UsageError, match="attention holds NaN where a query may see a key"):
        received_of_map(maps)


def test_maps_that_contradict_what_is_said_are_refused() -> None:
    causal = np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]
    with pytest.raises(UsageError, match="all keys are said to be visible; pass causal=True, or visible="):
        received_of_map(causal)
    with pytest.raises(UsageError, match="all keys are said to be visible"):
        received_of_map(torch.tensor(causal[3:]))
    everything = received_of_map(causal, visible=np.ones((5, 5), bool))  # said outright: taken at its word
    np.testing.assert_allclose(everything.expected, 1.0)
    with pytest.raises(UsageError, match="attention gives weight to keys that are said to be hidden"):
        received_of_map(np.full((5, 5), 0.2), causal=True)
    with pytest.raises(UsageError, match="causal=True with 3 queries and 2 keys"):
        received_of_map(np.full((3, 2), 0.5), causal=True)
    with pytest.raises(UsageError, match="visible holds float64; expected bool"):
        received_of_map(causal, visible=np.zeros((5, 5)))
    with pytest.raises(UsageError, match=r"visible has shape \(4, 4\), which does not broadcast against \(5, 5\)"):
        received_of_map(causal, visible=np.ones((4, 4), bool))
    with pytest.raises(UsageError, match=r"attention has shape \(5,\); expected \[..., query, key\]"):
        received_of_map(np.ones(5))


def test_maps_or_means_in_the_place_of_sums_are_refused() -> None:
    sums = np.random.default_rng(0).dirichlet(np.ones(48), size=48)
    for wrong in (sums, sums.mean(0)):
        with pytest.raises(UsageError, match="expected column sums over all queries, which average 1"):
            detect_sinks(wrong)
    assert detect_sinks(sums.sum(0)).shape == (48,)
