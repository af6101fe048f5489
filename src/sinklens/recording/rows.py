"""From the numbers of a step to its rows in a trace. numpy only: it may be done in another process, without torch.

An autoregressive run with a KV cache computes one new query a step. Earlier rows of attention do not change, so column
sums over all queries so far are the running sum of what the steps give; `received` is that sum, `last_row` the newest
row alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sinklens.recording.running import RunningSums
from sinklens.recording.wanted import Wanted
from sinklens.traces.rows import AttentionRows, GroupRows, StepRows
from sinklens.types import ModelSpec

SUMS = {"received": "by_group", "expected": "expected_by_group", "viewers": "viewers_by_group"}  # over query groups
NORMS = ("key_norm", "value_norm", "output_norm", "output_rank", "output_size")

Some = slice | list[int]  # of the heads; a slice makes no copy


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionNumbers:
    """What was measured in one forward, of a batch of one row."""

    arrays: Mapping[str, Float[np.ndarray, "layer _ *rest"]]  # fields of the records, those that all layers have
    hidden: Float[np.ndarray, "block batch query"] | None = None  # where there is one block a layer
    maps: Mapping[tuple[int, int], Float[np.ndarray, "query key"]] = field(default_factory=dict)
    null_mass: Float[np.ndarray, "layer batch head"] | None = None
    groups: tuple[str, ...]
    queries: int
    impl: str
    kernel: str


@dataclass(frozen=True, kw_only=True, eq=False)
class StepNumbers:
    """One forward and what was decided from it, of a batch of one row."""

    index: int
    canvas: Int[np.ndarray, " position"]  # after the step
    committed: Bool[np.ndarray, " position"]
    confidence: Float[np.ndarray, " position"]
    block: tuple[int, int] | None
    computed: tuple[int, int] | None  # first position and the one behind the last; None: all
    seconds: float
    attention: AttentionNumbers | None  # None: not observed


class RowMaker:
    """Makes the rows of one run, step by step, in order."""

    def __init__(self, spec: ModelSpec, wanted: Wanted, prompt: Int[np.ndarray, " position"]) -> None:
        self._wanted, self._causal = wanted, spec.causal
        self._mask_id = None if spec.causal else spec.mask_id
        every = wanted.heads == tuple(range(spec.heads))
        self._heads: Some = slice(None) if every else list(wanted.heads)
        self._canvas = prompt
        self._sums = RunningSums()  # of an autoregressive run

    def rows(self, numbers: StepNumbers) -> StepRows:
        after, committed = numbers.canvas, numbers.committed
        before = self._before(numbers.index, after, committed)
        self._canvas = after
        places = (committed & ~self._is_masked(after)).nonzero()[0]  # a proposed mask is no token
        return StepRows(
            step=numbers.index,
            ids=before.astype(np.int32),
            masked=self._is_masked(before),
            committed=places.astype(np.int32),
            committed_ids=after[places].astype(np.int32),
            confidence=numbers.confidence,
            block=numbers.block,
            seconds=numbers.seconds,
            attention=None if numbers.attention is None else self._attention(numbers, keys=len(before)),
        )

    def _before(
        self, index: int, after: Int[np.ndarray, " position"], committed: Bool[np.ndarray, " position"]
    ) -> Int[np.ndarray, " key"]:
        """What the forward read: the canvas of the step before; at first the prompt, or the canvas it began with."""
        if self._causal or index:
            return self._canvas
        return after if self._mask_id is None else np.where(committed, self._mask_id, after)

    def _is_masked(self, ids: Int[np.ndarray, " position"]) -> Bool[np.ndarray, " position"]:
        return np.zeros(ids.shape, bool) if self._mask_id is None else ids == self._mask_id

    def _attention(self, numbers: StepNumbers, *, keys: int) -> AttentionRows | None:
        """The arrays of this step, summed over the steps so far in a causal run; None: not to be kept."""
        seen, heads = numbers.attention, self._heads
        assert seen is not None
        parts = {name: seen.arrays[field][:, :, 0] for name, field in SUMS.items()}
        sums = {name: values.sum(1) for name, values in parts.items()}
        if seen.null_mass is not None:
            sums["null_mass"] = seen.null_mass[:, 0, :, None]
        queries, hidden = seen.queries, self._hidden(seen)
        if self._causal:
            self._sums.begin(queries, keys)
            sums = {name: self._sums.add(name, values) for name, values in sums.items()}
            queries = self._sums.queries
            hidden = None if hidden is None else self._sums.place("hidden", hidden)
        elif hidden is not None and numbers.computed is not None:
            hidden = _placed(hidden, numbers.computed, keys=keys)
        if not self._wanted.stores(numbers.index):
            return None
        norms = self._norms(seen)
        if self._causal:
            norms = {name: self._carried(name, values) for name, values in norms.items()}
        null_mass = sums.get("null_mass")
        return AttentionRows(
            layers=self._wanted.layers,
            heads=self._wanted.heads,
            received=_some(sums["received"], heads),
            expected=_some(sums["expected"], heads),
            viewers=_some(sums["viewers"], heads),
            queries=queries,
            groups={
                group: GroupRows(**{name: _some(values[:, i], heads) for name, values in parts.items()})
                for i, group in enumerate(seen.groups)
            },
            hidden_norm=hidden,
            maps=seen.maps,
            impl=seen.impl,
            kernel=seen.kernel,
            null_mass=None if null_mass is None else null_mass[:, heads, 0],
            **norms,
        )

    def _norms(self, seen: AttentionNumbers) -> dict[str, np.ndarray | None]:
        """What was measured beside the sums; None where the model has no such thing, or it was not asked for."""
        found: dict[str, np.ndarray | None] = {}
        for name in NORMS:
            values = seen.arrays.get(name)
            some = self._heads if name.startswith("output") else slice(None)
            found[name] = None if values is None else values[:, 0][:, some]
        return found

    def _carried(self, name: str, values: np.ndarray | None) -> np.ndarray | None:
        """Norms of keys outlive the window of a cache, as the sums do."""
        return values if values is None or values.ndim != 3 else self._sums.carry(name, values)

    def _hidden(self, seen: AttentionNumbers) -> Float[np.ndarray, "layer query"] | None:
        """Of the layers that are kept."""
        if seen.hidden is None:
            return None
        found: np.ndarray = seen.hidden[list(self._wanted.layers), 0]
        return found


def _placed(
    values: Float[np.ndarray, "layer query"], computed: tuple[int, int], *, keys: int
) -> Float[np.ndarray, "layer key"]:
    """Of the positions a step computed; NaN for those that a cache holds."""
    placed = np.full((len(values), keys), np.nan, values.dtype)
    placed[:, slice(*computed)] = values
    return placed


def _some(values: Shaped[np.ndarray, "layer heads_or_1 key"], heads: Some) -> Shaped[np.ndarray, "layer some key"]:
    """Of the heads that are kept, where heads differ."""
    return values if values.shape[1] == 1 else values[:, heads]
