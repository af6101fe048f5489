"""Norms of sinks against others: hand-made rows, a plain loop, planted verdicts."""

import json
import math
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.mechanism import LOW_RANK, MEASURES, SMALL_OUTPUT, measure_mechanism, summarise_mechanism


def plain_layer(steps: int = 3, heads: int = 4, keys: int = 10, kv_heads: int = 2) -> LayerArrays:
    """Everything equal: all norms 1, all ranks 4."""

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, np.float32)

    return LayerArrays(
        layer=5,
        steps=np.arange(steps),
        heads=np.arange(heads),
        received=ones(steps, heads, keys),
        expected=ones(steps, 1, keys),
        viewers=ones(steps, 1, keys) * keys,
        key_norm=ones(steps, kv_heads, keys),
        value_norm=ones(steps, kv_heads, keys),
        output_norm=ones(steps, heads, keys),
        hidden_norm=ones(steps, keys),
        output_rank=ones(steps, heads) * 4,
        output_size=ones(steps, heads),
    )


def first_key(layer: LayerArrays, heads: tuple[int, ...]) -> np.ndarray:
    """Key 0 is a sink of these heads, at every step."""
    sinks = np.zeros(layer.received.shape, bool)
    sinks[:, list(heads), 0] = True
    return sinks


def test_equal_norms_give_one() -> None:
    layer = plain_layer()
    result = summarise_mechanism([measure_mechanism(layer, first_key(layer, (0, 3)), heads=4)])
    assert set(result.ratios) == set(MEASURES)
    assert all(one.value == pytest.approx(1.0) and one.low is None and one.n == 1 for one in result.ratios.values())
    assert result.attention_share.value == pytest.approx(0.1)
    assert result.contribution_share is not None and result.contribution_share.value == pytest.approx(0.1)
    assert result.layer == 5 and result.centre == "median"


def test_medians_by_hand() -> None:
    """One row: sinks 2 and 4 (median 3), others 1, 2, 3, 5, 90 (median 3, where the mean is 20)."""
    layer = plain_layer(steps=1, heads=1, keys=7, kv_heads=1)
    layer = replace(layer, key_norm=np.array([[[2, 4, 1, 2, 3, 5, 90]]], np.float32))
    sinks = np.array([[[True, True, *[False] * 5]]])
    assert measure_mechanism(layer, sinks, heads=1).ratios["key_norm"] == pytest.approx(1.0)
    even = replace(layer, key_norm=np.array([[[6, 1, 2, 3, 90, 7, 8]]], np.float32))
    sinks = np.array([[[True, False, False, False, False, True, True]]])  # 7 over the median of 1, 2, 3, 90
    assert measure_mechanism(even, sinks, heads=1).ratios["key_norm"] == pytest.approx(7 / 2.5)


def test_heads_share_kv_heads_by_their_number_in_the_model() -> None:
    """Heads 2 and 3 of four read kv head 1, although they are the first two of the arrays."""
    layer = plain_layer(heads=2)
    assert layer.key_norm is not None
    norms = layer.key_norm.copy()
    norms[:, 1, 0] = 0.25
    layer = replace(layer, heads=np.array([2, 3]), key_norm=norms)
    sinks = first_key(layer, (0, 1))
    assert measure_mechanism(layer, sinks, heads=4).ratios["key_norm"] == pytest.approx(0.25)
    lower = replace(layer, heads=np.array([0, 1]))
    assert measure_mechanism(lower, sinks, heads=4).ratios["key_norm"] == pytest.approx(1.0)


