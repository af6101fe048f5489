"""What a sink is made of: norms of sinks against other tokens, what they contribute, and what their head writes.

Everything is compared within one row, a (step, head) that has a sink: the sinks' centre over the others' centre. The
centre is the median: a row has one to three sinks and about two hundred others, norms are skewed, and one massive
activation among the others would move their mean, but not their median. On a trace that keeps sinks only, the others
are known by their mean alone, and both centres are means (`centre` says which).

    row ratio        centre(sinks) / centre(others)
    head, sample     median of its row ratios over steps
    layer, sample    median of its row ratios over steps and heads
    over samples     geometric mean, resampled by sample

Keys and values belong to kv heads: head h reads kv head h // (heads / kv heads).

Verdict on a head, from the sinks' value behind W_o and the effective rank of what the head writes:

    no sink    no sink at any stored step
    no-op      the sinks' value behind W_o is less than half that of the others: attention parked where little is read
    broadcast  not small, and the output has effective rank below 2: more than half of it is one direction for all
    mixed      not small, and the output has more directions

The output of a single query has rank 1 whatever the head does. In a causal run with a cache that is every forward but
the prefill, so the rank is read at step 0 there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.metrics import absorbed
from sinklens.sinks.resample import Interval, bootstrap

MEASURES = ("key_norm", "value_norm", "output_norm", "hidden_norm", "contribution")
VERDICTS = ("no-op", "broadcast", "mixed", "no sink")
SMALL_OUTPUT = 0.5  # by the same attention, the sinks then write less than half of what other tokens would
# The rank is the participation ratio of the squared singular values, 1 / (sum of squared shares): 1 where all queries
# get one direction, 2 for two equal ones. Below 2 the largest share exceeds one half.
LOW_RANK = 2.0
LEAST_RATIO = 1e-6  # a norm of exactly 0 would take the geometric mean to 0 alone


@dataclass(frozen=True, kw_only=True, eq=False)
class MechanismSums:
    """One layer of one sample. NaN: no sink there, or nothing to compare it with."""

    layer: int
    heads: Int[np.ndarray, " head"]
    centre: str  # of the others: "median", or "mean" on a trace that keeps sinks only
    ratios: Mapping[str, float]  # measure to the layer's ratio, for the measures that were recorded
    sink_steps: Float[np.ndarray, " head"]  # share of the stored steps at which the head has a sink
    output_ratio: Float[np.ndarray, " head"] | None  # of output_norm
    output_rank: Float[np.ndarray, " head"] | None  # median over the steps with a sink
    attention_share: float  # of all attention of their row, what the sinks take; mean over rows
    contribution_share: float | None  # and what they carry of received x output_norm
    rank: tuple[float, float] | None  # of heads with a sink, and of the others at the same step
    size: tuple[float, float] | None  # output size of both, likewise


@dataclass(frozen=True, kw_only=True)
class HeadVerdict:
    """One head over all samples: medians over the samples in which it has a sink."""

    head: int
    verdict: str | None  # one of VERDICTS; None: output norm or rank are not known
    output_ratio: float | None
    output_rank: float | None
    sink_steps: float  # share of steps with a sink, mean over samples


@dataclass(frozen=True, kw_only=True)
class LayerMechanism:
    """One layer over all samples. Every interval's n counts the samples that have such a comparison."""

    layer: int
    centre: str
    ratios: Mapping[str, Interval]  # measure to sinks / others
    attention_share: Interval
    contribution_share: Interval | None
    rank_with_sink: Interval | None
    rank_without: Interval | None
    size_ratio: Interval | None  # output size of heads with a sink / of the others
    heads: tuple[HeadVerdict, ...]
    verdicts: Mapping[str, int]  # verdict to number of heads; a head without one is in none

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_mechanism(
    layer: LayerArrays, sinks: Bool[np.ndarray, "step head key"], *, heads: int, causal: bool = False
) -> MechanismSums:
    """Sinks against the others in one layer of one sample.

    heads: how many query heads the model has in all. causal: the trace is (`TraceLike.causal`).
    On a trace that keeps sinks only, the contribution of a key that was not kept is mean received x mean norm.
    """
    visible = ~np.isnan(layer.received) & (layer.expected > 0)
    rows = (sinks & visible).any(-1)
    where = np.nonzero(rows)
    attention = absorbed(layer, sinks & visible)[where]
    visible = visible[where]
    sinks = sinks[where] & visible
    ratios, output_ratio, contribution = {}, None, None
    for name, values in _norms(layer, where, heads=heads).items():
        row_ratio = np.full(rows.shape, np.nan)
        row_ratio[where] = _row_ratios(values, sinks, others=visible & ~sinks, median=layer.kept is None)
        ratios[name] = float(_median(row_ratio.ravel()))
        if name == "output_norm":
            output_ratio = _median(row_ratio)
        if name == "contribution":
            contribution = _share(values, sinks)
    rank = layer.output_rank
    if rank is not None and causal:
        rank = np.where(layer.steps[:, None] == 0, rank, np.nan)
    return MechanismSums(
        layer=layer.layer,
        heads=layer.heads,
        centre="median" if layer.kept is None else "mean",
        ratios=ratios,
        sink_steps=rows.mean(0),
        output_ratio=output_ratio,
        output_rank=None if rank is None else _median(np.where(rows, rank, np.nan)),
        attention_share=float(attention.mean()) if attention.size else float("nan"),
        contribution_share=contribution,
        rank=_with_and_without(rank, rows),
        size=_with_and_without(layer.output_size, rows),
    )


