"""Random heads with sinks whose kind is known: what the classifier of tracks is built on, and judged by.

A head holds several sinks of random kinds on a background of Dirichlet noise. Masked and unmasked queries each have
attention of their own, every row sums to 1. A kind is what the sink was made to do, not what came out: a jumping sink
whose jumps happen to be short and to the right is still a jumping one.
"""

from dataclasses import dataclass

import numpy as np

from sinklens.sinks.arrays import Canvases, LayerArrays, Received

KINDS = ("static", "flicker", "split", "moving right", "moving left", "jumping", "frontier")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Ranges, both ends included, from which every head is drawn."""

    steps: tuple[int, int]
    keys: tuple[int, int]
    sinks: tuple[int, int]  # in one head
    strength: tuple[float, float]  # fair shares
    wobble: tuple[float, float]  # of the strength, standard deviation of its logarithm
    memory: tuple[float, float]  # of the wobble from step to step
    profile: tuple[float, float]  # concentration of the background that stays the same; large: flat
    flutter: tuple[float, float]  # concentration of the background that is drawn anew in every step
    hold: tuple[int, int]  # steps between two hops of a moving sink
    pause: float  # chance that a hop is left out
    hop: tuple[int, int]  # tokens
    leap: tuple[int, int]  # tokens of a jump
    stay: tuple[int, int]  # steps between two jumps
    smear: float  # chance that a hand-off takes two steps
    jitter: float  # chance that a frontier follower is one token off
    orders: tuple[str, ...]  # in which positions are unmasked
    seed: int  # of the first head


DEVELOPMENT = Setting(
    steps=(48, 128), keys=(80, 192), sinks=(1, 4), strength=(6, 16), wobble=(0.05, 0.25), memory=(0.5, 0.5),
    profile=(4, 10), flutter=(6, 20), hold=(1, 5), pause=0.1, hop=(1, 4), leap=(12, 60), stay=(4, 24), smear=0.2,
    jitter=0.1, orders=("left to right", "blocks"), seed=0,
)  # fmt: skip
HELD_OUT = Setting(
    steps=(40, 160), keys=(64, 256), sinks=(1, 6), strength=(5, 24), wobble=(0.0, 0.4), memory=(0.0, 0.9),
    profile=(3, 30), flutter=(4, 40), hold=(1, 9), pause=0.25, hop=(1, 6), leap=(9, 100), stay=(2, 40), smear=0.35,
    jitter=0.2, orders=("left to right", "right to left", "blocks", "anywhere"), seed=1_000_000,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """One sink: its kind, and where it is in every step; -1: nowhere."""

    kind: str
    where: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture:
    """One layer with one head, its canvases, and what is in it."""

    layer: LayerArrays
    canvases: Canvases
    truths: list[Truth]
    order: str  # in which positions are unmasked


def mixture(setting: Setting, number: int) -> Mixture:
    """The head of that number."""
    rng = np.random.default_rng((setting.seed, number))
    steps, keys = _whole(rng, setting.steps), _whole(rng, setting.keys)
    order = str(rng.choice(setting.orders))
    canvases = _canvases(rng, steps=steps, keys=keys, order=order)
    queries = np.stack([canvases.masked.sum(1), (~canvases.masked).sum(1)])  # [group, step]
    truths: list[Truth] = []
    mass = np.zeros((2, steps, keys))
    for kind in rng.choice(KINDS, size=_whole(rng, setting.sinks)):
        for truth, groups in _sinks(rng, setting, kind=str(kind), canvases=canvases):
            truths.append(truth)
            mass += _mass(rng, setting, truth=truth, groups=groups, queries=queries)
    crowded = mass.sum(-1, keepdims=True)
    mass /= np.maximum(crowded / 0.8, 1)  # a row has only 1 to give
    flat = rng.dirichlet(np.full(keys, rng.uniform(*setting.profile)), size=(2, 1))
    noise = rng.dirichlet(np.full(keys, rng.uniform(*setting.flutter)), size=(2, steps))
    ground = flat * noise / (flat * noise).sum(-1, keepdims=True)
    attention = mass + (1 - mass.sum(-1, keepdims=True)) * ground
    received = (attention * queries[..., None])[:, :, None].astype(np.float32)
    return Mixture(layer=_layer(received, queries), canvases=canvases, truths=truths, order=order)


def _canvases(rng: np.random.Generator, *, steps: int, keys: int, order: str) -> Canvases:
    prompt = keys // 4
    length = keys - prompt
    where = np.arange(length)
    ranks = {
        "left to right": where + rng.normal(0, 1.0, length),
        "right to left": -where + rng.normal(0, 1.0, length),
        "blocks": where // 16 * 16 + rng.uniform(0, 16, length),
        "anywhere": rng.uniform(0, 1, length),
    }[order]
    when = np.argsort(np.argsort(ranks)) * steps // length  # step in which a position gets its token
    masked = np.concatenate([np.zeros((steps, prompt), bool), when >= np.arange(steps)[:, None]], axis=1)
    committed = np.concatenate([np.zeros((steps, prompt), bool), when == np.arange(steps)[:, None]], axis=1)
    return Canvases(
        sample=0, prompt_length=prompt, ids=np.tile(np.arange(keys), (steps, 1)), masked=masked, committed=committed,
        confidence=np.full((steps, keys), np.nan, np.float32), blocks=np.full((steps, 2), -1),
    )  # fmt: skip


def _layer(received: np.ndarray, queries: np.ndarray) -> LayerArrays:
    keys = received.shape[-1]
    share = np.broadcast_to(queries[:, :, None, None], (*queries.shape, 1, keys)).astype(np.float32)
    parts = [Received(received=one, expected=n / keys, viewers=n) for one, n in zip(received, share, strict=True)]
    steps = received.shape[1]
    return LayerArrays(
        layer=0, steps=np.arange(steps), heads=np.arange(1), received=received.sum(0),
        expected=np.ones((steps, 1, keys), np.float32), viewers=np.full((steps, 1, keys), keys, np.float32),
        groups={"masked": parts[0], "unmasked": parts[1]},
    )  # fmt: skip


def _sinks(
    rng: np.random.Generator, setting: Setting, *, kind: str, canvases: Canvases
) -> list[tuple[Truth, tuple[bool, bool]]]:
    """The sink, or the two of a split, each with the groups that look at it."""
    steps, keys = canvases.masked.shape
    if kind == "split":
        shares = canvases.masked.mean(1)
        both = np.flatnonzero((shares > 0.3) & (shares < 0.7))
        places = rng.choice(keys, 2, replace=False)
        paths = [np.where(np.isin(np.arange(steps), both), place, -1) for place in places]
        return [
            (Truth(kind=kind, where=paths[0]), (True, False)),
            (Truth(kind=kind, where=paths[1]), (False, True)),
        ]
    path = {
        "static": _static,
        "flicker": _flicker,
        "moving right": lambda *args: _moving(*args, sign=1),
        "moving left": lambda *args: _moving(*args, sign=-1),
        "jumping": _jumping,
        "frontier": _frontier,
    }[kind](rng, setting, canvases)
    return [(Truth(kind=kind, where=path), (True, True))]


def _static(rng: np.random.Generator, setting: Setting, canvases: Canvases) -> np.ndarray:
    steps, keys = canvases.masked.shape
    length = int(rng.integers(4, steps + 1))
    start = int(rng.integers(0, steps - length + 1))
    path = np.full(steps, -1)
    path[start : start + length] = rng.integers(keys)
    return path


def _flicker(rng: np.random.Generator, setting: Setting, canvases: Canvases) -> np.ndarray:
    steps, keys = canvases.masked.shape
    path = np.full(steps, -1)
    path[rng.integers(1, steps - 1)] = rng.integers(keys)
    return path


def _moving(rng: np.random.Generator, setting: Setting, canvases: Canvases, *, sign: int) -> np.ndarray:
    """At least three hops, then until it leaves the canvas or its time is over."""
    steps, keys = canvases.masked.shape
    hold = _whole(rng, setting.hold)
    least = 3 * hold + hold
    start = int(rng.integers(0, max(1, steps - least)))
    end = int(rng.integers(min(steps, start + least), steps + 1))
    place = int(rng.integers(0, keys // 2))
    path = np.full(steps, -1)
    due = hold
    for step in range(start, end):
        if due == 0:
            due = hold
            if rng.random() >= setting.pause:
                place += _whole(rng, setting.hop)
        if place >= keys:
            break
        path[step] = place if sign > 0 else keys - 1 - place
        due -= 1
    return path


def _jumping(rng: np.random.Generator, setting: Setting, canvases: Canvases) -> np.ndarray:
    steps, keys = canvases.masked.shape
    place, step = int(rng.integers(keys)), int(rng.integers(0, steps // 3))
    path = np.full(steps, -1)
    for _ in range(_whole(rng, (2, 8))):
        until = step + _whole(rng, setting.stay)
        path[step:until] = place
        step = until
        leap = _whole(rng, setting.leap) * int(rng.choice([-1, 1]))
        place = int(np.clip(place + leap if 0 <= place + leap < keys else place - leap, 0, keys - 1))
    return path


def _frontier(rng: np.random.Generator, setting: Setting, canvases: Canvases) -> np.ndarray:
    """A few tokens from the first masked position, looked up anew every one to three steps.

    Where unmasking runs from right to left that position hardly moves, and where it runs anywhere it moves in leaps.
    """
    steps, keys = canvases.masked.shape
    front = np.where(canvases.masked.any(1), canvases.masked.argmax(1), keys - 1)
    start = int(rng.integers(0, steps // 2))
    end = int(rng.integers(start + steps // 3, steps + 1))
    every, lag = _whole(rng, (1, 3)), int(rng.integers(-4, 5))
    path = np.full(steps, -1)
    for step in range(start, end):
        if (step - start) % every == 0:
            off = int(rng.choice([-1, 1])) if rng.random() < setting.jitter else 0
            place = int(np.clip(front[step] + lag + off, 0, keys - 1))
        path[step] = place
    return path


def _mass(
    rng: np.random.Generator, setting: Setting, *, truth: Truth, groups: tuple[bool, bool], queries: np.ndarray
) -> np.ndarray:
    """Share of attention that each group pays to each key for the sake of this sink: [group, step, key]."""
    steps = queries.shape[1]
    keys = int(queries[:, 0].sum())
    memory, size = rng.uniform(*setting.memory), rng.uniform(*setting.wobble)
    wobble = np.zeros(steps)
    fresh = rng.normal(size=steps)
    for step in range(steps):
        before = wobble[step - 1] if step else fresh[0]
        wobble[step] = memory * before + np.sqrt(1 - memory**2) * fresh[step]
    shares = rng.uniform(*setting.strength) * np.exp(size * wobble) / keys
    mass = np.zeros((2, steps, keys))
    looking = (np.array(groups)[:, None] * queries).sum(0)
    for step in np.flatnonzero(truth.where >= 0):
        each = min(0.5, shares[step] * keys / max(1, looking[step]))  # the same fair share, from fewer queries
        left = 0.0
        before = truth.where[step - 1] if step else -1
        if before >= 0 and before != truth.where[step] and rng.random() < setting.smear:
            left = rng.uniform(0.2, 0.5)
        for group in np.flatnonzero(groups):
            mass[group, step, truth.where[step]] += (1 - left) * each
            mass[group, step, before] += left * each
    return mass


def _whole(rng: np.random.Generator, ends: tuple[int, int]) -> int:
    return int(rng.integers(ends[0], ends[1] + 1))
