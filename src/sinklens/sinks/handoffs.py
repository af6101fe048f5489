"""Hand-offs: one position loses what another gains, in the same step or one step off.

A pair is a death at p and a birth at another position q whose first step is the step after p's last, or one step to
either side of it. It transfers min(loss, gain) fair shares. One step off it counts half, because it is weaker evidence:
there are two such steps for each that fits exactly. Deaths and births of a head are matched one to one so that the
total is greatest. Scores waver, so masses that differ little are no reason for a wide hop: in the matching, and only
there, a hop of d tokens is lighter by 0.25 d / (d + 8). Ties go to the lower position.

Deaths and births also meet by chance. The null: every stay of the head is shifted circularly in time by an offset of
its own, and the matching is made again. The pairs of a head are hand-offs if its total exceeds the 95th percentile of
the null totals: p = (1 + null totals as great) / (1 + draws) <= 0.05. The test is on the head's total and not on single
pairs: in a steady drift every pair transfers the same, and shifted stays that meet by chance transfer it too. In a head
that passes, its near pairs (at most 8 tokens apart) and its far ones are then tested the same way, each against their
own null totals. Where only one class passes, the rest is matched and tested once more without the events that this
class explains: chance pairs drop out, and a jump beside a drift is found.

Events in the first and after the last stored step are not seen, hence no events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.sinks.matching import match
from sinklens.sinks.stays import Stays

LEVEL = 0.05
DRAWS = 99
FIRST = 20  # draws of every head; then only heads that can still pass get the others
OFF_BY_ONE = 0.5  # what a pair one step off counts
NEAR = 8  # tokens
DISTANCE = 0.25  # by which the widest hop is lighter in the matching, not in the total


@dataclass(frozen=True, kw_only=True, eq=False)
class Linked:
    """Stays and the accepted hand-offs between them."""

    stays: Stays
    successor: Int[np.ndarray, " stay"]  # the stay that took over; -1: none
    steps: int  # stored steps
    halves: Int[np.ndarray, "cut 2"] | None = None  # stays that are one, cut where the shift runs over the end


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pairs:
    problem: Int[np.ndarray, " pair"]  # head x draws + draw
    draw: Int[np.ndarray, " pair"]
    dying: Int[np.ndarray, " pair"]  # stay that ends
    born: Int[np.ndarray, " pair"]  # stay that begins
    mass: Float[np.ndarray, " pair"]  # transferred, half if one step off
    far: Bool[np.ndarray, " pair"]

    def take(self, which: Bool[np.ndarray, " pair"]) -> "_Pairs":
        return _Pairs(**{name: values[which] for name, values in vars(self).items()})


def link(
    stays: Stays, *, steps: int, seeds: Sequence[tuple[int, ...]], draws: int = DRAWS, shifted: int = 0
) -> tuple[Linked, list[Linked]]:
    """The stays with their hand-offs, and the same for `shifted` draws of the null.

    seeds: what seeds the offsets of each head. A draw of the null is judged against the other ones of the first draws,
    which are shifts of it as much as of the stays themselves: so no further draws are needed.
    """
    heads = len(seeds)
    observed = _matched(stays, np.zeros((1, len(stays)), np.int64), steps=steps)
    total = _totals(stays, observed, heads=heads, draws=1)[0]
    tested = _could_pair(stays, heads) if shifted else total.any(axis=-1)
    part = np.flatnonzero(tested[stays.head])
    offsets = _offsets(stays, part, steps=steps, seeds=seeds, draws=draws)
    first = min(FIRST, draws)
    null = _matched(stays.take(part), offsets[:first, part], steps=steps)
    null = replace(null, dying=part[null.dying], born=part[null.born])
    totals = np.full((draws, heads, 2), np.inf)  # of draws that are not made: the head cannot pass any more
    totals[:first] = _totals(stays, null, heads=heads, draws=first)
    hopeful = tested & _may_pass(total.sum(axis=-1), totals[:first].sum(axis=-1), draws=draws)
    more = np.flatnonzero(hopeful[stays.head])
    rest = stays.take(more)
    later = _matched(rest, offsets[first:, more], steps=steps)
    totals[first:, hopeful] = _totals(rest, later, heads=heads, draws=draws - first)[:, hopeful]

    found = _judge(
        stays, observed, total=total, null=totals, shift=np.zeros_like(offsets[0]), offsets=offsets, steps=steps
    )
    surrogates = []
    for draw in range(shifted):
        others = np.delete(np.arange(first), draw)
        chosen = _judge(
            stays, null.take(null.draw == draw), total=totals[draw], null=totals[others],
            shift=offsets[draw], offsets=offsets[others], steps=steps,
        )  # fmt: skip
        surrogates.append(_shifted(stays, chosen, offset=offsets[draw], steps=steps))
    return _link(stays, found, steps), surrogates


def _judge(
    stays: Stays,
    pairs: _Pairs,
    *,
    total: Float[np.ndarray, "head 2"],
    null: Float[np.ndarray, "draw head 2"],
    shift: Int[np.ndarray, " stay"],
    offsets: Int[np.ndarray, "draw stay"],
    steps: int,
) -> _Pairs:
    """The pairs that are hand-offs. shift: the offsets that the pairs were found with, 0 for what was observed."""
    whole = _beyond(total.sum(axis=-1), null.sum(axis=-1))[:, None]
    each = whole & _beyond(total, null)
    accepted = whole & (each | ~each.any(axis=-1, keepdims=True))
    pairs = pairs.take(accepted[stays.head[pairs.dying], pairs.far.astype(int)])
    part = np.flatnonzero((each.sum(axis=-1) == 1)[stays.head])
    if not part.size:
        return pairs
    gain, loss = stays.gain.copy(), stays.loss.copy()
    gain[pairs.born] = loss[pairs.dying] = 0  # explained
    rest = replace(stays, gain=gain, loss=loss).take(part)
    again = _matched(rest, shift[None, part], steps=steps)
    heads, draws = len(total), len(offsets)
    left = _totals(rest, again, heads=heads, draws=1)[0].sum(axis=-1)
    chance = _totals(rest, _matched(rest, offsets[:, part], steps=steps), heads=heads, draws=draws).sum(axis=-1)
    again = again.take(_beyond(left, chance)[rest.head[again.dying]])
    return _Pairs(
        problem=np.append(pairs.problem, again.problem),
        draw=np.append(pairs.draw, again.draw),
        dying=np.append(pairs.dying, part[again.dying]),
        born=np.append(pairs.born, part[again.born]),
        mass=np.append(pairs.mass, again.mass),
        far=np.append(pairs.far, again.far),
    )


def _totals(stays: Stays, pairs: _Pairs, *, heads: int, draws: int) -> Float[np.ndarray, "draw head 2"]:
    """What is transferred near and far."""
    place = (pairs.draw * heads + stays.head[pairs.dying]) * 2 + pairs.far
    sums = np.bincount(place, pairs.mass, minlength=draws * heads * 2).astype(np.float64)  # without pairs it is whole
    return sums.reshape(draws, heads, 2)


def _beyond(total: Float[np.ndarray, "..."], null: Float[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
    beyond: np.ndarray = (total > 0) & ((1 + _as_great(total, null)) / (1 + len(null)) <= LEVEL)
    return beyond


def _as_great(total: Float[np.ndarray, "..."], null: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    as_great: np.ndarray = np.count_nonzero(null >= total * (1 - 1e-9), axis=0)  # equal but for the order of the sum
    return as_great


def _may_pass(total: Float[np.ndarray, " head"], null: Float[np.ndarray, "draw head"], *, draws: int) -> np.ndarray:
    """Heads that could still be among the greatest 5 % when all draws are made. The others' verdict is the same."""
    most = int(LEVEL * (1 + draws) + 1e-9) - 1
    may: np.ndarray = (total > 0) & (_as_great(total, null) <= most)
    return may