def summarise_mechanism(by_sample: Sequence[MechanismSums], *, draws: int = 1000, seed: int = 0) -> LayerMechanism:
    """One layer over its samples."""
    if not by_sample:
        raise UsageError("no samples to summarise; expected at least one entry")
    first = by_sample[0]
    if any(one.layer != first.layer or not np.array_equal(one.heads, first.heads) for one in by_sample):
        raise UsageError("these entries are of different layers or heads; expected one layer of several samples")

    def mean(values: Sequence[float], *, geometric: bool = False) -> Interval:
        if not geometric:
            return bootstrap(values, draws=draws, seed=seed)
        logs = bootstrap(np.log(np.maximum(values, LEAST_RATIO)), draws=draws, seed=seed)
        low, value, high = (None if one is None else float(np.exp(one)) for one in (logs.low, logs.value, logs.high))
        return Interval(value=value, low=low, high=high, n=logs.n)

    measures = [name for name in MEASURES if all(name in one.ratios for one in by_sample)]
    ranks = [one.rank for one in by_sample if one.rank is not None]
    sizes = [one.size for one in by_sample if one.size is not None]
    carried = [one.contribution_share for one in by_sample if one.contribution_share is not None]
    heads = tuple(_verdict(by_sample, index) for index in range(len(first.heads)))
    return LayerMechanism(
        layer=first.layer,
        centre="median" if all(one.centre == "median" for one in by_sample) else "mean",
        ratios={name: mean([one.ratios[name] for one in by_sample], geometric=True) for name in measures},
        attention_share=mean([one.attention_share for one in by_sample]),
        contribution_share=mean(carried) if carried else None,
        rank_with_sink=mean([have for have, _ in ranks]) if ranks else None,
        rank_without=mean([lack for _, lack in ranks]) if ranks else None,
        size_ratio=mean([have / lack if lack else np.nan for have, lack in sizes], geometric=True) if sizes else None,
        heads=heads,
        verdicts={name: sum(head.verdict == name for head in heads) for name in VERDICTS},
    )


