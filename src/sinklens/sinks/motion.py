"""How a model's sinks move, in numbers: shares of kinds, hand-offs, lifetimes, and direction by depth.

Every share stands beside its value under the null, where the same rule is applied to stays that are shifted in time
(`follow_sinks` with `shifted` in its rule): what chance alone would be called moving. Intervals are over samples.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.depth import spearman
from sinklens.sinks.kinds import KINDS, MOVING
from sinklens.sinks.lifetimes import survival
from sinklens.sinks.resample import bootstrap, bootstrap_ratios

RIGHT_LEFT = ("moving right", "moving left")


def summarise_tracks(
    table: Any, *, layers_total: int, null: Any = None, draws: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """What a table of tracks says about a model, as numbers and None, ready for JSON.

    table: of `track_sinks`, with any number of samples; null: `Tracked.null`, or None. layers_total: layers of the
    model, those without a track included; depth is the layer number over layers_total - 1.

    Each entry of `shares` has value, low, high, n (samples with tracks) and `null`; `moving` is the sum of moving
    right, moving left, jumping and frontier. `right_minus_left` is the share moving right less that moving left.
    """
    layer = table["layer"].to_numpy()
    if len(layer) and layer.max() >= layers_total:
        raise UsageError(f"layers_total is {layers_total}, but there are tracks in layer {layer.max()}; expected more")
    samples, sample = np.unique(table["sample"].to_numpy(), return_inverse=True)
    features = _features(table)
    sums = _sum_by(sample, features["values"], size=len(samples))
    count = np.bincount(sample, minlength=len(samples)).astype(np.float64)
    chance = _null_means(null)
    shares = {
        name: asdict(interval) | {"null": chance.get(name)}
        for name, interval in zip(features["names"], bootstrap_ratios(sums, count, draws=draws, seed=seed), strict=True)
    }
    handoffs = shares.pop("handoffs")
    kinds = table["kind"].to_pylist()
    for name, entry in shares.items():
        entry["tracks"] = _tracks_of(name, kinds)
    return {
        "samples": len(samples),
        "tracks": len(layer),
        "null_draws": 0 if null is None else len(np.unique(null["draw"].to_numpy())),
        "shares": shares,
        "handoffs_per_track": handoffs,
        "lifetimes": {of: _lifetime(table, of=of, draws=draws, seed=seed) for of in ("tracks", "stays")},
        "depth": _depth(table, sample=sample, layers_total=layers_total, null=null, draws=draws, seed=seed),
    }


def _features(table: Any) -> dict[str, Any]:
    """[track, feature]: is it of the kind, does it move, which way, how many hand-offs."""
    kind = np.array(table["kind"].to_pylist(), object)
    named = {name: (kind == name).astype(np.float64) for name in KINDS}
    named |= {"moving": np.isin(kind, MOVING).astype(np.float64)}
    named |= {"right_minus_left": named[RIGHT_LEFT[0]] - named[RIGHT_LEFT[1]]}
    named |= {"handoffs": table["handoffs"].to_numpy().astype(np.float64)}
    return {"names": list(named), "values": np.stack(list(named.values()), axis=1)}


def _tracks_of(name: str, kinds: list[str]) -> int | None:
    """How many tracks a share counts; None for the difference of two shares."""
    if name == "right_minus_left":
        return None
    return sum(kind in MOVING for kind in kinds) if name == "moving" else kinds.count(name)


def _sum_by(
    group: Int[np.ndarray, " track"], values: Float[np.ndarray, "track feature"], *, size: int
) -> Float[np.ndarray, "group feature"]:
    return np.stack([np.bincount(group, column, minlength=size) for column in values.T], axis=1).astype(np.float64)


def _null_means(null: Any) -> dict[str, float]:
    """The same shares of all shifted tracks, averaged over the draws; empty without any."""
    if null is None or not null.num_rows:
        return {}
    features = _features(null)
    draw = np.unique(null["draw"].to_numpy(), return_inverse=True)[1]
    size = int(draw.max()) + 1
    shares = _sum_by(draw, features["values"], size=size) / np.bincount(draw, minlength=size)[:, None]
    return dict(zip(features["names"], shares.mean(axis=0).tolist(), strict=True))


def _lifetime(table: Any, *, of: str, draws: int, seed: int) -> dict[str, Any]:
    curve = survival(table, of=of, draws=draws, seed=seed)[0]
    names = ("median", "median_low", "median_high", "n", "lives", "censored", "left_out")
    return {name: getattr(curve, name) for name in names}


def _depth(
    table: Any, *, sample: Int[np.ndarray, " track"], layers_total: int, null: Any, draws: int, seed: int
) -> dict[str, Any]:
    """Direction by layer, and its rank correlation with depth: one for every sample, then the mean over samples."""
    size = int(sample.max()) + 1 if len(sample) else 0
    place = sample * layers_total + table["layer"].to_numpy()
    direction, speed, count, chains = _by_place(table, place, size=size * layers_total)
    by_sample = [values.reshape(size, layers_total) for values in (direction, speed, count, chains)]
    direction, speed, count, chains = (values.sum(axis=0) for values in by_sample)
    chance = np.full(layers_total, np.nan)
    if null is not None and null.num_rows:
        shifted, _, tracks, _ = _by_place(null, null["layer"].to_numpy(), size=layers_total)
        chance = _over(shifted, tracks)
    rows = zip(_over(direction, count), chance, _over(speed, chains), count, chains, strict=True)
    layers = np.arange(layers_total)
    return {
        "layers": [
            {
                "layer": layer,
                "depth": layer / max(1, layers_total - 1),
                "tracks": int(tracks),
                "right_minus_left": _known(difference),
                "right_minus_left_null": _known(by_chance),
                "chains": int(linked),
                "velocity": _known(velocity),
            }
            for layer, (difference, by_chance, velocity, tracks, linked) in enumerate(rows)
        ],
        "spearman": {
            name: asdict(bootstrap([spearman(layers, row) for row in _over(above, below)], draws=draws, seed=seed))
            for name, above, below in (
                ("right_minus_left", by_sample[0], by_sample[2]),
                ("velocity", by_sample[1], by_sample[3]),
            )
        },
    }


def _by_place(table: Any, place: Int[np.ndarray, " track"], *, size: int) -> tuple[np.ndarray, ...]:
    """Right less left, sum of velocities, tracks, and tracks that have a velocity."""
    kind = np.array(table["kind"].to_pylist(), object)
    turn = (kind == RIGHT_LEFT[0]).astype(np.float64) - (kind == RIGHT_LEFT[1])
    velocity = table["velocity"].to_numpy().astype(np.float64)  # null becomes NaN
    linked = ~np.isnan(velocity)
    weights = (turn, np.nan_to_num(velocity), np.ones(len(place)), linked.astype(np.float64))
    return tuple(np.bincount(place, one, minlength=size) for one in weights)


def _over(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: np.ndarray = np.where(below > 0, above / below, np.nan)
    return ratio


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