def _could_pair(stays: Stays, heads: int) -> Bool[np.ndarray, " head"]:
    deaths = np.bincount(stays.head[stays.loss > 0], minlength=heads)
    births = np.bincount(stays.head[stays.gain > 0], minlength=heads)
    return (deaths > 0) & (births > 0)


def _offsets(
    stays: Stays, part: np.ndarray, *, steps: int, seeds: Sequence[tuple[int, ...]], draws: int
) -> Int[np.ndarray, "draw stay"]:
    """Each head has a generator of its own: its draws depend on no other head."""
    offsets = np.zeros((draws, len(stays)), np.int32)
    for head in np.unique(stays.head[part]):
        own = slice(*np.searchsorted(stays.head, (head, head + 1)))
        generator = np.random.default_rng(seeds[int(head)])
        offsets[:, own] = generator.integers(0, steps, size=(draws, own.stop - own.start))
    return offsets


def _matched(stays: Stays, offsets: Int[np.ndarray, "draw stay"], *, steps: int) -> _Pairs:
    """The best pairs of every head, in every draw of offsets."""
    pairs = _meeting(stays, offsets, steps=steps)
    p, q = stays.position[pairs.dying], stays.position[pairs.born]
    keys = int(stays.position.max(initial=0)) + 1
    hop = np.abs(p - q)
    weight = pairs.mass * (1 - DISTANCE * hop / (hop + NEAR) + 1e-9 * (1 - q / keys))
    place = pairs.draw * len(stays)
    return pairs.take(match(place + pairs.dying, place + pairs.born, weight, problems=pairs.problem))


