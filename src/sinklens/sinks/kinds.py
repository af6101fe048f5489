"""What a track does: one word for each, and the velocities.

    static        one position, longer than one step
    flicker       one position for one step, and both ends were seen
    split         one position, and only masked or only unmasked queries look at it while the others have theirs
    moving right  hand-offs to the right: small hops, or many without turning
    moving left   likewise
    jumping       hand-offs that are neither
    frontier      hand-offs that keep a constant distance to the unmasking frontier

A single step at the first or last stored step is not known to be that short: static. Hand-offs decide first, so that a
sink of masked queries which moves is a moving one; its group is told beside the kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from sinklens.sinks.arrays import Canvases, Received
from sinklens.sinks.chains import Chains
from sinklens.sinks.detect import excess
from sinklens.sinks.frontier import follow, frontiers
from sinklens.sinks.handoffs import NEAR

KINDS = ("static", "flicker", "split", "moving right", "moving left", "jumping", "frontier")
MOVING = ("moving right", "moving left", "jumping", "frontier")
GROUPS = ("masked", "unmasked")
CONSISTENT = 0.75  # share of the hops that go one way
MANY_HOPS = 4  # that far without turning, hops of any size are a direction: 2 in 5! random orders are monotone


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """One entry a track; NaN: not defined."""

    kind: Int[np.ndarray, " track"]  # index into KINDS
    frontier: Int[np.ndarray, " track"]  # index into FRONTIERS of the one that velocity_frontier is relative to; -1
    split: Int[np.ndarray, " track"]  # index into GROUPS: the only queries that look at it; -1
    velocity: Float[np.ndarray, " track"]  # tokens per step
    velocity_frontier: Float[np.ndarray, " track"]  # the same, less that of the frontier
    velocity_commit: Float[np.ndarray, " track"]  # tokens per committed token


@dataclass(frozen=True, kw_only=True, eq=False)
class Surroundings:
    """What the kinds of a layer's tracks depend on besides the tracks."""

    steps: Int[np.ndarray, " step"]  # numbers of the stored steps
    frontiers: Float[np.ndarray, "3 step"]
    committed: Int[np.ndarray, " canvas_plus_1"]  # positions committed before each step
    # Index into GROUPS where only that group has a sink while the other has one elsewhere; -1: not so; -2: too few
    # queries to tell. None: no groups
    only: Int[np.ndarray, "step head key"] | None

    @staticmethod
    def of(
        canvases: Canvases,
        *,
        steps: Int[np.ndarray, " step"],
        groups: Mapping[str, Received],
        epsilon: float,
        min_viewers: int,
    ) -> "Surroundings":
        both = all(name in groups for name in GROUPS)
        return Surroundings(
            steps=steps,
            frontiers=frontiers(canvases, steps),
            committed=np.append(0, np.cumsum(canvases.committed.sum(axis=1))),
            only=_only(groups, epsilon, min_viewers=min_viewers) if both else None,
        )


def classify(chains: Chains, around: Surroundings) -> Kinds:
    """The kind and the velocities of every track."""
    tracks = len(chains)
    split = _split(chains, around)
    short = (chains.first == chains.last) & (chains.first > 0) & (chains.last < chains.steps - 1)
    kind = np.select([short, split >= 0], [KINDS.index("flicker"), KINDS.index("split")], KINDS.index("static"))
    frontier = np.full(tracks, -1)
    velocity, relative, per_token = (np.full(tracks, np.nan) for _ in range(3))
    for track in np.flatnonzero(np.diff(chains.move_starts)).tolist():
        frontier[track], followed = follow(chains, around.frontiers, track=track)
        moves = chains.moves[slice(*chains.move_starts[track : track + 2])]
        kind[track] = KINDS.index("frontier" if followed else motion(moves))
        net = int(moves.sum())
        born, died = around.steps[chains.first[track]], around.steps[chains.last[track]]
        velocity[track] = net / (died - born)
        committed = around.committed[died] - around.committed[born]
        if committed:
            per_token[track] = net / committed
        if frontier[track] >= 0:
            relative[track] = _relative(chains, around, track=track, frontier=int(frontier[track]))
    return Kinds(
        kind=kind,
        frontier=np.where(np.isnan(relative), -1, frontier),
        split=split,
        velocity=velocity,
        velocity_frontier=relative,
        velocity_commit=per_token,
    )


def motion(moves: Int[np.ndarray, " move"]) -> str:
    """Moving right, moving left or jumping, by the hops alone.

    >>> motion(np.array([1, 2, 1])), motion(np.array([26])), motion(np.array([-5, -30, -9, -40]))
    ('moving right', 'jumping', 'moving left')
    """
    right = np.count_nonzero(moves > 0)
    most = max(right, len(moves) - right) / len(moves)
    small = np.median(np.abs(moves)) <= NEAR
    if most >= CONSISTENT if small else (most == 1 and len(moves) >= MANY_HOPS):
        return "moving right" if 2 * right > len(moves) else "moving left"
    return "jumping"


def _relative(chains: Chains, around: Surroundings, *, track: int, frontier: int) -> float:
    """Change of the distance to the frontier per step, between the first and last step in which it is known."""
    cells = slice(*chains.starts[track : track + 2])
    front = around.frontiers[frontier, chains.step[cells]]
    known = np.flatnonzero(~np.isnan(front))[[0, -1]]
    lag = (chains.position[cells] - front)[known]
    passed = np.diff(around.steps[chains.step[cells]][known])[0]
    return float((lag[1] - lag[0]) / passed)


def _only(groups: Mapping[str, Received], epsilon: float, *, min_viewers: int) -> Int[np.ndarray, "step head key"]:
    shares = [excess(groups[name].received, groups[name].expected) for name in GROUPS]
    masked, unmasked = (
        (own > epsilon) & (other < epsilon / 2) for own, other in zip(shares, reversed(shares), strict=True)
    )
    only = np.full(masked.shape, -1, np.int8)
    only[masked & unmasked.any(axis=-1, keepdims=True)] = 0
    only[unmasked & masked.any(axis=-1, keepdims=True)] = 1
    queries = np.stack([np.nanmax(groups[name].viewers, axis=(1, 2), initial=0) for name in GROUPS])
    only[(queries < min_viewers).any(axis=0)] = -2
    return only


def _split(chains: Chains, around: Surroundings) -> Int[np.ndarray, " track"]:
    """The group that alone looks at the track, in more than half of the steps in which that can be told."""
    if around.only is None or not len(chains):
        return np.full(len(chains), -1)
    head = np.repeat(chains.head, np.diff(chains.starts))
    cells = around.only[chains.step, head, chains.position]
    told, first, second = (
        np.add.reduceat(state.astype(np.int64), chains.starts[:-1]) for state in (cells != -2, cells == 0, cells == 1)
    )
    return np.select([2 * first > told, 2 * second > told], [0, 1], -1)
