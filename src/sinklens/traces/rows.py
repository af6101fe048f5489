"""What a recorder hands to the writer: one StepRows a forward, one SampleEnd a sample. numpy only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sinklens.errors import UsageError


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupRows:
    """Attention received from some of the queries, over the layers of one step."""

    received: Float[np.ndarray, "layer head key"]  # column sums; NaN: padding
    expected: Float[np.ndarray, "layer heads_or_1 key"]  # the same for uniform attention; 0: nobody may look
    viewers: Shaped[np.ndarray, "layer heads_or_1 key"]  # how many of these queries may see the key


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRows(GroupRows):
    """The attention of one forward, stacked over layers; `received` is from all queries (so far, under a cache)."""

    layers: Sequence[int]  # their numbers, along the first axis
    heads: Sequence[int]  # likewise, along the second
    queries: int  # counted in `received`
    groups: Mapping[str, GroupRows] = field(default_factory=dict)  # "masked" and "unmasked", or "last_row"
    key_norm: Float[np.ndarray, "layer kv_head key"] | None = None
    value_norm: Float[np.ndarray, "layer kv_head key"] | None = None
    output_norm: Float[np.ndarray, "layer head key"] | None = None
    hidden_norm: Float[np.ndarray, "layer key"] | None = None
    output_rank: Float[np.ndarray, "layer head"] | None = None
    output_size: Float[np.ndarray, "layer head"] | None = None
    null_mass: Float[np.ndarray, "layer head"] | None = None
    maps: Mapping[tuple[int, int], Float[np.ndarray, "_ key"]] = field(default_factory=dict)  # (layer, head)
    impl: str | None = None  # of the received sums
    kernel: str | None = None  # of the forward

    def __post_init__(self) -> None:
        wanted = (len(self.layers), len(self.heads), self.received.shape[-1])
        for name, rows in self.readings.items():
            if rows.received.shape != wanted:
                raise UsageError(
                    f"{name or 'received'} has shape {rows.received.shape}; {wanted[0]} layers, {wanted[1]} heads and "
                    f"{wanted[2]} keys make {wanted}: [layer, head, key]"
                )

    @property
    def readings(self) -> dict[str | None, GroupRows]:
        """From all queries (None), and from each group."""
        return {None: self, **dict(self.groups.items())}


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRows:
    """One forward: what it read, what it decided, and its attention where that is stored."""

    step: int
    ids: Int[np.ndarray, " key"]  # what the forward read
    masked: Bool[np.ndarray, " key"]
    committed: Int[np.ndarray, " commit"]  # positions; autoregressive: the one behind the last key
    committed_ids: Int[np.ndarray, " commit"]
    confidence: Float[np.ndarray, " position"]  # NaN: none. May reach past the keys, as `committed` does
    block: tuple[int, int] | None = None  # first position and the one behind the last
    seconds: float | None = None
    attention: AttentionRows | None = None  # None: every N-th step is stored, and this is another

    @property
    def positions(self) -> int:
        """Positions this step speaks of: its keys, and what it committed behind them."""
        return max(len(self.ids), len(self.confidence), int(self.committed.max(initial=-1)) + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleEnd:
    """What is known of a sample once it has run."""

    prompt: str | None  # None: the prompt came as ids
    text: str | None  # None: no tokenizer
    prompt_length: int
    ids: Int[np.ndarray, " position"]  # the final ones, prompt included
    tokens: Mapping[int, tuple[str | None, str | None]]  # every id that occurs: its text and its class
