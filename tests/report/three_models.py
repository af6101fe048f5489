"""Synthetic traces that look like the real ones: attention is a softmax under the true mask, with planted sinks.

llada   blocks from left to right; a sink drifts with the block; a split head; a flicker; sinks on newlines
dream   unmasks from right to left; its sink goes with the frontier
llama   causal, grows by one token a step; everything looks at position 0
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sinklens.sinks.arrays import Canvases, LayerArrays, MemoryTrace, Received

MASK = 0
TEXTS = {
    0: "<|mask|>", 1: "\n", 2: ".", 3: " the", 4: "中", 5: "😀", 6: "$x_1$", 7: "&", 8: " ", 9: "<|eot_id|>", 10: "--",
    11: "50%", 12: "\\frac{a}{b}", 13: "é",
}  # fmt: skip
CLASSES = {0: "mask", 1: "newline", 2: "punctuation", 8: "space", 9: "special"}


@dataclass(frozen=True, kw_only=True)
class Size:
    prompt: int = 12
    length: int = 24
    block: int = 12
    layers: int = 3
    heads: int = 4
    samples: int = 2

    @property
    def keys(self) -> int:
        return self.prompt + self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedTrace(MemoryTrace):
    """With stored maps, as a trace on disk may have."""

    stored: dict[int, list[tuple[int, int, int, np.ndarray]]] = field(default_factory=dict)

    def maps(self, sample: int) -> list[tuple[int, int, int, np.ndarray]]:
        return self.stored.get(sample, [])


def canvases_of(size: Size, order: np.ndarray, *, sample: int, blocks: bool, rng: np.random.Generator) -> Canvases:
    """One position of `order` is unmasked a step."""
    final = rng.choice([1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], size.keys)
    final[0] = 9
    steps = len(order)
    masked = np.zeros((steps, size.keys), bool)
    committed = np.zeros_like(masked)
    hidden = np.arange(size.keys) >= size.prompt
    spans = np.full((steps, 2), -1)
    for step, position in enumerate(order):
        masked[step] = hidden
        committed[step, position] = True
        hidden = hidden & (np.arange(size.keys) != position)
        if blocks:
            first = size.prompt + (position - size.prompt) // size.block * size.block
            spans[step] = first, first + size.block
    return Canvases(
        sample=sample, prompt_length=size.prompt, ids=np.where(masked, MASK, final), masked=masked, committed=committed,
        confidence=np.full(masked.shape, np.nan, np.float32), blocks=spans, tokens=TEXTS, classes=CLASSES,
    )  # fmt: skip


def growing_canvases(size: Size, *, sample: int, rng: np.random.Generator) -> Canvases:
    final = rng.choice([1, 2, 3, 3, 3, 7], size.keys)
    final[0] = 9
    there = np.arange(size.keys) < size.prompt + np.arange(size.length)[:, None]
    return Canvases(
        sample=sample, prompt_length=size.prompt, ids=np.where(there, final, -1), masked=np.zeros(there.shape, bool),
        committed=np.arange(size.keys) == size.prompt + np.arange(size.length)[:, None],
        confidence=np.full(there.shape, np.nan, np.float32), blocks=np.full((size.length, 2), -1), tokens=TEXTS,
        classes=CLASSES,
    )  # fmt: skip


def attention(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Softmax over visible keys, [..., query, key]; queries that see nothing give nothing."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True)) * visible
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def reading(maps: np.ndarray, visible: np.ndarray, counted: np.ndarray) -> Received:
    """Sums over the counted queries [step, query] of maps [step, head, query, key], visible [step, query, key]."""
    seen = visible & counted[:, :, None]
    width = np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    exists = visible.any(axis=1)[:, None]
    return Received(
        received=np.where(exists, (maps * counted[:, None, :, None]).sum(axis=2), np.nan).astype(np.float32),
        expected=(seen / width).sum(axis=1)[:, None].astype(np.float32),
        viewers=seen.sum(axis=1)[:, None].astype(np.float32),
    )


def layer_of(
    number: int, logits: np.ndarray, canvases: Canvases, *, causal: bool, every: int
) -> tuple[LayerArrays, np.ndarray]:
    there = canvases.ids >= 0
    visible = there[:, :, None] & there[:, None, :]
    if causal:
        visible = visible & np.tril(np.ones(visible.shape[1:], bool))
    maps = attention(logits, visible[:, None])
    whole = reading(maps, visible, there)
    groups = {
        "masked": reading(maps, visible, canvases.masked),
        "unmasked": reading(maps, visible, there & ~canvases.masked),
    }
    steps = np.arange(0, len(there), every)
    picked = {
        name: Received(received=one.received[steps], expected=one.expected[steps], viewers=one.viewers[steps])
        for name, one in {"all": whole, **({} if causal else groups)}.items()
    }
    everything = picked.pop("all")
    return (
        LayerArrays(
            layer=number, steps=steps, heads=np.arange(logits.shape[1]), groups=picked, received=everything.received,
            expected=everything.expected, viewers=everything.viewers,
        ),
        maps,
    )  # fmt: skip


def plant(kind: str, size: Size, canvases: Canvases, *, layer: int, rng: np.random.Generator) -> np.ndarray:
    """Logits [step, head, query, key]: noise, and a sink of its own in each head."""
    steps = len(canvases.ids)
    logits = rng.normal(0, 0.7, (steps, size.heads, size.keys, size.keys)).astype(np.float32)
    strength = 2.5 + 1.5 * layer / max(size.layers - 1, 1)
    at = np.arange(steps)
    if kind == "llama":
        logits[..., 0] += strength + 1
        return logits
    committed = canvases.committed.argmax(axis=1)
    path = np.maximum.accumulate(committed) if kind == "llada" else committed
    path = path // 3 * 3  # stays for some steps, then goes on
    for head in range(size.heads):
        role = (head + layer) % 4
        if role == 0:
            logits[at, head, :, path] += strength
        elif role == 1:
            logits[:, head, :, 0] += strength
        elif role == 2:  # masked queries look ahead, the others back
            masked = canvases.masked[:, :, None]
            logits[:, head, :, 3:4] += np.where(masked, 0, strength)
            logits[:, head, :, -3:-2] += np.where(masked, strength, 0)
        else:
            logits[:, head] += strength * 0.8 * (canvases.ids == 1)[:, None]
            step = steps // 2 + layer
            logits[step, head, :, size.prompt + 2] += strength + 0.5
    return logits


def model(kind: str, size: Size | None = None, *, maps: tuple[str, ...] = (), every: int = 1) -> MappedTrace:
    """maps: LAYER.HEAD@STEP, as the command line takes them."""
    size = size or Size()
    contents, texts, stored = {}, {}, {}
    for sample in range(size.samples):
        rng = np.random.default_rng([sample, len(kind), ord(kind[-1])])
        canvases = _canvases(kind, size, sample=sample, rng=rng)
        texts[sample] = canvases
        stored[sample] = []
        for number in range(size.layers):
            logits = plant(kind, size, canvases, layer=number, rng=rng)
            contents[sample, number], full = layer_of(number, logits, canvases, causal=kind == "llama", every=every)
            stored[sample] += [(step, layer, head, _cut(full[step, head], canvases.ids[step] >= 0))
                               for layer, head, step in _places(maps) if layer == number]  # fmt: skip
    return MappedTrace(contents=contents, texts=texts, name=kind, causal=kind == "llama", stored=stored)


def thin(trace: MappedTrace) -> MappedTrace:
    """The same as a trace of detail "sinks": what is at most one fair share above the others holds its common mean."""
    contents = {}
    for place, layer in trace.contents.items():
        share = layer.fair_share
        count = (~np.isnan(share)).sum(axis=-1, keepdims=True)
        above = share - (np.nansum(share, axis=-1, keepdims=True) - share) / (count - 1)
        kept = above > 1
        rest = ~kept & ~np.isnan(share)
        mean = np.where(rest, share, 0).sum(axis=-1, keepdims=True) / np.maximum(rest.sum(axis=-1, keepdims=True), 1)
        thinned = np.where(rest, mean, share) * layer.expected
        contents[place] = LayerArrays(
            layer=layer.layer, steps=layer.steps, heads=layer.heads, received=thinned.astype(np.float32),
            expected=layer.expected, viewers=layer.viewers, kept=kept,
        )  # fmt: skip
    return MappedTrace(contents=contents, texts=trace.texts, name=trace.name, causal=trace.causal, detail="sinks")


def _canvases(kind: str, size: Size, *, sample: int, rng: np.random.Generator) -> Canvases:
    if kind == "llama":
        return growing_canvases(size, sample=sample, rng=rng)
    if kind == "dream":
        late = np.arange(size.keys - 1, size.prompt - 1, -1)
        return canvases_of(size, late, sample=sample, blocks=False, rng=rng)
    blocks = np.arange(size.prompt, size.keys).reshape(-1, size.block)
    order = np.concatenate([_nearly_sorted(block, rng) for block in blocks])
    return canvases_of(size, order, sample=sample, blocks=True, rng=rng)


def _nearly_sorted(block: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return block[np.argsort(np.arange(len(block)) + rng.normal(0, 2, len(block)))]


def _cut(attention_map: np.ndarray, there: np.ndarray) -> np.ndarray:
    return attention_map[there][:, there]


def _places(maps: tuple[str, ...]) -> Iterator[tuple[int, int, int]]:
    for one in maps:
        place, step = one.split("@")
        layer, head = place.split(".")
        yield int(layer), int(head), int(step)


def page_sized() -> list[Any]:
    """Three models as large as a figure of the paper needs to look right."""
    size = Size(prompt=32, length=64, block=16, layers=6, heads=8, samples=3)
    return [
        model("llada", size, maps=("2.2@24", "2.2@25", "2.2@26")),
        model("dream", size, maps=("1.3@20", "1.3@21", "1.3@22")),
        model("llama", size, maps=("3.1@40", "3.1@41")),
    ]
