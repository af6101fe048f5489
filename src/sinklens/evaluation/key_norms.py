"""What a causal model's next query looks at, beside the norms of the keys it finds there: one chunk of text at a time.

    1. read the n tokens of a chunk; keys, values and what every key receives are observed on the way
    2. take the likeliest next token and feed it as a single query on the cache
    3. its attention, by layer and head, without its own column (a cache cannot drop what is just being added) and not
       scaled up to 1 again, is what keys are ranked against (`sinks/alr.py`)

Keys are as cached, behind RoPE, which turns them and leaves their norms as they are. Under grouped queries every query
head is measured against the norms of the kv head that it reads. No query x key matrix is held.

What all queries of the chunk paid is told apart from what the next one pays. It is counted in fair shares, because an
early key has more queries that may see it, and over keys that at least MIN_VIEWERS queries see.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.observe import observe
from sinklens.errors import ModelError, UsageError
from sinklens.sinks.alr import (
    FEWEST,
    alr,
    attention_loss,
    by_query_head,
    draw_orders,
    expected_alr,
    half,
    loss_curve,
    mass_kept,
    oracle_loss,
    permuted_spearman,
    rank_correlations,
    spearman,
)
from sinklens.sinks.detect import MIN_VIEWERS

NULLS = 20  # random orders of the tokens of a unit
Row = dict[str, Any]
HEADS = {
    "unit": "int64",  # number of the chunk
    "layer": "int64",
    "head": "int64",
    "keys": "int64",
    "attention": "float64",  # that the next query pays to all of them
    "first": "float64",  # and to position 0
    "alr": "float64",
    "expected": "float64",  # of a random order
    "alr_rest": "float64",  # without position 0, likewise below
    "expected_rest": "float64",
    "kept": "float64",  # share of the attention that lies on the half of smallest norm
    "kept_oracle": "float64",  # and on the best half
    "kept_rest": "float64",
    "next": "float64",  # rank correlation of key norm and the next query's attention
    "next_rest": "float64",
    "received": "float64",  # of key norm and attention received from the chunk, in fair shares
    "received_rest": "float64",
    "value": "float64",  # of value norm and attention received
    "value_rest": "float64",
    "loss": "list<float>",  # at 0, 1, ... 100 % dropped
    "oracle": "list<float>",
    "null_next": "list<float>",  # `next` under random orders of the tokens
    "null_received": "list<float>",
    "null_value": "list<float>",
}
LAYERS = {"unit": "int64", "layer": "int64", "other": "int64", "correlation": "float64"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """One chunk."""

    attention: Float[np.ndarray, "layer head key"]  # of the next query, its own column removed
    share: Float[np.ndarray, "layer head key"]  # received from the chunk, in fair shares
    counted: Bool[np.ndarray, " key"]  # enough queries see it for `share` to be read
    key_norm: Float[np.ndarray, "layer kv_head key"]
    value_norm: Float[np.ndarray, "layer kv_head key"]
    token: int  # the likeliest next one


def look(model: Any, ids: Any) -> Looked:
    """Read a chunk, ids [position] or [1, position], and see what its likeliest next token looks at."""
    if not model.spec.causal:
        raise UsageError(
            f"{model.spec.family!r} is not causal: it has no next query; use `sinklens.evaluation.atlas` for it"
        )
    read = torch.as_tensor(ids, device=model.device).long().reshape(1, -1)
    n = read.shape[1]
    if n < FEWEST + MIN_VIEWERS:
        raise UsageError(f"a chunk has {n} tokens; expected {FEWEST + MIN_VIEWERS} or more, to rank keys by")
    with torch.no_grad(), observe(model, norms=True) as seen:
        token, cache = _read_chunk(model, read)
        chunk = seen.steps[0]
        attention = None if cache is None else _feed(model, token, cache, seen)
    if attention is None:
        attention = _feed_whole(model, read, token)
    return Looked(
        attention=attention[..., :n],
        share=_numpy(chunk.fair_share),
        counted=_numpy(chunk.viewers).min(axis=(0, 1)) >= MIN_VIEWERS,
        key_norm=_numpy(chunk.key_norm),
        value_norm=_numpy(chunk.value_norm),
        token=int(token),
    )


def _read_chunk(model: Any, ids: Tensor) -> tuple[Tensor, Any]:
    """The likeliest next token [1, 1], and the cache; None: the model keeps none."""
    try:
        logits, cache = model.decode(ids)
    except (AttributeError, ModelError):
        logits, cache = model(ids), None
    return logits[:, -1:].argmax(-1), cache


def _feed(model: Any, token: Tensor, cache: Any, seen: Any) -> Float[np.ndarray, "layer head key"]:
    """Attention received from a single query is that query's attention."""
    model.decode(token, cache=cache)
    return _numpy(seen.steps[1].received)


