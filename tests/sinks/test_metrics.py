"""The definitions of a sink: each by hand, against one another, and where they cannot answer."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sinklens.errors import UsageError
from sinklens.sinks.agreement import CONVERTIBLE, agreement, conversion_table, convert, jaccard
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import detect_sinks, excess, received_of_map, top_sinks
from sinklens.sinks.metrics import METRICS, absorbed, select, sink_rate


def layer_of(maps: Any, *, visible: Any = None, causal: bool = False) -> LayerArrays:
    """Maps [step, head, query, key] as a layer."""
    maps = np.asarray(maps, np.float32)
    shown = np.ones(maps.shape[-2:], bool) if visible is None else visible
    sums = received_of_map(maps, visible=shown, causal=causal)
    steps, heads, keys = sums.received.shape
    return LayerArrays(
        layer=0,
        steps=np.arange(steps),
        heads=np.arange(heads),
        received=sums.received,
        expected=np.broadcast_to(sums.expected, (steps, 1, keys)),
        viewers=np.broadcast_to(sums.viewers, (steps, 1, keys)),
    )


def random_layer(seed: int, *, keys: int = 24, sharp: float = 2.0, causal: bool = False) -> LayerArrays:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(3, 2, keys, keys)) + sharp * generator.normal(size=(3, 2, 1, keys))
    mask = np.tril(np.ones((keys, keys), bool)) if causal else np.ones((keys, keys), bool)
    weights = np.where(mask, np.exp(logits), 0)
    return layer_of(weights / weights.sum(-1, keepdims=True), causal=causal)


def row_layer(received: Any) -> LayerArrays:
    """One step, one head of square bidirectional attention with these column sums."""
    sums = np.asarray(received, np.float32)[None, None]
    ones = np.ones_like(sums)
    return LayerArrays(
        layer=0,
        steps=np.arange(1),
        heads=np.arange(1),
        received=sums,
        expected=ones,
        viewers=ones * sums.shape[-1],
    )


def cut(layer: LayerArrays) -> LayerArrays:
    """The layer as a trace of detail "sinks" gives it back: what does not stand out holds its common mean."""
    kept = excess(layer.received, layer.expected) > 1
    share = np.where(kept, 0.0, layer.fair_share)
    mean = share.sum(-1, keepdims=True) / np.maximum((~kept).sum(-1, keepdims=True), 1)
    filled = np.where(kept, layer.received, mean * layer.expected).astype(np.float32)
    return replace(layer, received=filled, kept=kept)


# --- each definition by hand ------------------------------------------------------------------------------------------

ROW = [6.0, 4.2, 3.6, 0.0, 0.0] + [0.2] * 11  # 16 keys, 16 fair shares


@pytest.mark.parametrize(
    ("metric", "value", "positions"),
    [
        ("epsilon", None, [0, 1]),  # 3.6 exceeds the others' mean by 2.77
        ("epsilon", 2.7, [0, 1, 2]),
        ("ratio", None, [0, 1]),
        ("ratio", 3.5, [0, 1, 2]),
        ("gu", None, [0]),  # 6 / 16 = .375, 4.2 / 16 = .2625
        ("gu", 0.26, [0, 1]),
        ("mass", None, [0, 1, 2]),
        ("mass", 0.23, [0, 1]),
        ("sigma", None, []),  # mean 1, standard deviation 1.786: 1 + 3 of them is 6.36
        ("sigma", 2.7, [0]),
        ("top", None, [0]),
        ("top", 3, [0, 1, 2]),
    ],
)
def test_known_answers(metric: str, value: float | None, positions: list[int]) -> None:
    assert sum(ROW) == pytest.approx(16) and np.std(ROW) == pytest.approx(1.786, abs=1e-3)
    assert np.flatnonzero(select(row_layer(ROW), metric, value)[0, 0]).tolist() == positions


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(list(METRICS)), st.sampled_from([1, 8]))
def test_rules_agree_with_loops(seed: int, causal: bool, metric: str, min_viewers: int) -> None:
    """One key at a time in float64; values near the threshold are left to rounding."""
    layer = random_layer(seed, causal=causal)
    value = {"epsilon": 1.5, "ratio": 2.5, "gu": 0.1, "mass": 0.08, "sigma": 2.0, "top": 2.0}[metric]
    got = select(layer, metric, value, min_viewers=min_viewers)
    for step, head in np.ndindex(got.shape[:2]):
        received = layer.received[step, head].astype(np.float64)
        expected, viewers = layer.expected[step, 0].astype(np.float64), layer.viewers[step, 0]
        share = [float(a / b) for a, b in zip(received, expected, strict=True)]
        keys = len(share)
        mean = math.fsum(share) / keys
        sigma = math.sqrt(math.fsum((one - mean) ** 2 for one in share) / keys)
        eligible = [j for j in range(keys) if viewers[j] >= min_viewers]
        ranked = sorted(eligible, key=lambda j: -share[j])
        for j in range(keys):
            margin = {
                "epsilon": share[j] - (math.fsum(share) - share[j]) / (keys - 1) - value,
                "ratio": share[j] - value,
                "gu": received[j] / viewers[j] - value,
                "mass": received[j] / keys - value,  # as many queries as keys
                "sigma": share[j] - mean - value * sigma,
                "top": 1.0 if j in ranked[:2] else -1.0,
            }[metric]
            if abs(margin) > 1e-5:
                assert got[step, head, j] == (margin > 0 and j in eligible)


def test_epsilon_and_top_are_those_of_detect() -> None:
    layer = random_layer(3, causal=True)
    sinks = detect_sinks(layer.received, layer.expected, 2.0, viewers=layer.viewers)
    np.testing.assert_array_equal(select(layer, value=2), sinks)
    best = top_sinks(layer.received, layer.expected, k=2, viewers=layer.viewers)
    np.testing.assert_array_equal(select(layer, "top", 2), best)
    assert select(layer, "top").sum(-1).tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("metric", sorted(set(METRICS) - {"top"}))
@pytest.mark.parametrize("causal", [True, False])
def test_uniform_attention_has_no_sinks_but_the_top(metric: str, causal: bool) -> None:
    """The trap of top k: it names keys where there is nothing to name."""
    mask = np.tril(np.ones((40, 40))) if causal else np.ones((40, 40))
    layer = layer_of((mask / mask.sum(-1, keepdims=True))[None, None], causal=causal)
    value = 0.2 if causal and metric == "mass" else None  # the first key of 40 takes .11 of causal attention
    assert not select(layer, metric, value).any()
    assert select(layer, "top").sum() == 1
    if causal and metric == "mass":
        assert select(layer, "mass").any()  # that definition knows no mask


def test_sigma_fires_in_rows_that_are_almost_flat() -> None:
    """Its trap: a tenth of a fair share more is 3 standard deviations where the others do not differ."""
    received = np.full(64, 1.0)
    received[5] = 1.1
    assert np.flatnonzero(select(row_layer(received), "sigma")[0, 0]).tolist() == [5]
    assert not select(row_layer(received)).any()
    received[5] = 1 + 1e-6  # what float32 sums leave of equal shares
    assert not select(row_layer(received), "sigma").any()


def test_masks_may_differ_between_heads() -> None:
    layer = random_layer(11, causal=True)
    shape = layer.received.shape
    wide = replace(
        layer, expected=np.broadcast_to(layer.expected, shape), viewers=np.broadcast_to(layer.viewers, shape)
    )
    for metric in METRICS:
        chosen = select(layer, metric)
        np.testing.assert_array_equal(select(wide, metric), chosen)
        np.testing.assert_array_equal(absorbed(wide, chosen), absorbed(layer, chosen))


def test_padding_is_never_selected() -> None:
    """A padded key changes nothing for the others."""
    visible = np.ones((20, 20), bool)
    visible[:, :3] = visible[:3] = False
    generator = np.random.default_rng(0)
    weights = np.where(visible, np.exp(2 * generator.normal(size=(1, 1, 20, 20)) + 0.0), 0)
    weights[..., 7] *= 30
    maps = weights / np.where(visible.any(-1), weights.sum(-1), 1)[..., None]
    padded, alone = layer_of(maps, visible=visible), layer_of(maps[..., 3:, 3:])
    growing = replace(padded, received=np.where(np.arange(20) < 3, np.float32(np.nan), padded.received))
    for metric in METRICS:
        for layer in (padded, growing):
            chosen = select(layer, metric)
            assert not chosen[..., :3].any()
            np.testing.assert_array_equal(chosen[..., 3:], select(alone, metric))
            np.testing.assert_allclose(absorbed(layer, chosen), absorbed(alone, select(alone, metric)), rtol=1e-6)


# --- mass and rate ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_absorbed_is_the_share_of_all_attention(seed: int, causal: bool) -> None:
    layer = random_layer(seed, causal=causal)
    everything = np.ones(layer.received.shape, bool)
    np.testing.assert_allclose(absorbed(layer, everything), 1.0, rtol=1e-5)
    chosen = np.random.default_rng(seed).random(layer.received.shape) < 0.4
    np.testing.assert_allclose(absorbed(layer, chosen) + absorbed(layer, ~chosen), 1.0, rtol=1e-5)
    wanted = np.where(chosen, layer.received, 0).sum(-1) / 24
    np.testing.assert_allclose(absorbed(layer, chosen), wanted, rtol=1e-5)


def test_without_queries_nothing_is_absorbed() -> None:
    layer = row_layer(np.zeros(9))
    nobody = replace(layer, expected=np.zeros_like(layer.expected), viewers=np.zeros_like(layer.viewers))
    assert np.isnan(absorbed(nobody, np.zeros((1, 1, 9), bool))).all()
    for metric in METRICS:
        assert not select(nobody, metric).any()


def test_sink_rate_is_the_number_of_gu_et_al() -> None:
    """Their formula on the maps themselves: 64 tokens, alpha_k = sum over i >= k of A[i, k] / (T - k + 1)."""
    generator = np.random.default_rng(7)
    logits = generator.normal(size=(1, 12, 64, 64))
    logits[..., 0] += np.linspace(0, 6, 12)[None, :, None]
    weights = np.where(np.tril(np.ones((64, 64), bool)), np.exp(logits), 0)
    maps = weights / weights.sum(-1, keepdims=True)
    layer = layer_of(maps, causal=True)
    for position in (0, 1, 40):
        alpha = maps[0, :, position:, position].sum(-1) / (64 - position)
        rate = sink_rate(layer, position=position)
        assert rate.shape == (1,)
        assert rate[0] == pytest.approx((alpha > 0.3).mean())
    assert 0.2 < sink_rate(layer)[0] < 0.8  # some heads, not all
    np.testing.assert_allclose(sink_rate(layer), select(layer, "gu")[..., 0].mean(-1))


def test_sink_rate_where_the_position_is_not_there_yet() -> None:
    layer = row_layer([8.0] + [0.0] * 7)
    assert sink_rate(layer).tolist() == [1.0]
    gone = replace(layer, received=np.where(np.arange(8) == 3, np.float32(np.nan), layer.received))
    assert np.isnan(sink_rate(gone, position=3)).all()
    with pytest.raises(UsageError, match="position 8 is not among the 8 keys; expected 0 to 7"):
        sink_rate(layer, position=8)


# --- conversions ------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(8, 60), st.sampled_from([0.5, 2.0, 5.0]),
    st.sampled_from(CONVERTIBLE), st.sampled_from(CONVERTIBLE),
)  # fmt: skip
def test_a_converted_threshold_selects_the_same_keys(seed: int, keys: int, sharp: float, source: str, to: str) -> None:
    layer = random_layer(seed, keys=keys, sharp=sharp)
    ratio = float(np.random.default_rng(seed).uniform(1.05, 0.7 * keys))
    assume(not (np.abs(layer.fair_share - ratio) < 1e-4 * ratio).any())  # rounding decides there
    value = convert(ratio, source="ratio", to=source, keys=keys)
    there = convert(value, source=source, to=to, keys=keys)
    np.testing.assert_array_equal(select(layer, source, value), select(layer, to, there))
    assert convert(there, source=to, to=source, keys=keys) == pytest.approx(value)


def test_three_more_than_the_others_is_four_times_uniform_in_long_rows() -> None:
    assert convert(3, source="epsilon", to="ratio", keys=64) == pytest.approx(1 + 3 * 63 / 64)
    assert convert(3, source="epsilon", to="ratio", keys=10**6) == pytest.approx(4, abs=1e-5)
    assert convert(3, source="epsilon", to="mass", keys=192) == pytest.approx((1 + 3 * 191 / 192) / 192)


def test_the_table_holds_every_definition_and_its_limit() -> None:
    rows = {row["metric"]: row for row in conversion_table(64)}
    assert list(rows) == list(METRICS)
    for name in CONVERTIBLE:
        assert rows[name][name] == pytest.approx(METRICS[name].default)
    assert rows["sigma"]["ratio"] is None and rows["top"]["epsilon"] is None
    alone = np.zeros(64)
    alone[9] = 64.0  # a key that takes everything is just above any value below the limit, and nothing is at it
    for name in set(METRICS) - {"top"}:
        most = rows[name]["at most"]
        assert np.flatnonzero(select(row_layer(alone), name, most * 0.999)[0, 0]).tolist() == [9]
        with pytest.raises(UsageError, match="cannot be exceeded"):
            select(row_layer(alone), name, most)


@pytest.mark.parametrize("metric", ["sigma", "top"])
def test_what_depends_on_the_row_is_not_converted(metric: str) -> None:
    with pytest.raises(UsageError, match=rf"metric '{metric}' depends on all keys of the row.*agreement\(\)"):
        convert(1, source="epsilon", to=metric, keys=9)
    with pytest.raises(UsageError, match=rf"metric '{metric}' depends"):
        convert(1, source=metric, to="ratio", keys=9)


def test_conversions_need_a_known_metric_and_two_keys() -> None:
    with pytest.raises(UsageError, match="unknown metric 'sum'; expected one of 'epsilon', 'ratio'"):
        convert(1, source="sum", to="ratio", keys=9)
    with pytest.raises(UsageError, match="keys is 1; expected at least 2"):
        convert(1, source="epsilon", to="ratio", keys=1)


PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def test_the_page_holds_the_table_that_the_module_prints() -> None:
    printed = run("-m", "sinklens.sinks.agreement", "192").stdout
    assert len(printed.splitlines()) == 2 + len(METRICS)
    assert printed in PAGE.read_text("utf-8")


def test_the_page_holds_every_definition_with_its_default() -> None:
    page = PAGE.read_text("utf-8")
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.default:g} |" in page


def test_the_commands_of_the_page_do_what_it_says() -> None:
    page = PAGE.read_text("utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    assert run("-c", example + "assert sinks.shape == (4, 64)").returncode == 0
    command, message = page.split("$ python -c ")[1].split("```")[0].strip().splitlines()
    failed = run("-c", command.split('"')[1])
    assert failed.stderr.splitlines()[-1] == message


# --- agreement --------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_agreement_counts_sets(seed: int, causal: bool) -> None:
    layer = random_layer(seed, causal=causal)
    values = {"epsilon": 1.0, "ratio": 2.0, "gu": 0.08, "mass": None, "sigma": 2.0, "top": 1}
    counts = agreement(layer, values)
    chosen = [
        set(map(tuple, np.argwhere(select(layer, name, value)).tolist())) for name, value in values.items()
    ]  # fmt: skip
    table = jaccard(counts)
    for i, first in enumerate(chosen):
        for j, second in enumerate(chosen):
            assert counts.intersection[i, j] == len(first & second)
            assert counts.union[i, j] == len(first | second)
            if first | second:
                assert table[i, j] == pytest.approx(len(first & second) / len(first | second))
            else:
                assert np.isnan(table[i, j])
    twice = counts + counts
    np.testing.assert_array_equal(twice.union, 2 * counts.union)
    np.testing.assert_allclose(jaccard(twice), table)


def test_agreement_of_all_definitions_and_of_some() -> None:
    layer = random_layer(5)
    assert agreement(layer).metrics == tuple(METRICS)
    some = agreement(layer, ["epsilon", "top"])
    assert some.metrics == ("epsilon", "top") and some.union.shape == (2, 2)
    with pytest.raises(UsageError, match=r"counts of \('epsilon', 'top'\) and of .* cannot be added"):
        some + agreement(layer)


def test_where_neither_selects_there_is_no_agreement() -> None:
    flat = row_layer(np.ones(40))
    table = jaccard(agreement(flat))
    assert np.isnan(table[0, 1]) and table[-1, -1] == 1.0 and table[0, -1] == 0.0


# --- what cannot be answered ------------------------------------------------------------------------------------------


def test_values_that_cannot_be_meant() -> None:
    layer = row_layer(np.ones(16))
    with pytest.raises(UsageError, match="unknown metric 'epsilom'; expected one of 'epsilon', 'ratio', 'gu', 'mass'"):
        select(layer, "epsilom")
    for value in (-1, math.nan, math.inf, "3"):
        with pytest.raises(UsageError, match=r"the value of metric 'ratio' is .*; expected a finite number, 0 or more"):
            select(layer, "ratio", value)
    with pytest.raises(UsageError, match=r"the value of metric 'top' is 1\.5; expected a whole number of keys"):
        select(layer, "top", 1.5)
    with pytest.raises(UsageError, match="gu 1 cannot be exceeded in these rows: at most 1 is possible; use a smaller"):
        select(layer, "gu", 1)
    with pytest.raises(UsageError, match=r"sigma 4 cannot be exceeded in these rows: at most 3\.873"):
        select(layer, "sigma", 4)
    for metric in METRICS:
        with pytest.raises(UsageError, match=r"no key is seen by 17 queries or more.*lower min_viewers to 16"):
            select(layer, metric, min_viewers=17)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1.0, 2.0, 3.0]))
def test_a_trace_of_sinks_only_answers_alike_or_not_at_all(seed: int, causal: bool, sharp: float) -> None:
    full = random_layer(seed, sharp=sharp, causal=causal)
    part = cut(full)
    for metric, value in [
        ("epsilon", 1.5), ("epsilon", 0.5), ("ratio", 2.6), ("ratio", 1.2), ("gu", 0.3), ("gu", 0.05), ("mass", 0.15),
        ("mass", 0.02), ("top", 1), ("top", 3), ("sigma", 2),
    ]:  # fmt: skip
        try:
            chosen = select(part, metric, value)
        except UsageError as error:
            assert "left out" in str(error) and "detail 'full'" in str(error)
            continue
        assert metric != "sigma"
        np.testing.assert_array_equal(chosen, select(full, metric, value))
        np.testing.assert_allclose(absorbed(part, chosen), absorbed(full, chosen), rtol=1e-5)


def test_a_trace_of_sinks_only_says_from_where_it_is_exact() -> None:
    part = cut(row_layer(ROW))
    with pytest.raises(UsageError, match=r"ratio 1 needs keys that this trace left out.*or a value of 2 or more"):
        select(part, "ratio", 1)
    assert np.flatnonzero(select(part, "ratio", 2)[0, 0]).tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match=r"epsilon 0\.5 needs .*or a value of 1 or more"):
        select(part, "epsilon", 0.5)
    with pytest.raises(UsageError, match=r"sigma 3 needs keys .*; use a trace of detail 'full'$"):
        select(part, "sigma")
    with pytest.raises(UsageError, match="top 4 needs"):
        select(part, "top", 4)
    with pytest.raises(UsageError, match=r"sink_rate 0\.1 needs keys"):
        sink_rate(part, position=3, threshold=0.1)
    assert sink_rate(part, position=0, threshold=0.1).tolist() == [1.0]


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, sinklens.sinks.detect as d, sinklens.sinks.agreement\n"
        "d.detect_sinks([1.0] * 9)\n"
        "assert not {'torch', 'scipy', 'matplotlib', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
