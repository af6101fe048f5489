"""Where a generation is at work: three readings of the unmasking frontier, and whether a track follows one.

    first_masked   first masked position of the generated stretch
    last_masked    last masked position of it
    committed      median of the positions that got their token in the step before

NaN where there is none. Autoregressive runs have no masks; their frontier is `committed`.
"""

import numpy as np
from jaxtyping import Float, Int

from sinklens.sinks.arrays import Canvases
from sinklens.sinks.chains import Chains

FRONTIERS = ("first_masked", "last_masked", "committed")
LARGEST_SPREAD = 1.5  # tokens: median absolute deviation of the lag
TIGHTER = 0.2  # the lag must spread at most this much of what the track itself does
LEAST_MOVE = 3.0  # tokens that the frontier must move during the track's life


def frontiers(canvases: Canvases, steps: Int[np.ndarray, " step"]) -> Float[np.ndarray, "3 step"]:
    """The three frontiers at the stored steps, in the order of FRONTIERS."""
    where = np.arange(canvases.masked.shape[1])
    masked = canvases.masked[steps] & (where >= canvases.prompt_length)
    some = masked.any(axis=1)
    found = np.full((3, len(steps)), np.nan)
    found[0, some] = masked.argmax(axis=1)[some]
    found[1, some] = (len(where) - 1 - masked[:, ::-1].argmax(axis=1))[some]
    for index, step in enumerate(steps):
        got = where[canvases.committed[step - 1]] if step > 0 else where[:0]
        if got.size:
            found[2, index] = np.median(got)
    return found


def follow(chains: Chains, found: Float[np.ndarray, "3 step"], *, track: int) -> tuple[int, bool]:
    """The moving frontier whose distance from the track varies least (-1: none moves), and whether it is followed.

    A frontier moves if it covers at least 3 tokens during the track's life. It is followed by a track with at least two
    hand-offs that goes the same way, if the median absolute deviation of the distance is at most 1.5 tokens and a fifth
    of that of the track's own positions.
    """
    cells = slice(*chains.starts[track : track + 2])
    position = chains.position[cells].astype(np.float64)
    best, spread, same_way, own = -1, np.inf, False, 0.0
    for index, line in enumerate(found[:, chains.step[cells]]):
        known = ~np.isnan(line)
        if 2 * known.sum() < len(line) or np.ptp(line[known]) < LEAST_MOVE:
            continue
        front, held = line[known], position[known]
        this = _deviation(held - front)
        if this < spread:
            best, spread, own = index, this, _deviation(held)
            same_way = (front[-1] - front[0]) * (held[-1] - held[0]) > 0
    hops = chains.move_starts[track + 1] - chains.move_starts[track]
    return best, bool(hops >= 2 and same_way and spread <= min(LARGEST_SPREAD, TIGHTER * own))


def _deviation(values: Float[np.ndarray, " value"]) -> float:
    """Median absolute deviation from the median."""
    return _median(np.abs(values - _median(values)))


def _median(values: Float[np.ndarray, " value"]) -> float:
    """As np.median, without its overhead, which is most of the time for so few values."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