def _norms(layer: LayerArrays, where: tuple[np.ndarray, ...], *, heads: int) -> dict[str, Float[np.ndarray, "row key"]]:
    """What was recorded, by measure, of the rows `where` (indices of step and head)."""
    step, head = where
    if heads <= layer.heads.max(initial=0):
        raise UsageError(f"heads is {heads}, but the layer holds head {layer.heads.max()}; pass the model's total")
    found = {}
    for name, norm in (("key_norm", layer.key_norm), ("value_norm", layer.value_norm)):
        if norm is not None:
            if heads % norm.shape[1]:
                raise UsageError(
                    f"{heads} heads cannot share {norm.shape[1]} kv heads; pass the model's total as heads"
                )
            found[name] = norm[step, layer.heads[head] // (heads // norm.shape[1])]
    if layer.output_norm is not None:
        found["output_norm"] = layer.output_norm[where]
        found["contribution"] = layer.received[where] * found["output_norm"]
    if layer.hidden_norm is not None:
        found["hidden_norm"] = layer.hidden_norm[step]
    if not found:
        raise UsageError(
            "this layer comes without norms, and what sinks are made of is told by norms; read it with norms=True, "
            "from a trace that was recorded without `--no-norms`"
        )
    return found


def _row_ratios(
    values: Float[np.ndarray, "row key"],
    sinks: Bool[np.ndarray, "row key"],
    *,
    others: Bool[np.ndarray, "row key"],
    median: bool,
) -> Float[np.ndarray, " row"]:
    """Centre of the sinks over centre of the others; NaN where the others are none, or have none."""
    centre = _masked_median if median else _masked_mean
    known = np.isfinite(values)
    above, below = centre(values, sinks & known), centre(values, others & known)
    ratios = np.full(len(values), np.nan)
    np.divide(above, below, out=ratios, where=below > 0)
    return ratios


def _masked_mean(
    values: Float[np.ndarray, "row key"], chosen: Bool[np.ndarray, "row key"]
) -> Float[np.ndarray, " row"]:
    sums = np.where(chosen, values, 0).sum(-1, dtype=np.float64)
    means = np.full(len(sums), np.nan)
    np.divide(sums, chosen.sum(-1), out=means, where=chosen.any(-1))
    return means


def _masked_median(
    values: Float[np.ndarray, "row key"], chosen: Bool[np.ndarray, "row key"]
) -> Float[np.ndarray, " row"]:
    """The median of the chosen entries of every row: what is not chosen sorts behind them."""
    count = chosen.sum(-1)
    ranked = np.sort(np.where(chosen, values, np.inf), axis=-1)
    row = np.arange(len(values))
    middle = (ranked[row, (count - 1).clip(min=0) // 2] + ranked[row, count // 2]) / 2
    return np.where(count > 0, middle, np.nan)


def _median(values: Float[np.ndarray, "row ..."]) -> Any:
    """Over the first axis, without what is NaN; NaN where nothing is left."""
    flat = values.reshape(len(values), -1).T
    return _masked_median(flat, ~np.isnan(flat)).reshape(values.shape[1:])


def _share(values: Float[np.ndarray, "row key"], sinks: Bool[np.ndarray, "row key"]) -> float:
    """What the sinks hold of their row, mean over rows."""
    total = np.where(np.isnan(values), 0, values).sum(-1, dtype=np.float64)
    held = np.where(sinks, values, 0).sum(-1, dtype=np.float64)
    return float(np.mean(held[total > 0] / total[total > 0])) if (total > 0).any() else float("nan")


def _with_and_without(
    values: Float[np.ndarray, "step head"] | None, rows: Bool[np.ndarray, "step head"]
) -> tuple[float, float] | None:
    """The mean over heads with a sink and over heads without, in the steps that have both; then over these steps."""
    if values is None:
        return None
    have, lack = (_masked_mean(values, chosen & ~np.isnan(values)) for chosen in (rows, ~rows))
    both = ~np.isnan(have + lack)
    if not both.any():
        return float("nan"), float("nan")
    return float(have[both].mean()), float(lack[both].mean())


def _verdict(by_sample: Sequence[MechanismSums], index: int) -> HeadVerdict:
    ratios = [one.output_ratio[index] for one in by_sample if one.output_ratio is not None]
    ranks = [one.output_rank[index] for one in by_sample if one.output_rank is not None]
    ratio, rank = (float(_median(np.array(values or [np.nan], np.float64))) for values in (ratios, ranks))
    steps = float(np.mean([one.sink_steps[index] for one in by_sample]))
    verdict: str | None
    if steps == 0:
        verdict = "no sink"
    elif ratio < SMALL_OUTPUT:
        verdict = "no-op"
    elif np.isnan(ratio) or np.isnan(rank):
        verdict = None
    else:
        verdict = "broadcast" if rank < LOW_RANK else "mixed"
    return HeadVerdict(
        head=int(by_sample[0].heads[index]),
        verdict=verdict,
        output_ratio=None if np.isnan(ratio) else ratio,
        output_rank=None if np.isnan(rank) else rank,
        sink_steps=steps,
    )