def test_shares_of_attention_and_of_contribution() -> None:
    """The sink takes half of the attention, and its value is a ninth of the others': a tenth of the contribution."""
    layer = plain_layer(heads=1, kv_heads=1)
    received, output = layer.received.copy(), np.ones_like(layer.received)
    received[..., 0], received[..., 1:], output[..., 0] = 5.0, 5 / 9, 1 / 9
    layer = replace(layer, received=received, output_norm=output)
    found = measure_mechanism(layer, first_key(layer, (0,)), heads=1)
    assert found.attention_share == pytest.approx(0.5)
    assert found.contribution_share == pytest.approx(0.1)
    assert found.ratios["output_norm"] == pytest.approx(1 / 9)
    assert found.ratios["contribution"] == pytest.approx(1.0)  # 5 / 9 in every token


def test_rank_and_size_of_heads_with_a_sink_against_the_others_at_the_same_step() -> None:
    layer = plain_layer(steps=3, heads=4)
    rank = np.array([[1, 3, 5, 7], [2, 4, 6, 9], [100, 100, 100, 100]], np.float32)
    sinks = np.zeros(layer.received.shape, bool)
    sinks[0, :2, 0], sinks[1, 3, 0] = True, True
    sinks[2, :, 0] = True  # no other head to compare with: this step is left out
    layer = replace(layer, output_rank=rank, output_size=rank / 2)
    found = measure_mechanism(layer, sinks, heads=4)
    assert found.rank == pytest.approx(((2 + 9) / 2, (6 + 4) / 2))
    result = summarise_mechanism([found])
    assert result.rank_with_sink is not None and result.rank_with_sink.value == pytest.approx(5.5)
    assert result.rank_without is not None and result.rank_without.value == pytest.approx(5.0)
    assert result.size_ratio is not None and result.size_ratio.value == pytest.approx(1.1)


def test_no_size_ratio_to_heads_that_write_nothing() -> None:
    layer = plain_layer()
    size = np.zeros((3, 4), np.float32)
    size[:, 0] = 1.0
    part = measure_mechanism(replace(layer, output_size=size), first_key(layer, (0,)), heads=4)
    found = summarise_mechanism([part]).size_ratio
    assert found is not None and found.value is None and found.n == 0


def planted(no_op: float = 0.1, rank: float = 1.2) -> tuple[LayerArrays, np.ndarray]:
    """Head 0: small value. 1: normal value, one direction. 2: normal value, many directions. 3: no sink."""
    layer = plain_layer()
    output, ranks = np.ones_like(layer.received), np.full((3, 4), 4.0, np.float32)
    output[:, 0, 0], ranks[:, 0] = no_op, rank
    ranks[:, 1] = rank
    ranks[:, 3] = rank
    return replace(layer, output_norm=output, output_rank=ranks), first_key(layer, (0, 1, 2))


def test_planted_verdicts() -> None:
    layer, sinks = planted()
    result = summarise_mechanism([measure_mechanism(layer, sinks, heads=4)])
    assert [head.verdict for head in result.heads] == ["no-op", "broadcast", "mixed", "no sink"]
    assert result.verdicts == {"no-op": 1, "broadcast": 1, "mixed": 1, "no sink": 1}
    assert [head.sink_steps for head in result.heads] == [1.0, 1.0, 1.0, 0.0]
    assert result.heads[0].output_ratio == pytest.approx(0.1) and result.heads[3].output_ratio is None


def test_the_thresholds_are_the_named_ones() -> None:
    layer, sinks = planted(no_op=SMALL_OUTPUT, rank=LOW_RANK)
    result = summarise_mechanism([measure_mechanism(layer, sinks, heads=4)])
    assert [head.verdict for head in result.heads] == ["mixed", "mixed", "mixed", "no sink"]


