"""Is a low key norm followed by high attention in a diffusion model? By layer, head and denoising step.

Every forward of a generation is observed: norms of keys and values, and what each key receives from all queries. Within
each kind of token the two are compared by ranks:

    prompt      what was given
    committed   generated, and decided before the step
    masked      not decided yet
    all         the three together, which also tells kinds apart

Attention is bidirectional, so uniform attention gives every key the same and what is received needs no scaling. A kind
with fewer than FEWEST tokens at a step has no correlation there, and neither have norms that are equal but for
rounding: before the first attention all masked tokens are the same vector, and RoPE only turns it.

The null moves norms among the tokens of a kind, by random orders that are the same for all layers, heads and steps of a
run: tokens keep their neighbours in depth and time, and lose only what ties their norm to their attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from sinklens.attention.observe import observe
from sinklens.errors import UsageError
from sinklens.evaluation.key_norms import NULLS
from sinklens.sampling.generate import steps
from sinklens.sinks.alr import FEWEST, by_query_head, half, mass_kept, permuted_spearman, spearman

KINDS = ("prompt", "committed", "masked", "all")
NORMS = ("key", "value")
ROUNDING = 1e-5  # relative, of a norm in float32, generously; coarser types have their own
Row = dict[str, Any]
STEPS = {
    "unit": "int64",  # number of the prompt
    "step": "int64",
    "layer": "int64",
    "head": "int64",
    "kind": "string",  # one of KINDS
    "keys": "int64",
    "key": "float64",  # rank correlation of key norm and attention received
    "value": "float64",  # of value norm
    "key_kept": "float64",  # share of the kind's attention on its half of smallest key norm; 0.5 is chance
    "value_kept": "float64",
}
NULL = {
    "unit": "int64",
    "layer": "int64",
    "head": "int64",
    "kind": "string",
    "key": "list<float>",  # of each random order, mean over steps
    "value": "list<float>",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """One forward of one run."""

    step: int
    received: Float[np.ndarray, "layer head key"]
    key_norm: Float[np.ndarray, "layer kv_head key"]
    value_norm: Float[np.ndarray, "layer kv_head key"]
    masked: Bool[np.ndarray, " key"]  # when the forward ran
    prompt: int  # tokens of it
    rounding: float = ROUNDING  # relative, of a norm

    def members(self, kind: str) -> Bool[np.ndarray, " key"]:
        """Which tokens are of a kind."""
        given = np.arange(len(self.masked)) < self.prompt
        chosen: Bool[np.ndarray, " key"] = {
            "prompt": given,
            "committed": ~given & ~self.masked,
            "masked": self.masked,
            "all": np.ones_like(given),
        }[kind]
        return chosen

    def sizes(self, chosen: Bool[np.ndarray, " key"]) -> dict[str, Float[np.ndarray, "layer head few"]]:
        """Norms of these tokens as the query heads see them."""
        heads = self.received.shape[1]
        norms = {"key": self.key_norm, "value": self.value_norm}
        return {name: by_query_head(norm, heads)[..., chosen] for name, norm in norms.items()}

    def equal(self, sizes: Float[np.ndarray, "layer head few"]) -> Bool[np.ndarray, "layer head"]:
        """Where norms differ by no more than rounding makes them."""
        largest: np.ndarray = sizes.max(-1)
        same: Bool[np.ndarray, "layer head"] = largest - sizes.min(-1) <= self.rounding * largest
        return same


def moments(model: Any, prompt: Any, sampler: Any, *, seed: int = 0) -> Iterator[Moment]:
    """Generate from ids [position], and give what every forward saw; one forward is held at a time."""
    if model.spec.causal or model.spec.mask_id is None:
        raise UsageError(
            f"{model.spec.family!r} is no masked diffusion model; use `sinklens.evaluation.key_norms` for a causal one"
        )
    ids = [int(token) for token in prompt]
    rounding = max(ROUNDING, torch.finfo(next(model.parameters()).dtype).eps)
    with observe(model, norms=True) as seen:
        for step in steps(model, [ids], sampler, seed=seed):
            now = seen.steps[-1]
            masked = (step.canvas[0] == model.spec.mask_id) | step.committed[0]
            del seen.steps[:-1]
            yield Moment(
                step=step.index,
                received=_numpy(now.received),
                key_norm=_numpy(now.key_norm),
                value_norm=_numpy(now.value_norm),
                masked=masked.cpu().numpy(),
                prompt=len(ids),
                rounding=rounding,
            )


def measure_run(
    model: Any, prompt: Any, sampler: Any, *, unit: int, seed: int = 0, nulls: int = NULLS
) -> tuple[list[Row], list[Row]]:
    """Rows of one prompt: `STEPS`, one a step, layer, head and kind that has a correlation; and `NULL`."""
    rows: list[Row] = []
    sums: dict[tuple[str, str], list[np.ndarray]] = {(kind, norm): [] for kind in KINDS for norm in NORMS}
    rng = np.random.default_rng((seed, unit))
    places: np.ndarray | None = None
    for moment in moments(model, prompt, sampler, seed=seed + unit):
        if places is None:
            places = rng.random((nulls, len(moment.masked)))
        for kind in KINDS:
            chosen = moment.members(kind)
            if chosen.sum() < FEWEST:
                continue
            rows += _rows(moment, kind, chosen, unit=unit)
            orders = np.argsort(places[:, chosen], axis=-1)  # of the kind's tokens, as the run's order has them
            for norm, sizes in moment.sizes(chosen).items():
                drawn = permuted_spearman(sizes, moment.received[..., chosen], orders)
                sums[kind, norm].append(np.where(moment.equal(sizes), np.nan, drawn))
    return rows, list(_null_rows(sums, unit=unit))


def _rows(moment: Moment, kind: str, chosen: Bool[np.ndarray, " key"], *, unit: int) -> list[Row]:
    received, sizes = moment.received[..., chosen], moment.sizes(chosen)
    keys = int(chosen.sum())
    numbers: dict[str, np.ndarray] = {}
    for name, size in sizes.items():
        found = {name: spearman(size, received), f"{name}_kept": mass_kept(received, size, keep=half(keys))}
        numbers |= {one: np.where(moment.equal(size), np.nan, values) for one, values in found.items()}
    return [
        {
            "unit": unit, "step": moment.step, "layer": layer, "head": head, "kind": kind, "keys": keys,
            **{name: _number(found[layer, head]) for name, found in numbers.items()},
        }
        for layer, head in np.ndindex(received.shape[:2])
    ]  # fmt: skip


def _null_rows(sums: dict[tuple[str, str], list[np.ndarray]], *, unit: int) -> Iterator[Row]:
    """Of every layer and head the mean over steps, one number an order."""
    for kind in KINDS:
        if not sums[kind, "key"]:
            continue
        means = {norm: _mean_known(np.stack(sums[kind, norm])) for norm in NORMS}
        for layer, head in np.ndindex(means["key"].shape[1:]):
            told = {"unit": unit, "layer": layer, "head": head, "kind": kind}
            yield told | {norm: [_number(value) for value in means[norm][:, layer, head]] for norm in NORMS}


def _mean_known(values: Float[np.ndarray, "step draw layer head"]) -> Float[np.ndarray, "draw layer head"]:
    """Over the steps that have a correlation; NaN where none has."""
    known = np.isfinite(values)
    means = np.full(values.shape[1:], np.nan)
    np.divide(np.where(known, values, 0.0).sum(0), known.sum(0), out=means, where=known.any(0))
    return means


def _numpy(values: Any) -> np.ndarray:
    """Without the batch axis, of [layer, batch, ...]."""
    found: np.ndarray = values[:, 0].double().cpu().numpy()
    return found


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
