"""What the analyses read: one layer of one sample as arrays, its canvases, and what makes an object a trace.

Everything here is numpy. A trace on disk (`sinklens.open_trace`) and a trace in memory (`MemoryTrace`, from arrays
of your own) are the same to every analysis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.detect import excess

READINGS = ("received", "masked", "unmasked", "last_row")


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """Attention received from some of the queries."""

    received: Float[np.ndarray, "step head key"]  # column sums; NaN: no such key at that step, or padding
    expected: Float[np.ndarray, "step heads_or_1 key"]  # the same for uniform attention; 0: nobody may look
    viewers: Float[np.ndarray, "step heads_or_1 key"]  # how many of these queries may see the key

    @cached_property
    def fair_share(self) -> Float[np.ndarray, "step head key"]:
        """Received / expected: 1 is uniform attention; NaN where nobody may look."""
        return _ratio(self.received, self.expected)

    @property
    def mass(self) -> Float[np.ndarray, "step head key"]:
        """Received / viewers: a share between 0 and 1, comparable between lengths."""
        return _ratio(self.received, self.viewers)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerArrays(Received):
    """One layer of one sample, over the steps that were stored."""

    layer: int
    steps: Int[np.ndarray, " step"]  # their numbers
    heads: Int[np.ndarray, " head"]  # likewise
    groups: Mapping[str, Received] = field(default_factory=dict)  # "masked" and "unmasked", or "last_row"
    kept: Bool[np.ndarray, "step head key"] | None = None  # None: all. Else the others hold their common mean
    key_norm: Float[np.ndarray, "step kv_head key"] | None = None
    value_norm: Float[np.ndarray, "step kv_head key"] | None = None
    output_norm: Float[np.ndarray, "step head key"] | None = None  # of v_j W_o of that head
    hidden_norm: Float[np.ndarray, "step key"] | None = None  # of the hidden state after the layer's block
    output_rank: Float[np.ndarray, "step head"] | None = None  # effective rank of the head's output over queries
    output_size: Float[np.ndarray, "step head"] | None = None  # root mean square of its norm behind W_o
    null_mass: Float[np.ndarray, "step head"] | None = None  # what a null term of the softmax took

    @cached_property
    def excess(self) -> Float[np.ndarray, "step head key"]:
        """Fair share minus the mean of the other visible keys; NaN where a key is not there, or is the only one."""
        above: np.ndarray = excess(self.received, self.expected)
        return above

    def one_head(self, index: int) -> "LayerArrays":
        """Attention received in one head alone, without groups and norms."""
        one = slice(index, index + 1)
        return LayerArrays(
            layer=self.layer,
            steps=self.steps,
            heads=self.heads[one],
            received=self.received[:, one],
            expected=self.expected[:, one] if self.expected.shape[1] > 1 else self.expected,
            viewers=self.viewers[:, one] if self.viewers.shape[1] > 1 else self.viewers,
            kept=None if self.kept is None else self.kept[:, one],
        )

    def reading(self, name: str) -> "LayerArrays":
        """The same layer, with another reading in the place of `received`: one of READINGS."""
        if name == "received":
            return self
        if name not in self.groups:
            known = ", ".join(repr(one) for one in ("received", *self.groups))
            raise UsageError(f"reading {name!r} is not in this trace; it has {known}")
        group = self.groups[name]
        return replace(self, received=group.received, expected=group.expected, viewers=group.viewers, groups={})


@dataclass(frozen=True, kw_only=True, eq=False)
class Canvases:
    """What stood at every position when each forward ran, and what it decided. Every step is here."""

    sample: int
    prompt_length: int
    ids: Int[np.ndarray, "step key"]  # what the forward read; -1: no such position yet
    masked: Bool[np.ndarray, "step key"]
    committed: Bool[np.ndarray, "step key"]  # got their token in this step. Autoregressive: the next position
    confidence: Float[np.ndarray, "step key"]  # NaN where there is none
    blocks: Int[np.ndarray, "step 2"]  # first position and the one behind the last; -1: no blocks
    tokens: Mapping[int, str] = field(default_factory=dict)  # id to text; empty without a tokenizer
    classes: Mapping[int, str] = field(default_factory=dict)  # id to token class (sinks/tokens.py)

    def label(self, token: int) -> str:
        """The text of an id, or the id itself."""
        return self.tokens.get(token, str(token))


@runtime_checkable
class TraceLike(Protocol):
    """A trace, on disk or in memory."""

    @property
    def name(self) -> str:
        """What to call it in a figure: the model, usually."""

    @property
    def causal(self) -> bool: ...

    @property
    def detail(self) -> str:
        """`full`, or `sinks`: only what exceeds the others' mean by one fair share."""

    @property
    def samples(self) -> Sequence[int]: ...

    @property
    def layers(self) -> Sequence[int]: ...

    @property
    def heads(self) -> Sequence[int]: ...

    def canvases(self, sample: int) -> Canvases: ...

    def layer(self, sample: int, layer: int, *, groups: bool = False, norms: bool = False) -> LayerArrays:
        """One layer; with the groups and the norms only where they are asked for, because they are as large."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryTrace:
    """A trace from arrays that are already there: every (sample, layer), and the canvases of every sample."""

    contents: Mapping[tuple[int, int], LayerArrays]
    texts: Mapping[int, Canvases]
    name: str = "arrays"
    causal: bool = False
    detail: str = "full"

    @property
    def samples(self) -> list[int]:
        return sorted({sample for sample, _ in self.contents})

    @property
    def layers(self) -> list[int]:
        return sorted({layer for _, layer in self.contents})

    @property
    def heads(self) -> list[int]:
        return [int(head) for head in next(iter(self.contents.values())).heads]

    def canvases(self, sample: int) -> Canvases:
        return self.texts[sample]

    def layer(self, sample: int, layer: int, *, groups: bool = False, norms: bool = False) -> LayerArrays:
        return self.contents[sample, layer]


def from_arrays(
    received: Any, expected: Any = None, *, viewers: Any = None, masked: Any = None, ids: Any = None
) -> MemoryTrace:
    """A trace of one sample from `received` [step, layer, head, key], numpy or torch, and what stood there.

    expected None: square bidirectional attention, 1 for every key. masked [step, key]: none by default.
    ids [step, key]: position numbers by default, so that every position is a token of its own.
    """
    sums = _floats(received)
    if sums.ndim != 4:
        raise UsageError(f"received has shape {sums.shape}; expected [step, layer, head, key]")
    steps, layers, heads, keys = sums.shape
    uniform = _beside(sums, np.float32(1) if expected is None else expected, "expected")
    seen_by = _beside(sums, np.float32(keys) if viewers is None else viewers, "viewers")
    shape = (*sums.shape[:2], max(uniform.shape[2], seen_by.shape[2]), keys)
    uniform, seen_by = np.broadcast_to(uniform, shape), np.broadcast_to(seen_by, shape)
    hidden = np.zeros((steps, keys), bool) if masked is None else _per_step(masked, steps, keys, "masked").astype(bool)
    canvases = Canvases(
        sample=0,
        prompt_length=0,
        ids=np.tile(np.arange(keys), (steps, 1)) if ids is None else _per_step(ids, steps, keys, "ids"),
        masked=hidden,
        committed=hidden & ~np.concatenate([hidden[1:], hidden[-1:]]),
        confidence=np.full((steps, keys), np.nan, np.float32),
        blocks=np.full((steps, 2), -1),
    )
    contents = {
        (0, layer): LayerArrays(
            layer=layer,
            steps=np.arange(steps),
            heads=np.arange(heads),
            received=sums[:, layer],
            expected=uniform[:, layer],
            viewers=seen_by[:, layer],
        )
        for layer in range(layers)
    }
    return MemoryTrace(contents=contents, texts={0: canvases})


def among(what: str, chosen: Sequence[int] | None, there: Sequence[int]) -> list[int]:
    """The numbers asked for, all of them by default; one that the trace does not have is refused."""
    strange = [] if chosen is None else [one for one in chosen if one not in there]
    if strange:
        raise UsageError(f"{what} {strange} are not in this trace; it has {list(there)}")
    if not there:
        raise UsageError(f"the trace has no {what} yet; wait for one, or resume it")
    return list(there if chosen is None else dict.fromkeys(chosen))


def _beside(sums: np.ndarray, values: Any, name: str) -> np.ndarray:
    """[step, layer, heads_or_1, key] from a number, [key], or four axes of which each may be 1."""
    given = _floats(values)
    whole = sums.shape
    if given.ndim not in (0, 1, 4) or any(
        a not in (1, b) for a, b in zip(given.shape[::-1], whole[::-1], strict=False)
    ):
        raise UsageError(
            f"{name} has shape {given.shape} beside received {whole}; expected [step, layer, head, key] with 1 where "
            "it is the same for all, or [key]"
        )
    heads = given.shape[2] if given.ndim == 4 else 1
    return np.broadcast_to(given, (*whole[:2], heads, whole[3]))


def _per_step(values: Any, steps: int, keys: int, name: str) -> np.ndarray:
    given = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if given.shape != (steps, keys):
        raise UsageError(f"{name} has shape {given.shape}; expected [step, key], here {(steps, keys)}")
    return given


def _floats(values: Any) -> np.ndarray:
    """numpy float32 of an array or a tensor on any device, without importing torch."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, np.float32)


def _ratio(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by > 0, values / by, np.float32(np.nan)).astype(np.float32)
