"""Oracles for cut caches: the model on the whole sequence with what was evicted hidden; orders entry by entry."""

import math
from dataclasses import replace
from typing import Any

import torch
import transformers as hf
from torch import Tensor

import sinklens as sl
from attention.zoo import SMALL, causal
from sinklens.cache.entries import Entries


def llama(implementation: str = "sdpa", **changes: Any) -> Any:
    """Three layers, two kv heads for four heads, in float64."""
    return causal(hf.LlamaConfig(**(SMALL | {"num_hidden_layers": 3} | changes)), implementation).double()


def prompt(rows: int, length: int, seed: int = 1) -> Tensor:
    """Ids that repeat as late as they can: in layer 0, equal ids have keys of equal norm."""
    draws = torch.Generator().manual_seed(seed)
    return torch.stack([(torch.randperm(length, generator=draws) % 61) + 3 for _ in range(rows)])


def hidden_forward(model: Any, ids: Tensor, visible: dict[int, Tensor], attention_mask: Tensor | None = None) -> Tensor:
    """Logits of one forward over `ids` in which layer l may see visible[l]: bool [batch, kv_head, query, key]."""

    def hide(call: sl.AttentionCall) -> sl.AttentionCall:
        heads, queries = call.query.shape[1:3]
        seen = torch.ones(queries, queries, dtype=torch.bool).tril()[None, None]
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None]
        if call.site.layer in visible:
            of_layer = visible[call.site.layer]
            seen = seen & of_layer.repeat_interleave(heads // of_layer.shape[1], 1)
        seen = seen | torch.eye(queries, dtype=torch.bool)  # padding sees itself, so that nothing is NaN
        return replace(call, mask=seen, is_causal=False)

    positions = None
    if attention_mask is not None:
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), sl.intervene(model, hide):
        logits: Tensor = model(ids, attention_mask=attention_mask, position_ids=positions, use_cache=False).logits
    return logits


def seen_later(kept: list[Tensor], start: int, length: int) -> dict[int, Tensor]:
    """Queries from `start` on see what is kept of what came before it, and all that came since."""
    visible = {}
    for layer, positions in enumerate(kept):
        rows, heads, _ = positions.shape
        there = torch.zeros(rows, heads, length, dtype=torch.bool)
        for row in range(rows):
            for head in range(heads):
                there[row, head, positions[row, head][positions[row, head] >= 0]] = True
        there[..., start:] = True
        visible[layer] = torch.ones(rows, heads, length, length, dtype=torch.bool)
        visible[layer][:, :, start:] = there[:, :, None]
    return visible


def order_by_hand(order: str, entries: Entries, row: int, head: int) -> list[float]:
    """Scores of one head of one row, in float64, one entry at a time; None at padding."""
    keys, values = entries.keys[row, head].double(), entries.values[row, head].double()
    real = [j for j in range(keys.shape[0]) if entries.real[row, head, j]]
    scores = [math.nan] * keys.shape[0]
    directions = [keys[j] / keys[j].norm() for j in real]
    anchor = sum(directions) / len(real)
    for age, j in enumerate(real):
        position = float(entries.positions[row, head, j])
        if order in ("low", "high"):
            scores[j] = float((keys[j] ** 2).sum().sqrt()) * (-1 if order == "low" else 1)
        elif order == "value":
            scores[j] = float((values[j] ** 2).sum().sqrt())
        elif order == "key_value":
            scores[j] = float((values[j] ** 2).sum().sqrt() / (keys[j] ** 2).sum().sqrt())
        elif order == "recent":
            scores[j] = position
        elif order == "streaming":
            scores[j] = 1e6 - age if age < 4 else position
        elif order == "fastgen":
            scores[j] = position + (1e6 if entries.marked[row, head, j] else 0)
        elif order == "keydiff":
            scores[j] = -float((keys[j] @ anchor) / (keys[j].norm() * anchor.norm()))
        elif order == "received":
            scores[j] = float(entries.received[row, head, j])
    if order == "expected":
        _expected(entries, row, head, real, scores)
    return scores


def _expected(entries: Entries, row: int, head: int, real: list[int], scores: list[float]) -> None:
    queries = entries.queries
    groups = queries.mean.shape[1] // entries.keys.shape[1]
    late = real[4:]
    totals = dict.fromkeys(late, 0.0)
    for member in range(head * groups, (head + 1) * groups):
        mean, covariance = queries.mean[row, member].double(), queries.covariance[row, member].double()
        logits = {}
        for j in late:
            key = entries.keys[row, head, j].double()
            logits[j] = float(mean @ key) * queries.scale + float(key @ covariance @ key) * queries.scale**2 / 2
        peak = max(logits.values())
        bottom = sum(math.exp(logit - peak) for logit in logits.values())
        for j in late:
            totals[j] += math.exp(logits[j] - peak) / bottom / groups
    for j in real:
        scores[j] = math.inf if j not in totals else totals[j] * float(entries.values[row, head, j].double().norm())
