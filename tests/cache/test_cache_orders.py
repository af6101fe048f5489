"""Every order against a by-hand oracle; what is kept under a count; draws that depend on their place alone."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cache.reference import order_by_hand
from sinklens.cache.budget import keep
from sinklens.cache.entries import Entries, QueryStatistics
from sinklens.cache.scores import score
from sinklens.cache.settings import ORDERS
from sinklens.errors import UsageError


def made_up(seed: int = 0, *, rows: int = 2, kv_heads: int = 2, held: int = 11, padding: int = 3) -> Entries:
    """Random entries whose positions have gaps; the first `padding` of row 1 are padding."""
    draws = torch.Generator().manual_seed(seed)
    dim, heads = 6, 2 * kv_heads
    positions = torch.stack(
        [torch.randperm(40, generator=draws)[:held].sort().values for _ in range(rows * kv_heads)]
    ).view(rows, kv_heads, held)
    real = torch.ones(rows, kv_heads, held, dtype=torch.bool)
    if rows > 1:
        real[1, :, :padding] = False
    spread = torch.randn(rows, heads, dim, dim, generator=draws)
    return Entries(
        layer=2,
        keys=torch.randn(rows, kv_heads, held, dim, generator=draws),
        values=torch.randn(rows, kv_heads, held, dim, generator=draws),
        positions=positions,
        real=real,
        received=torch.rand(rows, kv_heads, held, generator=draws),
        marked=torch.rand(rows, kv_heads, held, generator=draws) < 0.3,
        queries=QueryStatistics(
            mean=torch.randn(rows, heads, dim, generator=draws), covariance=spread @ spread.mT, scale=dim**-0.5
        ),
    )


def best(scores: list[float], count: int) -> list[int]:
    real = [j for j, number in enumerate(scores) if not math.isnan(number)]
    return sorted(sorted(real, key=lambda j: -scores[j])[:count])  # sorted() is stable: ties to the lower position


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "random"])
@pytest.mark.parametrize("count", [1, 3, 6, 8])
def test_every_order_keeps_what_the_oracle_keeps(order: str, count: int) -> None:
    for seed in range(5):
        entries = made_up(seed)
        scores = score(order, entries)
        assert scores.dtype == torch.float32
        kept = keep(scores, count, positions=entries.positions, real=entries.real)
        for row in range(2):
            for head in range(2):
                assert kept[row, head].tolist() == best(order_by_hand(order, entries, row, head), count), (row, head)


@pytest.mark.parametrize("order", ["low", "high", "keydiff", "value", "key_value", "expected", "received"])
def test_scores_are_those_of_the_oracle(order: str) -> None:
    entries = made_up(7)
    scores = score(order, entries)
    for row in range(2):
        for head in range(2):
            wanted = torch.tensor(order_by_hand(order, entries, row, head))
            there = entries.real[row, head]
            torch.testing.assert_close(scores[row, head][there], wanted[there], rtol=2e-5, atol=1e-6)


def test_norms_are_taken_in_float32() -> None:
    keys = torch.randn(1, 1, 2000, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    where = torch.arange(2000)[None, None]
    entries = Entries(layer=0, keys=keys, values=keys, positions=where, real=where >= 0)
    assert score("low", entries).unique().numel() > 1900
    assert keys.norm(dim=-1).unique().numel() < 200


def test_low_and_high_are_opposites_and_padding_changes_nothing() -> None:
    entries = made_up(3)
    assert torch.equal(score("low", entries), -score("high", entries))
    for order in ORDERS:
        if order in ("expected", "received", "fastgen"):
            continue
        alone = Entries(
            layer=2,
            keys=entries.keys[1:, :, 3:],
            values=entries.values[1:, :, 3:],
            positions=entries.positions[1:, :, 3:] + 100,
            real=entries.real[1:, :, 3:],
        )
        scores = score(order, entries, seed=(4, 5))[1:, :, 3:]
        torch.testing.assert_close(scores, score(order, alone, seed=(5,)), rtol=1e-6, atol=1e-7)


def test_random_draws_depend_on_their_place_alone() -> None:
    entries = made_up(1, padding=0)
    first = score("random", entries, seed=0, event=3)
    assert torch.equal(first, score("random", entries, seed=0, event=3))
    assert not torch.equal(first, score("random", entries, seed=0, event=4))
    assert not torch.equal(first, score("random", entries, seed=1, event=3))
    assert not torch.equal(first[0], first[1])
    assert torch.equal(score("random", entries, seed=0, event=torch.tensor([3, 9]))[0], first[0])
    many = score("random", made_up(2, rows=1, kv_heads=200, held=20), seed=0)
    assert float(many.min()) >= 0 and float(many.max()) < 1
    assert abs(float(many.mean()) - 0.5) < 0.02
    with pytest.raises(UsageError, match="seed has 3 entries, but the batch has 2 rows"):
        score("random", entries, seed=(1, 2, 3))


def test_orders_say_what_they_need() -> None:
    entries = made_up(0)
    bare = Entries(layer=0, keys=entries.keys, values=entries.values, positions=entries.positions, real=entries.real)
    with pytest.raises(UsageError, match="'fastgen' needs to know which entries are special"):
        score("fastgen", bare)
    with pytest.raises(UsageError, match="'received' needs the attention"):
        score("received", bare)
    with pytest.raises(UsageError, match="'expected' needs statistics"):
        score("expected", bare)
    with pytest.raises(UsageError, match="unknown order 'loww'; expected one of 'low', 'high'"):
        score("loww", bare)


@st.composite
def rankings(draw: Any) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    rows, heads, held = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 9))
    size = rows * heads * held
    # Few values, so that there are ties; infinities have their place too.
    numbers = st.sampled_from([-math.inf, -1.0, 0.0, 0.0, 2.0, math.inf])
    scores = torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size))).view(rows, heads, held)
    order = torch.tensor([draw(st.permutations(range(held))) for _ in range(rows * heads)]).view(rows, heads, held)
    real = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(rows, heads, held)
    count = draw(st.integers(0, held + 2))
    first = draw(st.integers(0, count))
    return scores, order, real, count, first, draw(st.integers(0, count - first))


@settings(max_examples=200, deadline=None)
@given(rankings())
def test_keep_is_a_sort_by_class_score_and_position(case: tuple[Tensor, Tensor, Tensor, int, int, int]) -> None:
    scores, positions, real, count, first, last = case
    kept = keep(scores, count, positions=positions, real=real, first=first, last=last)
    rows, heads, held = scores.shape
    assert kept.shape == (rows, heads, min(count, held))
    for row in range(rows):
        for head in range(heads):
            where = [j for j in range(held) if real[row, head, j]]
            where.sort(key=lambda j: int(positions[row, head, j]))
            protected = set(where[:first]) | set(where[len(where) - last :] if last else [])

            def key(j: int, row: int = row, head: int = head, protected: set[int] = protected) -> tuple[Any, ...]:
                if not real[row, head, j]:
                    return (2, 0.0, 0)
                if j in protected:
                    return (0, 0.0, 0)
                return (1, -float(scores[row, head, j]), int(positions[row, head, j]))

            classes = sorted(range(held), key=key)
            got = kept[row, head].tolist()
            assert got == sorted(set(got))
            assert sorted(map(key, got)) == [key(j) for j in classes[: len(got)]]


def test_ties_go_to_the_lower_position() -> None:
    where = torch.tensor([[[3, 1, 2, 0]]])
    assert keep(torch.zeros(1, 1, 4), 2, positions=where, real=where >= 0).tolist() == [[[1, 3]]]


def test_keep_refuses() -> None:
    where = torch.arange(3)[None, None]
    with pytest.raises(UsageError, match="count is -1"):
        keep(torch.zeros(1, 1, 3), -1, positions=where, real=where >= 0)
    with pytest.raises(UsageError, match="first=2 and last=1 protect more entries than the 2"):
        keep(torch.zeros(1, 1, 3), 2, positions=where, real=where >= 0, first=2, last=1)
    with pytest.raises(UsageError, match="hold NaN"):
        keep(torch.full((1, 1, 3), torch.nan), 2, positions=where, real=where >= 0)
