"""Heads with sinks on given paths, for tests whose answer is known."""

from collections.abc import Mapping, Sequence

import numpy as np

from sinklens.sinks.arrays import Canvases, LayerArrays, Received

HIGH = 9.0  # fair shares of a sink


def head(steps: int, keys: int, *sinks: Mapping[int, int], high: float = HIGH) -> np.ndarray:
    """received [step, 1, key]: 1 everywhere, and `high` on the path {step: position} of every sink."""
    received = np.ones((steps, 1, keys), np.float32)
    for path in sinks:
        for step, position in path.items():
            received[step, 0, position] = high
    return received


def stay(position: int, first: int, last: int) -> dict[int, int]:
    """A path that stays at one position from the first to the last step."""
    return dict.fromkeys(range(first, last + 1), position)


def drift(start: int, *, hops: Sequence[int], hold: int, first: int) -> dict[int, int]:
    """A path that holds every position for `hold` steps, then hops on."""
    positions = np.repeat(start + np.cumsum([0, *hops]), hold)
    return {first + at: int(position) for at, position in enumerate(positions)}


def canvases_of(masked: np.ndarray, *, prompt_length: int = 0, sample: int = 0) -> Canvases:
    """Canvases from what is masked; ids are positions, and -5 under a mask."""
    steps, keys = masked.shape
    return Canvases(
        sample=sample,
        prompt_length=prompt_length,
        ids=np.where(masked, -5, np.arange(keys)),
        masked=masked,
        committed=masked & ~np.concatenate([masked[1:], masked[-1:]]),
        confidence=np.full((steps, keys), np.nan, np.float32),
        blocks=np.full((steps, 2), -1),
    )


def layer_of(received: np.ndarray, *, groups: Mapping[str, Received] | None = None, every: int = 1) -> LayerArrays:
    """A layer of square bidirectional attention, stored every so many steps."""
    steps, heads, keys = received.shape
    return LayerArrays(
        layer=0,
        steps=np.arange(steps) * every,
        heads=np.arange(heads),
        received=received,
        expected=np.ones((steps, 1, keys), np.float32),
        viewers=np.full((steps, 1, keys), keys, np.float32),
        groups=groups or {},
    )
