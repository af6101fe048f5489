"""Tracks as chains of stays: which position a sink holds in every step of its life.

A chain is held by one position at a time. Where two stays overlap at a hand-off, the one that leaves holds the step; a
step between them belongs to the one that left. The cells of all chains lie in one flat array, chain after chain.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from sinklens.sinks.handoffs import Linked


@dataclass(frozen=True, kw_only=True, eq=False)
class Chains:
    """The tracks of a layer, by head, then birth, then first position."""

    head: Int[np.ndarray, " track"]  # index of the head
    first: Int[np.ndarray, " track"]  # stored steps
    last: Int[np.ndarray, " track"]
    steps: int  # stored steps of the layer
    stay: Int[np.ndarray, " stay"]  # stays of every track in the order of time, as indices into the stays
    stay_starts: Int[np.ndarray, " track_plus_1"]
    step: Int[np.ndarray, " cell"]  # stored step of every cell
    position: Int[np.ndarray, " cell"]
    starts: Int[np.ndarray, " track_plus_1"]  # where the cells of a track begin, and the end
    moves: Int[np.ndarray, " move"]  # new position minus old, of every hand-off
    move_starts: Int[np.ndarray, " track_plus_1"]

    def __len__(self) -> int:
        return len(self.head)


def build_chains(linked: Linked) -> Chains:
    """Join the stays that hand over to one another."""
    stays = linked.stays
    track = _roots(linked.successor)
    names, size = np.unique(track, return_counts=True)
    order = names[np.lexsort((stays.position[names], stays.first[names], stays.head[names]))]
    rank = np.zeros(len(stays), np.int64)
    rank[order] = np.arange(len(order))
    number = rank[track]  # of the track, for every stay
    stay = np.lexsort((stays.last, number))
    number = number[stay]
    same = np.zeros(len(stay), bool)  # the next stay continues this track
    same[:-1] = number[1:] == number[:-1]
    first, last, position = stays.first[stay], stays.last[stay], stays.position[stay]
    holds_from = first.copy()
    holds_from[1:] = np.where(same[:-1], np.maximum(first[1:], last[:-1] + 1), first[1:])
    holds_to = np.where(same, np.roll(holds_from, -1) - 1, last)
    length = holds_to - holds_from + 1
    stay_starts = np.append(0, np.cumsum(size[np.searchsorted(names, order)]))
    cells = np.append(0, np.cumsum(length))
    begins, ends = stay_starts[:-1], stay_starts[1:] - 1
    return Chains(
        head=stays.head[stay][begins],
        first=first[begins],
        last=last[ends],
        steps=linked.steps,
        stay=stay,
        stay_starts=stay_starts,
        step=np.arange(cells[-1]) - np.repeat(cells[:-1] - holds_from, length),
        position=np.repeat(position, length),
        starts=cells[stay_starts],
        moves=(np.roll(position, -1) - position)[same],
        move_starts=stay_starts - np.arange(len(stay_starts)),
    )


def _roots(successor: Int[np.ndarray, " stay"]) -> Int[np.ndarray, " stay"]:
    """The first stay of the chain that each stay belongs to, by doubling the reach of every pointer."""
    root = np.arange(len(successor))
    has = np.flatnonzero(successor >= 0)
    root[successor[has]] = has
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further
