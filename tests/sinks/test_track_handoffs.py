"""Which stays hand over: the matching against the assignment solver, and the null."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from sinklens.sinks import handoffs
from sinklens.sinks.chains import build_chains
from sinklens.sinks.handoffs import link
from sinklens.sinks.matching import match
from sinklens.sinks.stays import Stays

STEPS = 128


def stays_of(spans: list[tuple[int, int, int]], head: int = 0, mass: float = 8.0) -> Stays:
    """From (position, first, last)."""
    position, first, last = np.array(sorted(spans, key=lambda one: (one[1], one[0]))).T
    return Stays(
        head=np.full(len(position), head),
        position=position,
        first=first,
        last=last,
        gain=np.where(first > 0, mass, 0.0),
        loss=np.where(last < STEPS - 1, mass, 0.0),
    )


def together(parts: list[Stays]) -> Stays:
    return Stays(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def independent(rng: np.random.Generator, head: int, *, count: int) -> Stays:
    first = rng.integers(0, STEPS, count)
    last = np.minimum(first + rng.geometric(0.15, count) - 1, STEPS - 1)
    order = np.argsort(first, kind="stable")
    mass = rng.uniform(3, 12, count)
    return Stays(
        head=np.full(count, head),
        position=rng.permutation(192)[:count],
        first=first[order],
        last=last[order],
        gain=np.where(first[order] > 0, mass, 0.0),
        loss=np.where(last[order] < STEPS - 1, mass, 0.0),
    )


def seeds(heads: int) -> list[tuple[int, ...]]:
    return [(0, 0, 0, head) for head in range(heads)]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 7), st.floats(0.1, 1.0), st.integers(0, 2**32 - 1))
def test_matching_is_as_heavy_as_the_assignment(
    problems: int, rows: int, columns: int, density: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.0, 1.0, 2.0, 2.5, 4.0], size=(problems, rows, columns)) * rng.choice([1.0, 1.1])
    problem, row, column = np.nonzero(rng.random(weights.shape) < density)
    weight = weights[problem, row, column]
    chosen = match(problem * rows + row, problem * columns + column, weight, problems=problem)
    assert not chosen[weight <= 0].any()
    for ends in (problem * rows + row, problem * columns + column):
        assert len(set(ends[chosen].tolist())) == chosen.sum()
    for one in range(problems):
        table = np.zeros((rows, columns))
        own = problem == one
        table[row[own], column[own]] = weight[own]
        best = table[linear_sum_assignment(table, maximize=True)].sum()
        assert weight[own & chosen].sum() == pytest.approx(best)


def test_a_steady_drift_is_accepted_though_no_single_pair_could_be() -> None:
    """Every pair of a drift transfers the same mass, and shifted stays that meet by chance transfer it too."""
    drift = stays_of([(20 + at, 10 + 4 * at, 13 + 4 * at) for at in range(25)])
    linked, _ = link(drift, steps=STEPS, seeds=seeds(1))
    assert linked.successor.tolist() == [*range(1, 25), -1]
    rng = np.random.default_rng(0)
    by_chance = []
    for _ in range(99):
        offset = rng.integers(0, STEPS, 25)
        for i, death in enumerate((drift.last + 1 + offset) % STEPS):
            met = (drift.first + offset) % STEPS == death
            by_chance += [min(drift.loss[i], drift.gain[j]) for j in np.flatnonzero(met) if j != i]
    assert np.quantile(by_chance, 0.95) == 8.0  # what every pair of the drift has: none exceeds it


@pytest.mark.parametrize("count", [4, 10, 20])
def test_independent_stays_are_joined_in_one_head_of_twenty(count: int) -> None:
    rng = np.random.default_rng(count)
    heads = 400
    stays = together([independent(rng, head, count=count) for head in range(heads)])
    linked, surrogates = link(stays, steps=STEPS, seeds=seeds(heads), shifted=2)
    share = len(np.unique(stays.head[linked.successor >= 0])) / heads
    assert share <= 0.085  # 5 % and three standard errors
    for one in surrogates:
        assert len(np.unique(one.stays.head[one.successor >= 0])) / heads <= 0.085
    if count > 4:
        assert share > 0.01  # the test has its size: it does not merely refuse


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_accepted_pairs_are_hand_offs(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans = [(20 + 3 * at, 6 * at + 1 + int(rng.integers(-1, 2)), 6 * at + 6) for at in range(1, 15)]
    stays = together([stays_of(spans), independent(rng, 1, count=count)])
    linked, surrogates = link(stays, steps=STEPS, seeds=seeds(2), shifted=3)
    for one in (linked, *surrogates):
        dying = np.flatnonzero(one.successor >= 0)
        born = one.successor[dying]
        own = one.stays
        assert len(set(born.tolist())) == len(born)
        assert (own.head[dying] == own.head[born]).all()
        assert (own.position[dying] != own.position[born]).all()
        assert (np.abs(own.first[born] - own.last[dying] - 1) <= 1).all()
        assert (own.last[born] > own.last[dying]).all()
        chains = build_chains(one)
        steps = [chains.step[slice(*chains.starts[at : at + 2])] for at in range(len(chains))]
        assert all((np.diff(line) == 1).all() for line in steps)  # one position in every step
        assert [line[0] for line in steps] == chains.first.tolist()
        assert [line[-1] for line in steps] == chains.last.tolist()
        assert sorted(chains.stay.tolist()) == list(range(len(own)))


def test_shifted_stays_keep_their_length() -> None:
    stays = independent(np.random.default_rng(1), 0, count=30)
    _, (one,) = link(stays, steps=STEPS, seeds=seeds(1), shifted=1)
    length = one.stays.last - one.stays.first + 1
    assert length.sum() == (stays.last - stays.first + 1).sum()
    cut = len(one.stays) - len(stays)
    assert cut > 0  # some run over the end and are cut there
    assert (one.stays.first == 0).sum() >= cut
    assert (one.stays.last == STEPS - 1).sum() >= cut


def test_more_draws_than_needed_change_no_clear_case() -> None:
    drift = stays_of([(20 + at, 10 + 4 * at, 13 + 4 * at) for at in range(25)])
    for draws in (20, 99, 199):
        assert (link(drift, steps=STEPS, seeds=seeds(1), draws=draws)[0].successor >= 0).sum() == 24


def test_stopping_early_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that cannot pass any more get no further draws: the same hand-offs as with all draws made."""
    rng = np.random.default_rng(5)
    heads = 60
    stays = together([independent(rng, head, count=3 + head % 12) for head in range(heads)])
    early, _ = link(stays, steps=STEPS, seeds=seeds(heads))
    monkeypatch.setattr(handoffs, "FIRST", 99)
    whole, _ = link(stays, steps=STEPS, seeds=seeds(heads))
    np.testing.assert_array_equal(early.successor, whole.successor)
    assert (whole.successor >= 0).any()


def test_what_begins_as_a_drift_ends_is_not_its_successor() -> None:
    """The drift passes as near pairs; the rest of the head, tested without it, meets no more often than by chance."""
    drift = [(20 + at, 10 + 4 * at, 13 + 4 * at) for at in range(20)]
    others = [(150 - 3 * at, 15 + 9 * at, 19 + 9 * at) for at in range(11)]
    stays = stays_of([*drift, *others, (180, 90, 101)])
    linked, _ = link(stays, steps=STEPS, seeds=seeds(1))
    before = stays.position[np.flatnonzero(linked.successor >= 0)]
    assert sorted(before.tolist()) == list(range(20, 39))
