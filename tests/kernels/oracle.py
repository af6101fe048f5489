"""Attention received by its definition, in numpy float64. Imports nothing from sinklens."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Truth:
    weights: np.ndarray  # [batch, head, query, key]
    null: np.ndarray  # [batch, head, query]
    visible: np.ndarray  # bool [batch, head, query, key]

    def received(self, counted: np.ndarray) -> np.ndarray:
        return np.einsum("bhqk,bq->bhk", self.weights, counted.astype(float))

    def expected(self, counted: np.ndarray) -> np.ndarray:
        n = self.visible.sum(-1, keepdims=True)
        share = np.divide(self.visible, n, out=np.zeros(self.visible.shape), where=n > 0)
        return np.einsum("bhqk,bq->bhk", share, counted.astype(float))

    def viewers(self, counted: np.ndarray) -> np.ndarray:
        return np.einsum("bhqk,bq->bhk", self.visible.astype(float), counted.astype(float))

    def entropy(self) -> np.ndarray:
        p = np.concatenate([self.weights, self.null[..., None]], axis=-1)
        return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def attention(q, k, *, scale=None, mask=None, hidden=None, causal=False, softcap=None, sinks=None) -> Truth:
    """q [b, h, q, d], k [b, kv, k, d] in float64; `mask` bool or float; float entries <= hidden are not seen."""
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    k = np.repeat(k, heads // k.shape[1], axis=1)
    s = np.einsum("bhqd,bhkd->bhqk", q, k) * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    visible = np.ones((batch, heads, queries, keys), dtype=bool)
    if mask is not None and mask.dtype == bool:
        visible &= mask
    elif mask is not None:
        visible &= mask > hidden
        s = s + np.where(mask > hidden, mask, 0.0)
    if causal:
        visible &= np.arange(queries)[:, None] >= np.arange(keys)[None]
    s = np.where(visible, s, -np.inf)
    null = np.full((batch, heads, queries, 1), -np.inf) if sinks is None else np.broadcast_to(
        sinks[None, :, None, None], (batch, heads, queries, 1)
    )  # fmt: skip
    both = np.concatenate([s, null], axis=-1)
    empty = ~visible.any(-1, keepdims=True)
    peak = np.where(empty, 0.0, both.max(-1, keepdims=True))
    e = np.where(empty, 0.0, np.exp(both - peak))
    total = e.sum(-1, keepdims=True)
    p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return Truth(p[..., :-1], p[..., -1], visible)
