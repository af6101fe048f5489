"""Stays: how long one key position of one head is a sink without a break.

The excess of a key is its fair share minus the mean of the others. A stay is born in the first step above epsilon and
is alive while the excess is above epsilon / 2: a score that wavers around the threshold is one stay and not many. A
single step at or below epsilon / 2 between two above it is bridged, unless the key is not there in that step.

Steps are counted as they are stored, 0 to the number of stored steps less one.
"""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, kw_only=True, eq=False)
class Stays:
    """All stays of a layer, by head, then birth, then position."""

    head: Int[np.ndarray, " stay"]  # index of the head
    position: Int[np.ndarray, " stay"]
    first: Int[np.ndarray, " stay"]  # stored step of the birth
    last: Int[np.ndarray, " stay"]  # last one alive
    gain: Float[np.ndarray, " stay"]  # rise of the excess across the birth; 0: no birth was seen
    loss: Float[np.ndarray, " stay"]  # drop across the death; 0: no death was seen

    def __len__(self) -> int:
        return len(self.head)

    def take(self, which: Int[np.ndarray, " chosen"] | Bool[np.ndarray, " stay"]) -> "Stays":
        """Some of them, in the order asked for."""
        return Stays(**{one.name: getattr(self, one.name)[which] for one in fields(self)})


def find_stays(
    excess: Float[np.ndarray, "step head key"],
    *,
    eligible: Bool[np.ndarray, "step heads_or_1 key"],
    epsilon: float,
) -> Stays:
    """The stays of every head and key. eligible: where a stay may be born (enough queries see the key).

    gain and loss reach one step to either side of the event, as hand-offs do: a sink that is lost in two steps,
    8 to 2 to 0, is alive at 2, and has lost what it had at 8. They count from epsilon / 2 up, the level of a sink
    that is dead: below it are other tokens, and a trace of detail "sinks" does not hold what they had.
    """
    above = excess > epsilon
    above &= eligible
    heads, keys = np.nonzero(above.any(axis=0))  # only these columns are looked at again
    columns = np.ascontiguousarray(excess[:, heads, keys].T)
    pair, first, last = _runs(columns, above[:, heads, keys].T, epsilon / 2)
    score = np.fmax(columns, epsilon / 2)  # NaN too: a key that is not there is no sink
    stays = Stays(
        head=heads[pair],
        position=keys[pair],
        first=first,
        last=last,
        gain=_gain(score, pair, first=first, last=last),
        loss=_loss(score, pair, first=first, last=last),
    )
    return stays.take(np.lexsort((stays.position, stays.first, stays.head)))


def _runs(
    columns: Float[np.ndarray, "pair step"], above: Bool[np.ndarray, "pair step"], low: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column, first and last step of every run above `low`, cut to begin where it first is `above`."""
    pairs, steps = columns.shape
    warm = columns > low
    gap = warm[:, :-2] & warm[:, 2:] & ~np.isnan(columns[:, 1:-1])
    warm[:, 1:-1] |= gap
    edges = np.diff(np.pad(warm, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    pair, begin = np.nonzero(edges == 1)
    end = np.nonzero(edges == -1)[1] - 1  # row by row, as the beginnings: they belong together
    births = np.flatnonzero(above)
    found = np.searchsorted(births, pair * steps + begin)
    birth = np.append(births, pairs * steps)[found]
    born = birth <= pair * steps + end
    return pair[born], birth[born] % steps, end[born]


def _gain(score: np.ndarray, pair: np.ndarray, *, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    high = np.maximum(score[pair, first], score[pair, np.minimum(first + 1, last)])
    low = np.minimum(score[pair, np.maximum(first - 1, 0)], score[pair, np.maximum(first - 2, 0)])
    return np.where(first > 0, np.maximum(high - low, 0), 0).astype(np.float64)


def _loss(score: np.ndarray, pair: np.ndarray, *, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    end = score.shape[1] - 1
    high = np.maximum(score[pair, last], score[pair, np.maximum(last - 1, first)])
    low = np.minimum(score[pair, np.minimum(last + 1, end)], score[pair, np.minimum(last + 2, end)])
    return np.where(last < end, np.maximum(high - low, 0), 0).astype(np.float64)
