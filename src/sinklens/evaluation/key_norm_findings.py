"""What the paper claims about key norms (arXiv 2406.11430), held against one model, each with a verdict.

Layers 0 and 1 are apart: the paper does not compress them. A verdict needs an interval, so two chunks at least.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from sinklens.evaluation.atlas_numbers import above_zero, below_zero, mean_known, null_band, over_units, shown

EARLY = 2  # layers that the paper leaves alone
NO_LATER = "the model has no layers behind layer 1"
Cubes = dict[str, Float[np.ndarray, "unit layer head"]]


def causal_findings(
    cubes: Cubes,
    null: Float[np.ndarray, "unit layer head draw"],
    *,
    layers: list[dict[str, Any]],
    probe: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Claim, whether it holds (None: not decided), and what was measured. null: of the next query's correlation."""
    return [
        _low_norms(cubes, null),
        *_half(cubes),
        *_against_chance(cubes, layers),
        *_early_layers(cubes),
        _peaks(probe),
    ]


def _low_norms(cubes: Cubes, null: Float[np.ndarray, "unit layer head draw"]) -> dict[str, Any]:
    """Behind the first layers: is the correlation below 0, and below chance, and so in most heads?"""
    claim = "low key norms go with high attention of the next query, behind layer 1"
    later = cubes["next"][:, EARLY:]
    if not later.shape[1]:
        return _finding(claim, None, NO_LATER)
    mean, heads = over_units(mean_known(later, (1, 2))), mean_known(later, 0)
    chance = null_band(mean_known(null[:, EARLY:], (1, 2)))
    negative, total = int((heads < 0).sum()), int(np.isfinite(heads).sum())
    holds = below_zero(mean) and mean["value"] < chance["low"] and 2 * negative > total
    band = f"chance {chance['low']:.3f} to {chance['high']:.3f}"
    says = f"Spearman {shown(mean)} ({band}), below 0 in {negative} of {total} heads"
    return _finding(claim, None if mean["low"] is None else holds, says)


def _half(cubes: Cubes) -> list[dict[str, Any]]:
    """What a cache of half its size keeps."""
    found = []
    for end, where in (("", ""), ("_rest", ", without position 0")):
        claim = (
            f"the half of smallest key norm holds more than half of the next query's attention, behind layer 1{where}"
        )
        later = cubes[f"kept{end}"][:, EARLY:]
        if not later.shape[1]:
            found.append(_finding(claim, None, NO_LATER))
            continue
        mean = over_units(mean_known(later, (1, 2)))
        says = f"share kept {shown(mean)}"
        if not end:
            says += (
                f"; the best half would keep {shown(over_units(mean_known(cubes['kept_oracle'][:, EARLY:], (1, 2))))}"
            )
        found.append(_finding(claim, None if mean["low"] is None else mean["low"] > 0.5, says))
    return found


def _against_chance(cubes: Cubes, layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Does the order lose less than a random one? Position 0 is the first token to be kept by either measure."""
    found = []
    for end, where in (("", ""), ("_rest", ", without position 0")):
        claim = (
            f"dropping large norms first loses less attention than chance (ALR / expected < 1), behind layer 1{where}"
        )
        above, below = (cubes[f"{name}{end}"][:, EARLY:].sum((1, 2)) for name in ("alr", "expected"))
        if len(layers) <= EARLY:
            found.append(_finding(claim, None, NO_LATER))
            continue
        ratio = over_units(above, below=below)
        own = [one[f"ratio{end}"] for one in layers[EARLY:]]
        better = sum(one["high"] is not None and one["high"] < 1 for one in own)
        worse = sum(one["low"] is not None and one["low"] > 1 for one in own)
        says = f"ratio {shown(ratio)}; clearly better than chance in {better} of {len(own)} layers, worse in {worse}"
        found.append(_finding(claim, None if ratio["low"] is None else ratio["high"] < 1, says))
    return found


def _early_layers(cubes: Cubes) -> list[dict[str, Any]]:
    """Are layers 0 and 1 served worst? In ALR itself, and as a share of what chance loses."""
    found = []
    for end, where in (("", ""), ("_rest", ", without position 0")):
        for ratio in (False, True):
            name = "ALR / expected" if ratio else "ALR"
            claim = f"{name} of layers 0 and 1 is, in the mean, above that of the others{where}"
            values = cubes[f"alr{end}"].sum(2)
            if values.shape[1] <= EARLY:
                found.append(_finding(claim, None, "the model has no other layers"))
                continue
            scale = cubes[f"expected{end}"].sum(2) if ratio else np.full(values.shape, cubes["alr"].shape[2])
            by_layer, means = values / scale, values.sum(0) / scale.sum(0)
            gap = over_units(mean_known(by_layer[:, :EARLY], 1) - mean_known(by_layer[:, EARLY:], 1))
            worst = np.argsort(-means, kind="stable")
            first, second = (int(np.nonzero(worst == layer)[0][0]) + 1 for layer in (0, 1))
            listed = ", ".join(f"{layer} ({means[layer]:.3g})" for layer in worst[:3])
            says = (
                f"mean difference {shown(gap)}; layers 0 and 1 have {means[0]:.3g} and {means[1]:.3g}, places {first} "
                f"and {second} of {len(means)} from the worst; worst are {listed}"
            )
            found.append(_finding(claim, None if gap["low"] is None else above_zero(gap), says))
    return found


def _peaks(probe: list[dict[str, Any]]) -> dict[str, Any]:
    """Peaks against random dimensions of the same keys."""
    peaks = probe[0]
    pair, other = peaks["minus_random"], peaks["minus_elsewhere"]
    says = (
        f"change of the maps {shown(peaks['change'])}, {shown(pair['change'])} more than random dimensions and "
        f"{shown(other['change'])} more than the peaks of other keys; loss {shown(peaks['nll_change'])}, "
        f"{shown(pair['nll'])} more than random dimensions"
    )
    claim = "zeroing the peaks of low-norm keys moves attention more than zeroing random dimensions of them"
    return _finding(claim, None if pair["change"]["low"] is None else above_zero(pair["change"]), says)


def _finding(claim: str, holds: bool | None, says: str) -> dict[str, Any]:
    """holds None: one chunk alone, or nothing to compare."""
    return {"claim": claim, "holds": holds, "says": says}