def test_a_verdict_is_the_median_over_samples_and_reads_the_steps_with_a_sink() -> None:
    layer, sinks = planted()
    assert layer.output_norm is not None and layer.output_rank is not None
    loud, rank = layer.output_norm.copy(), layer.output_rank.copy()
    loud[:, 0, 0] = 3.0
    rank[1:], sinks = 50.0, sinks.copy()
    sinks[1:] = False  # what a head writes without a sink says nothing about its sinks
    small, large = replace(layer, output_rank=rank), replace(layer, output_norm=loud, output_rank=rank)
    parts = [measure_mechanism(one, sinks, heads=4) for one in (small, large, small)]
    result = summarise_mechanism(parts)
    assert [head.verdict for head in result.heads] == ["no-op", "broadcast", "mixed", "no sink"]
    assert result.heads[1].output_rank == pytest.approx(1.2)
    assert result.heads[0].sink_steps == pytest.approx(1 / 3)


def test_the_rank_of_a_causal_run_is_read_at_the_prefill() -> None:
    """Later forwards have one query: rank 1, which is no broadcast. Head 2 has no sink at the prefill: not known."""
    layer, sinks = planted()
    rank = np.array([[4, 1.2, 4, 4], [1, 1, 1, 1], [1, 1, 1, 1]], np.float32)
    layer = replace(layer, output_rank=rank)
    sinks[0, 2] = False
    found = measure_mechanism(layer, sinks, heads=4, causal=True)
    assert found.rank == pytest.approx(((4 + 1.2) / 2, 4.0))
    result = summarise_mechanism([found])
    assert [head.verdict for head in result.heads] == ["no-op", "broadcast", None, "no sink"]
    loud = replace(layer, output_norm=np.ones_like(layer.received))
    heads = summarise_mechanism([measure_mechanism(loud, sinks, heads=4, causal=True)]).heads
    assert [head.verdict for head in heads] == ["mixed", "broadcast", None, "no sink"]


def test_a_head_without_any_output_has_no_rank() -> None:
    layer, sinks = planted()
    rank = np.full((3, 4), 3.0, np.float32)
    rank[:, 0] = np.nan
    found = measure_mechanism(replace(layer, output_rank=rank), sinks, heads=4)
    assert found.rank == pytest.approx((3.0, 3.0))


def test_samples_are_averaged_as_ratios_and_give_the_interval() -> None:
    parts = []
    for factor in (0.25, 1.0, 4.0):
        layer = plain_layer()
        hidden = np.ones((3, 10), np.float32)
        hidden[:, 0] = factor
        parts.append(measure_mechanism(replace(layer, hidden_norm=hidden), first_key(layer, (1,)), heads=4))
    parts.append(measure_mechanism(layer, first_key(layer, ()), heads=4))  # without a sink: no say
    found = summarise_mechanism(parts).ratios["hidden_norm"]
    assert found.value == pytest.approx(1.0) and found.n == 3
    assert found.low == pytest.approx(0.25) and found.high == pytest.approx(4.0)


def test_a_value_of_zero_is_a_small_ratio() -> None:
    layer, sinks = planted(no_op=0.0)
    result = summarise_mechanism([measure_mechanism(layer, sinks[:, :], heads=4)])
    assert result.heads[0].verdict == "no-op" and result.heads[0].output_ratio == 0.0
    only = summarise_mechanism([measure_mechanism(layer, first_key(layer, (0,)), heads=4)])
    assert only.ratios["output_norm"].value == pytest.approx(1e-6)


def test_no_sink_at_all() -> None:
    layer = plain_layer()
    result = summarise_mechanism([measure_mechanism(layer, first_key(layer, ()), heads=4)] * 2)
    assert result.verdicts["no sink"] == 4
    assert all(one.value is None and one.n == 0 for one in result.ratios.values())
    assert result.attention_share.value is None