def _meeting(stays: Stays, offsets: Int[np.ndarray, "draw stay"], *, steps: int) -> _Pairs:
    """Every death and birth of the same head that lie within one step, by sorting births into (head, draw, step)."""
    draws = len(offsets)
    heads = len(np.unique(stays.head))
    dying, death_draw, death, death_bin = _events(stays, offsets, at=stays.last + 1, seen=stays.loss > 0, steps=steps)
    born, _, birth, birth_bin = _events(stays, offsets, at=stays.first, seen=stays.gain > 0, steps=steps)
    order = np.argsort(birth_bin)
    before = np.zeros(heads * draws * (steps + 2) + 1, np.int64)
    np.cumsum(np.bincount(birth_bin, minlength=len(before) - 1), out=before[1:])
    low, high = before[death_bin - 1], before[death_bin + 2]
    count = high - low
    i = np.repeat(np.arange(len(dying)), count)
    within = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    j = order[np.repeat(low, count) + within]
    lasts = stays.last > stays.first
    overlap = birth[j] < death[i]  # then each must hold the sink alone for a step
    sound = (stays.position[dying[i]] != stays.position[born[j]]) & ~(overlap & ~(lasts[dying[i]] & lasts[born[j]]))
    i, j = i[sound], j[sound]
    ends, begins = dying[i], born[j]
    exact = birth[j] == death[i]
    return _Pairs(
        problem=stays.head[ends] * draws + death_draw[i],
        draw=death_draw[i],
        dying=ends,
        born=begins,
        mass=np.minimum(stays.loss[ends], stays.gain[begins]) * np.where(exact, 1.0, OFF_BY_ONE),
        far=np.abs(stays.position[ends] - stays.position[begins]) > NEAR,
    )


def _events(
    stays: Stays, offsets: np.ndarray, *, at: np.ndarray, seen: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stay, draw, shifted step and bin of every event. One that is shifted onto the seam, step 0, is not seen."""
    which = np.flatnonzero(seen)
    when = (at[which].astype(np.int32) + offsets[:, which]) % np.int32(steps)
    flat = np.flatnonzero(when)
    draw, column = np.divmod(flat.astype(np.int32), np.int32(max(1, len(which))))
    step, stay = when.ravel()[flat], which[column]
    head = np.unique(stays.head, return_inverse=True)[1].astype(np.int32)  # without those that have no stays
    return stay, draw, step, (head[stay] * np.int32(len(offsets)) + draw) * np.int32(steps + 2) + step


def _link(stays: Stays, pairs: _Pairs, steps: int) -> Linked:
    successor = np.full(len(stays), -1)
    successor[pairs.dying] = pairs.born
    return Linked(stays=stays, successor=successor, steps=steps)


def _shifted(stays: Stays, pairs: _Pairs, *, offset: Int[np.ndarray, " stay"], steps: int) -> Linked:
    """The stays after the shift. One that runs over the end is cut in two: an end there is not seen."""
    first, last = (stays.first + offset) % steps, (stays.last + offset) % steps
    cut = np.flatnonzero(last < first)
    begun = replace(stays, first=first, last=np.where(last < first, steps - 1, last))
    rest = replace(stays.take(cut), first=np.zeros_like(cut), last=last[cut])
    both = {name: np.concatenate([values, getattr(rest, name)]) for name, values in vars(begun).items()}
    dies_at = np.arange(len(stays))
    dies_at[cut] = len(stays) + np.arange(len(cut))
    successor = np.full(len(stays) + len(cut), -1)
    successor[dies_at[pairs.dying]] = pairs.born
    halves = np.stack([cut, dies_at[cut]], axis=1)
    return Linked(stays=Stays(**both), successor=successor, steps=steps, halves=halves)
