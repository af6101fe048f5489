"""A recorder without a model: attention of random logits with planted sinks, the same for the same numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.traces.rows import AttentionRows, GroupRows, SampleEnd, StepRows
from sinklens.traces.write import TraceWriter

MASK_ID = 99


def manifest(
    *, causal: bool = False, detail: str = "full", layers: int = 3, heads: int = 4, **more: Any
) -> dict[str, Any]:
    model = {"name": "synthetic", "family": "none", "causal": causal, "layers": layers, "heads": heads, "kv_heads": 2}
    plain = {
        "fingerprint": {"seed": 0, "sampler": {"steps": 4}},
        "model": model,
        "detail": detail,
        "every": 1,
        "layers": list(range(layers)),
        "heads": list(range(heads)),
    }
    return plain | more


def sums_of(maps: np.ndarray, visible: np.ndarray, counted: np.ndarray) -> GroupRows:
    """Column sums of maps [layer, head, query, key] over the counted queries."""
    layers, _, _, keys = maps.shape
    uniform = np.where(counted[:, None], visible / visible.sum(-1, keepdims=True), 0).sum(0)
    viewers = (visible & counted[:, None]).sum(0)
    return GroupRows(
        received=maps[:, :, counted].sum(2).astype(np.float32),
        expected=np.broadcast_to(uniform, (layers, 1, keys)).astype(np.float32),
        viewers=np.broadcast_to(viewers, (layers, 1, keys)).astype(np.float32),
    )


def softmax_maps(rng: np.random.Generator, *, shape: tuple[int, ...], visible: np.ndarray, sink: int) -> np.ndarray:
    logits = rng.standard_normal(shape)
    logits[..., sink] += rng.uniform(2, 5, shape[:2])[..., None]
    weights = np.exp(logits) * visible
    return weights / weights.sum(-1, keepdims=True)


def attention(
    rng: np.random.Generator,
    masked: np.ndarray,
    *,
    causal: bool,
    layers: int,
    heads: int,
    sink: int,
    norms: bool = True,
    with_maps: bool = False,
) -> AttentionRows:
    keys = len(masked)
    visible = np.tril(np.ones((keys, keys), bool)) if causal else np.ones((keys, keys), bool)
    maps = softmax_maps(rng, shape=(layers, heads, keys, keys), visible=visible, sink=sink)
    newest = np.arange(keys) == keys - 1
    named = {"last_row": newest} if causal else {"masked": masked, "unmasked": ~masked}
    everything = sums_of(maps, visible, np.ones(keys, bool))

    def lengths(*shape: int) -> np.ndarray:
        return rng.lognormal(1, 0.5, shape).astype(np.float32)

    extra: dict[str, Any] = {}
    if norms:
        extra = {
            "key_norm": lengths(layers, 2, keys),
            "value_norm": lengths(layers, 2, keys),
            "output_norm": lengths(layers, heads, keys),
            "hidden_norm": lengths(layers, keys),
            "output_rank": lengths(layers, heads),
            "output_size": lengths(layers, heads),
        }
    return AttentionRows(
        layers=range(layers),
        heads=range(heads),
        **vars(everything),
        queries=keys,
        groups={name: sums_of(maps, visible, counted) for name, counted in named.items()},
        maps={(1, 2): maps[1, 2].astype(np.float32)} if with_maps else {},
        impl="synthetic",
        kernel="none",
        **extra,
    )


def steps_of(
    sample: int,
    *,
    causal: bool = False,
    steps: int = 4,
    keys: int = 12,
    layers: int = 3,
    heads: int = 4,
    every: int = 1,
    norms: bool = True,
    with_maps: bool = False,
) -> Iterator[StepRows]:
    """Diffusion: `keys` all the way, one position committed a step. Autoregressive: grows up to `keys`."""
    rng = np.random.default_rng([sample, steps, keys])
    ids = rng.integers(0, 90, keys)
    canvas = np.where(np.arange(keys) < keys - steps, ids, MASK_ID)
    for step in range(steps):
        position = keys - steps + step
        now = canvas[:position] if causal else canvas.copy()
        masked = now == MASK_ID
        confidence = np.full(keys, np.nan, np.float32)
        confidence[position] = rng.uniform(0.2, 1)
        confidence = confidence[: position + 1] if causal else confidence
        seen = attention(
            rng,
            masked,
            causal=causal,
            layers=layers,
            heads=heads,
            sink=step % 2 if not causal else 0,
            norms=norms,
            with_maps=with_maps,
        )
        yield StepRows(
            step=step,
            ids=now,
            masked=masked,
            committed=np.array([position]),
            committed_ids=ids[[position]],
            confidence=confidence,
            block=None if causal else (keys - steps, keys),
            seconds=float(rng.uniform(0.01, 0.02)) + step,
            attention=seen if step % every == 0 else None,
        )
        canvas[position] = ids[position]


def end_of(sample: int, *, keys: int = 12, steps: int = 4, **_: Any) -> SampleEnd:
    ids = np.random.default_rng([sample, steps, keys]).integers(0, 90, keys)
    tokens = {int(one): (f"<{one}>", "word" if one % 2 else None) for one in [*ids, MASK_ID]}
    return SampleEnd(prompt=f"prompt {sample}", text=None, prompt_length=keys - steps, ids=ids, tokens=tokens)


def write_samples(writer: TraceWriter, **options: Any) -> None:
    for number in writer.missing:
        with writer.sample(number) as sample:
            for rows in steps_of(number, **options):
                sample.add(rows)
            sample.end(end_of(number, **options))


def write_trace(folder: Path, *, samples: int = 2, detail: str = "full", exact: bool = False, **options: Any) -> Path:
    """A whole trace of synthetic samples."""
    sizes = {name: options[name] for name in ("causal", "layers", "heads", "every") if name in options}
    with TraceWriter.create(folder, manifest(detail=detail, **sizes), samples=samples, exact=exact) as writer:
        write_samples(writer, **options)
        writer.finish({"impl": ["synthetic"]})
    return folder