def test_with_sinks_kept_only_the_others_are_their_mean() -> None:
    layer = plain_layer(steps=1, heads=1, keys=7, kv_heads=1)
    layer = replace(layer, kept=np.ones((1, 1, 7), bool), key_norm=np.array([[[2, 4, 1, 2, 3, 5, 89]]], np.float32))
    found = measure_mechanism(layer, np.array([[[True, True, *[False] * 5]]]), heads=1)
    assert found.centre == "mean" and found.ratios["key_norm"] == pytest.approx(3 / 20)
    assert summarise_mechanism([found]).centre == "mean"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_ratios_equal_a_plain_loop(seed: int, kept: bool) -> None:
    rng = np.random.default_rng(seed)
    layer = plain_layer(steps=4, heads=4, keys=9)

    def some(*shape: int) -> np.ndarray:
        return rng.exponential(size=shape).astype(np.float32)

    received = some(4, 4, 9)
    received[rng.random((4, 4, 9)) < 0.1] = np.nan
    sinks = rng.random((4, 4, 9)) < 0.2
    layer = replace(
        layer, received=received, key_norm=some(4, 2, 9), value_norm=some(4, 2, 9), output_norm=some(4, 4, 9),
        hidden_norm=some(4, 9), kept=np.ones((4, 4, 9), bool) if kept else None,
    )  # fmt: skip
    found = measure_mechanism(layer, sinks, heads=4)
    centre = fmean if kept else median
    for name in MEASURES:
        ratios = []
        for step in range(4):
            for head in range(4):
                key, value = (norm[step, head // 2] for norm in (layer.key_norm, layer.value_norm))  # type: ignore
                output, hidden = layer.output_norm[step, head], layer.hidden_norm[step]  # type: ignore
                row = dict(zip(MEASURES, (key, value, output, hidden, received[step, head] * output), strict=True))[
                    name
                ]
                there = ~np.isnan(received[step, head])
                high = row[sinks[step, head] & there].astype(float).tolist()
                rest = row[~sinks[step, head] & there].astype(float).tolist()
                if high and rest:
                    ratios.append(centre(high) / centre(rest))
        if ratios:
            assert found.ratios[name] == pytest.approx(median(ratios), rel=1e-5)
        else:
            assert math.isnan(found.ratios[name])


def test_only_what_was_recorded_is_reported() -> None:
    layer = plain_layer()
    layer = replace(layer, output_norm=None, hidden_norm=None, output_rank=None, output_size=None)
    result = summarise_mechanism([measure_mechanism(layer, first_key(layer, (0,)), heads=4)])
    assert set(result.ratios) == {"key_norm", "value_norm"}
    assert result.contribution_share is None and result.rank_with_sink is None and result.size_ratio is None
    assert [head.verdict for head in result.heads] == [None, "no sink", "no sink", "no sink"]
    assert result.verdicts == {"no-op": 0, "broadcast": 0, "mixed": 0, "no sink": 3}


def test_it_is_json() -> None:
    layer, sinks = planted()
    result = summarise_mechanism([measure_mechanism(layer, sinks, heads=4)] * 2, draws=10)
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert document["ratios"]["output_norm"]["n"] == 2 and document["heads"][0]["verdict"] == "no-op"


def test_wrong_arguments_are_refused() -> None:
    layer = plain_layer()
    sinks = first_key(layer, (0,))
    bare = replace(
        layer, key_norm=None, value_norm=None, output_norm=None, hidden_norm=None, output_rank=None, output_size=None
    )
    with pytest.raises(
        UsageError, match=r"without norms.*read it with norms=True, from a trace that was recorded without `--no-norms`"
    ):
        measure_mechanism(bare, sinks, heads=4)
    with pytest.raises(UsageError, match="heads is 3, but the layer holds head 3; pass the model's total"):
        measure_mechanism(layer, sinks, heads=3)
    with pytest.raises(UsageError, match="5 heads cannot share 2 kv heads; pass the model's total as heads"):
        measure_mechanism(layer, sinks, heads=5)
    with pytest.raises(UsageError, match="no samples to summarise; expected at least one entry"):
        summarise_mechanism([])
    part = measure_mechanism(layer, sinks, heads=4)
    with pytest.raises(UsageError, match="entries are of different layers or heads; expected one layer of several"):
        summarise_mechanism([part, replace(part, layer=6)])
