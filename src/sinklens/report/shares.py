"""Fair shares of all heads, in 8 bits, as faithful as the room that is left allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinklens.report.encode import deflate, differences, pack, script_json, text_size
from sinklens.report.quantise import Loss, Scale, candidates
from sinklens.report.survey_heads import Surveyed
from sinklens.sinks.arrays import LayerArrays, Received, TraceLike

ORDER = ("layer", "step", "head", "key")
STEP = 1  # its place in the order
PROBED, PROBED_HEADS = 3, 4  # layers, and heads of each, whose size stands for that of all
OVERHEAD = 1_000  # bytes of names and shapes
MARGIN = 1.02  # by which the rest may be larger than these


@dataclass(frozen=True, kw_only=True, eq=False)
class _Choice:
    """How the shares are stored."""

    scale: Scale
    delta: int | None  # axis of the differences
    readings: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]


def pack_shares(
    trace: TraceLike,
    sample: int,
    found: Surveyed,
    *,
    exact: Sequence[dict[str, Any]],
    budget: int,
    tell: Callable[[], None],
) -> dict[str, Any]:
    """Shares, groups, who is visible and eligible, the scale and its loss."""
    choice = _choose(trace, sample, found, exact=exact, budget=budget)
    codes: dict[str, list[np.ndarray]] = {name: [] for name in choice.readings}
    loss = Loss(relative_from=choice.scale.bend)
    for number in choice.layers:
        layer = trace.layer(sample, number, groups=len(choice.readings) > 1)
        columns = np.flatnonzero(np.isin(layer.heads, choice.heads))
        for name in choice.readings:
            share = _reading(layer, name).fair_share[:, columns]
            codes[name].append(choice.scale.encode(share))
            loss.add(share, choice.scale.decode(codes[name][-1]))
        tell()
    packed = {
        name: pack(np.stack(values), "u1", delta=choice.delta) | {"order": ORDER} for name, values in codes.items()
    }
    return {
        "share": packed.pop("received"),
        "groups": packed or None,
        "loss": loss.document(),
        **_beside(found, scale=choice.scale, layers=choice.layers, heads=choice.heads),
    }


def _beside(found: Surveyed, *, scale: Scale, layers: Sequence[int], heads: Sequence[int]) -> dict[str, Any]:
    """What stands beside the shares of these layers and heads.

    visible and eligible are [step, key] where all layers and heads agree, as they do without sliding windows.
    """
    rows, columns = (np.flatnonzero(np.isin(*pair)) for pair in ((found.layers, layers), (found.heads, heads)))
    seen = found.seen[rows] if found.seen.shape[2] == 1 else found.seen[rows][:, :, columns]
    if (seen == seen[:1, :, :1]).all():
        seen = seen[0, :, 0]
    tops = {name: pack(scale.encode(values[rows][:, :, columns]), "u1") for name, values in found.top_excess.items()}
    return {
        "layers": list(layers),
        "heads": list(heads),
        "left_out": {"layers": len(found.layers) - len(layers), "heads": len(found.heads) - len(heads)},
        "visible": pack(seen > 0, "u1"),
        "eligible": pack(seen > 1, "u1"),
        "top_excess": tops or None,
        "scale": scale.document(),
    }


def _choose(trace: TraceLike, sample: int, found: Surveyed, *, exact: Sequence[dict[str, Any]], budget: int) -> _Choice:
    """The first that fits: everything with its groups; a coarser scale without them; the exact heads' layers and heads
    alone, again from fine to coarse. If nothing fits, the smallest."""
    groups = list(found.top_excess)
    probes = _probes(trace, sample, found, readings=["received", *groups])
    ladder = candidates(max(found.high[name] for name in probes))
    options = [(ladder[0], ["received", *groups]), *((scale, ["received"]) for scale in ladder)]
    sizes: dict[int, tuple[float, int | None]] = {}
    narrow = sorted({one["layer"] for one in exact}), sorted({one["head"] for one in exact})
    for layers, heads in ((found.layers, found.heads), narrow):
        values = len(layers) * len(heads) * len(found.steps) * probes["received"].shape[-1]
        room = budget - OVERHEAD - len(script_json(_beside(found, scale=ladder[0], layers=layers, heads=heads)))
        for at, (scale, readings) in enumerate(options):
            size, delta = sizes[at] = sizes.get(at) or _bytes_a_value(probes, scale, readings)
            choice = _Choice(scale=scale, delta=delta, readings=readings, layers=layers, heads=heads)
            if text_size(round(size * values * MARGIN)) <= room:
                return choice
    return choice


def _probes(trace: TraceLike, sample: int, found: Surveyed, *, readings: Sequence[str]) -> dict[str, np.ndarray]:
    """Shares of a few heads of a few layers, [layer, step, head, key]: enough to tell how well the rest compresses."""
    numbers = [found.layers[at] for at in np.unique(np.linspace(0, len(found.layers) - 1, PROBED).astype(int))]
    layers = [trace.layer(sample, number, groups=len(readings) > 1) for number in numbers]
    stride = -(-len(found.heads) // PROBED_HEADS)
    return {name: np.stack([_reading(one, name).fair_share[:, ::stride] for one in layers]) for name in readings}


def _bytes_a_value(probes: dict[str, np.ndarray], scale: Scale, readings: Sequence[str]) -> tuple[float, int | None]:
    """Of all readings together; and the axis of the differences, where these are smaller."""
    codes = [scale.encode(probes[name]) for name in readings]
    plain = sum(len(deflate(one.tobytes())) for one in codes)
    changes = sum(len(deflate(differences(one, STEP).tobytes())) for one in codes)
    return min(plain, changes) / codes[0].size, STEP if changes < plain else None


def _reading(layer: LayerArrays, name: str) -> Received:
    return layer if name == "received" else layer.groups[name]