def _feed_whole(model: Any, ids: Tensor, token: Tensor) -> Float[np.ndarray, "layer head key"]:
    """The same without a cache: everything again, the last query counted apart."""
    longer = torch.cat([ids, token], dim=1)
    last = torch.zeros_like(longer, dtype=torch.bool)
    last[:, -1] = True
    with torch.no_grad(), observe(model, norms=False, groups={"next": last}) as seen:
        model(longer)
    return _numpy(seen.groups["next"])


def head_rows(looked: Looked, *, unit: int, seed: int = 0, nulls: int = NULLS) -> list[Row]:
    """One row a layer and head (`HEADS`). The random orders belong to the chunk."""
    heads = looked.attention.shape[1]
    keys, values = (by_query_head(norms, heads) for norms in (looked.key_norm, looked.value_norm))
    orders = draw_orders(keys.shape[-1], draws=nulls, seed=(seed, unit))
    seen = looked.counted
    few = draw_orders(int(seen.sum()), draws=nulls, seed=(seed, unit))
    share = looked.share[..., seen]
    numbers = {
        **_next(looked.attention, keys),
        "received": spearman(keys[..., seen], share),
        "received_rest": spearman(keys[..., seen][..., 1:], share[..., 1:]),
        "value": spearman(values[..., seen], share),
        "value_rest": spearman(values[..., seen][..., 1:], share[..., 1:]),
    }
    lists = {
        "loss": loss_curve(attention_loss(looked.attention, keys)),
        "oracle": loss_curve(oracle_loss(looked.attention)),
        "null_next": np.moveaxis(permuted_spearman(keys, looked.attention, orders), 0, -1),
        "null_received": np.moveaxis(permuted_spearman(keys[..., seen], share, few), 0, -1),
        "null_value": np.moveaxis(permuted_spearman(values[..., seen], share, few), 0, -1),
    }
    return [
        {
            "unit": unit, "layer": layer, "head": head, "keys": keys.shape[-1],
            **{name: _number(found[layer, head]) for name, found in numbers.items()},
            **{name: _numbers(found[layer, head]) for name, found in lists.items()},
        }
        for layer, head in np.ndindex(keys.shape[:2])
    ]  # fmt: skip


def _next(
    attention: Float[np.ndarray, "layer head key"], norms: Float[np.ndarray, "layer head key"]
) -> dict[str, np.ndarray]:
    """What is measured of the next query."""
    rest, rest_norms = attention[..., 1:], norms[..., 1:]
    keep, keep_rest = half(norms.shape[-1]), half(rest_norms.shape[-1])
    return {
        "attention": attention.sum(-1),
        "first": attention[..., 0],
        "alr": alr(attention, norms),
        "expected": expected_alr(attention),
        "alr_rest": alr(rest, rest_norms),
        "expected_rest": expected_alr(rest),
        "kept": mass_kept(attention, norms, keep=keep),
        "kept_oracle": mass_kept(attention, -attention, keep=keep),
        "kept_rest": mass_kept(rest, rest_norms, keep=keep_rest),
        "next": spearman(norms, attention),
        "next_rest": spearman(rest_norms, rest),
    }


def layer_rows(looked: Looked, *, unit: int) -> Iterator[Row]:
    """How alike layers rank the keys by what they receive (mean over heads), every pair once."""
    found = rank_correlations(looked.share[..., looked.counted].mean(axis=1))
    for layer, other in zip(*np.triu_indices(len(found), k=1), strict=True):
        told = {"unit": unit, "layer": int(layer), "other": int(other)}
        yield {**told, "correlation": _number(found[layer, other])}


def _numpy(values: Tensor) -> np.ndarray:
    """Without the batch axis, of [layer, batch, ...]."""
    return values[:, 0].double().cpu().numpy()


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values]
