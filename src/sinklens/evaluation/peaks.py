"""Do low-norm keys attract by a few peaked dimensions? Zero them in the cache, and see what changes.

A chunk is read up to its context; some entries of the cached keys are set to 0 in every layer; the rest of the chunk is
then fed on the edited cache, and compared with the same on the cache as it was:

    change   how far attention moved: half the sum of |a - a'| over the keys, mean over layers, heads and queries.
             0: the maps are the same; 1: they have nothing in common
    nll      loss of the text's next tokens, nats a token

    peaks      of the `keys` keys of smallest norm (a layer and kv head), their `dims` entries of largest size
    random     of the same keys as many of their other entries, drawn
    elsewhere  of as many other keys, drawn, their own entries of largest size: is it these keys, or any keys' peaks?

`removed` is the share of the squared length of the edited keys that was taken: peaks take more of it than random
entries, and that is part of what they are.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.attention.call import AttentionCall
from sinklens.attention.observe import intervene
from sinklens.errors import ObservationError, UsageError
from sinklens.kernels.reference import probabilities

EDITS = ("none", "peaks", "random", "elsewhere")
KEYS, DIMS, DRAWS = 8, 3, 5
SCORED = 64  # tokens behind the context at most
Row = dict[str, Any]
PEAKS = {
    "unit": "int64",
    "edit": "string",  # one of EDITS
    "draw": "int64",
    "nll": "float64",
    "change": "float64",
    "removed": "float64",
    "change_by_layer": "list<float>",
}

Edited = Bool[Tensor, "kv_head context dim"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How much is set to 0."""

    keys: int = KEYS  # a layer and kv head
    dims: int = DIMS  # of each of them
    draws: int = DRAWS  # of the two random edits
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("keys", "dims", "draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}; expected a number, 1 or more")


@dataclass(kw_only=True, eq=False)
class _Lab:
    """An intervention that edits cached keys and keeps, or compares, the maps of the queries that come after."""

    edits: list[Edited] | None = None  # by layer; None: none
    clean: list[Float[Tensor, "1 head query key"]] | None = None  # by layer, to compare with
    maps: list[Float[Tensor, "1 head query key"]] = field(default_factory=list)  # without `clean`
    changes: list[float] = field(default_factory=list)  # by layer, with it

    def __call__(self, call: AttentionCall) -> AttentionCall:
        assert call.site is not None
        layer = call.site.layer
        if self.edits is not None:
            call = replace(call, key=_edit(call.key, self.edits[layer]))
        weights, _ = probabilities(call.scores, dtype=torch.float32)
        if self.clean is None:
            self.maps.append(weights)
        else:
            moved = (weights - self.clean[layer]).abs().sum(-1) / 2
            self.changes.append(float(moved.mean()))
        return call


def probe_chunk(model: Any, ids: Any, probe: Probe, *, unit: int) -> list[Row]:
    """One row an edit and draw (`PEAKS`), of one chunk of ids [position]."""
    read = torch.as_tensor(ids, device=model.device).long().reshape(1, -1)
    scored = min(SCORED, read.shape[1] // 4)
    context = read.shape[1] - scored
    keys = _cached_keys(model, read[:, :context])
    _refuse(probe, keys.calls, context=context)
    clean = _Lab()
    rows = [_row(unit, "none", 0, nll=_loss(model, read, keys.cache, clean, context=context))]
    for edit in EDITS[1:]:
        for draw in range(1 if edit == "peaks" else probe.draws):
            draws = torch.Generator().manual_seed(_seed(probe.seed, unit, draw))
            masks = [choose_entries(layer[0], edit, probe, draws) for layer in keys.calls]
            lab = _Lab(edits=masks, clean=clean.maps)
            nll = _loss(model, read, keys.cache, lab, context=context)
            rows.append(_row(unit, edit, draw, nll=nll, lab=lab, removed=_removed(keys.calls, masks)))
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class _Context:
    cache: Any
    calls: list[Float[Tensor, "1 kv_head context dim"]]  # keys as cached, by layer


def _cached_keys(model: Any, ids: Tensor) -> _Context:
    if not hasattr(model, "decode"):
        raise UsageError(f"{model.spec.source or model.spec.family} keeps no cache whose keys could be edited")
    found: list[Tensor] = []

    def keep(call: AttentionCall) -> AttentionCall:
        found.append(call.key.detach().clone())
        return call

    with torch.no_grad(), intervene(model, keep):
        _, cache = model.decode(ids)
    return _Context(cache=cache, calls=found)


def _loss(model: Any, ids: Tensor, cache: Any, lab: _Lab, *, context: int) -> float:
    """Mean loss of the tokens that the queries behind the context predict."""
    with torch.no_grad(), intervene(model, lab):
        logits, _ = model.decode(ids[:, context:-1], cache=deepcopy(cache))
    wide = logits[0].to(torch.promote_types(logits.dtype, torch.float32))
    return float(F.cross_entropy(wide, ids[0, context + 1 :]))


def choose_entries(
    keys: Float[Tensor, "kv_head context dim"], edit: str, probe: Probe, draws: torch.Generator
) -> Bool[Tensor, "kv_head context dim"]:
    """The entries that become 0."""
    norms = torch.linalg.vector_norm(keys.float(), dim=-1)
    low = norms.argsort(dim=-1, stable=True)[:, : probe.keys]
    if edit == "elsewhere":
        chances = torch.rand(norms.shape, generator=draws).to(norms.device).scatter(1, low, -1.0)
        low = chances.topk(probe.keys, dim=-1).indices
    dim = keys.shape[-1]
    sizes = keys.abs().float().gather(1, low.unsqueeze(-1).expand(-1, -1, dim))
    peaks = sizes.topk(probe.dims, dim=-1).indices
    if edit == "random":
        chances = torch.rand(sizes.shape, generator=draws).to(sizes.device).scatter(-1, peaks, -1.0)
        peaks = chances.topk(probe.dims, dim=-1).indices
    entries = torch.zeros_like(sizes, dtype=torch.bool).scatter(-1, peaks, True)
    return torch.zeros_like(keys, dtype=torch.bool).scatter(1, low.unsqueeze(-1).expand(-1, -1, dim), entries)


def _edit(keys: Float[Tensor, "1 kv_head key dim"], mask: Edited) -> Float[Tensor, "1 kv_head key dim"]:
    """The cached keys stand first, in their order."""
    context = mask.shape[1]
    if keys.shape[2] <= context:
        raise ObservationError(
            f"a layer holds {keys.shape[2]} keys behind a context of {context}: a sliding window has forgotten some; "
            "probe a model without one, or shorter chunks"
        )
    return torch.cat([keys[:, :, :context].masked_fill(mask, 0.0), keys[:, :, context:]], dim=2)


def _removed(calls: list[Tensor], masks: list[Tensor]) -> float:
    """Of the squared length of the edited keys, what was taken; mean over layers."""
    shares = []
    for (keys,), mask in zip(calls, masks, strict=True):
        squares = keys.float() ** 2
        touched = squares[mask.any(-1)].sum()
        shares.append(float(squares[mask].sum() / touched))
    return sum(shares) / len(shares)


def _refuse(probe: Probe, calls: list[Tensor], *, context: int) -> None:
    dim = min(int(keys.shape[-1]) for keys in calls)
    if 2 * probe.dims > dim or 2 * probe.keys > context:
        raise UsageError(
            f"{probe.dims} dimensions of {probe.keys} keys, where keys have {dim} and the context {context} tokens; "
            "expected half of either at most, so that as many others are left to compare with"
        )


def _seed(*parts: int) -> int:
    import numpy as np

    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def _row(unit: int, edit: str, draw: int, *, nll: float, lab: _Lab | None = None, removed: float | None = None) -> Row:
    layers = [] if lab is None else lab.changes
    change = sum(layers) / len(layers) if layers else 0.0
    told = {"unit": unit, "edit": edit, "draw": draw, "nll": nll, "change": change}
    return {**told, "removed": removed or 0.0, "change_by_layer": layers}
