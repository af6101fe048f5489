"""The rule by itself, on single attention calls: random ones of every kind, and ones with a known answer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from interventions.replayed import Replay
from kernels.problems import Problem, problems
from sinklens.attention.call import AttentionCall, Site
from sinklens.attention.clock import StepNumber, at_step
from sinklens.attention.seam import Seen
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.masking import Masking
from sinklens.interventions.views import looks_ahead
from sinklens.kernels.forward import run_attention
from sinklens.types import ModelSpec

RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large]
DLM = {"rank_by": "received", "queries": "all", "keys": "recomputed"}
ARM = {"rank_by": "last_row", "queries": "last", "keys": "cached"}


def model(causal: bool) -> nn.Module:
    module: Any = nn.Module()
    module.spec = ModelSpec(
        family="any", layers=1, heads=1, kv_heads=1, head_dim=1, width=1, vocab_size=1, causal=causal
    )
    return module  # type: ignore[no-any-return]


def at(call: AttentionCall, step: int, layer: int = 0) -> AttentionCall:
    return replace(call, site=Site(step=step, layer=layer, module="m"))


def logits_call(logits: Tensor, **more: Any) -> AttentionCall:
    """A call with exactly these logits, [batch, head, query, key]."""
    keys = logits.shape[-1]
    eye = torch.eye(keys, dtype=logits.dtype).expand(*logits.shape[:2], keys, keys)
    return AttentionCall(query=logits, key=eye, value=eye, scale=1.0, **more)


def step_through(lab: Masking, calls: list[AttentionCall]) -> list[AttentionCall]:
    """What becomes of the calls, one a step, under a sampler's clock."""
    changed = []
    for step, call in enumerate(calls):
        with at_step(StepNumber(step)):
            changed.append(lab(at(call, step)))
    return changed


def hidden_keys(call: AttentionCall) -> Any:
    """Sets of hidden keys, [batch][head], where all queries are denied the same."""
    assert call.mask is not None
    assert call.mask.dtype == torch.bool
    return [[set(np.flatnonzero(~head[0])) for head in row] for row in call.mask.numpy()]


@st.composite
def runs(draw: st.DrawFn) -> list[AttentionCall]:
    """Three steps of one shape, under any kind of mask, some queries padding; then keys are evicted."""
    problem: Problem = draw(problems(dtypes=("float64",), most=12, groups_drawn=(1,)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    queries, keys = problem.query.shape[2], problem.key.shape[2]
    spread = torch.randperm(2 * keys, generator=generator)[:keys]
    call = AttentionCall(
        query=problem.query,
        key=problem.key,
        value=torch.randn(problem.key.shape, generator=generator, dtype=torch.float64),
        real_queries=problem.codes >= 0 if draw(st.booleans()) else None,
        key_positions=draw(st.sampled_from([None, spread, spread.sort().values])),
        query_positions=torch.arange(queries) + keys,
        **problem.options,
    )
    if draw(st.booleans()):
        call = replace(call, real_keys=torch.rand(call.key.shape[::2], generator=generator) > 0.2)
    calls = [
        replace(call, query=call.query + torch.randn(call.query.shape, generator=generator, dtype=torch.float64))
        for _ in range(3)
    ]
    kept = torch.randperm(keys, generator=generator)[: keys // 2 + 1]
    return [*calls, calls[0].keep_keys(kept)]


def assert_replayed(calls: list[AttentionCall], settings: dict[str, Any], *, causal: bool) -> None:
    lab = MaskSinks(**settings).start(model(causal))
    changed = step_through(lab, calls)
    seen = [
        Seen(incoming=at(call, step), effective=after, forward=run_attention(after.scores, after.value))
        for step, (call, after) in enumerate(zip(calls, changed, strict=True))
    ]
    replay = Replay(**({"causal": causal} | (ARM if causal else DLM) | settings))
    replay.follow(seen, tolerance=1e-6 if calls[0].sink_logits is None and calls[0].softcap is None else 1e-4)
    assert changed[0].mask is calls[0].mask
    for got, (_, step, _, removed, largest) in zip(lab.doses, replay.doses, strict=True):
        if not np.isnan(removed):
            assert (got.step, got.removed, got.largest) == pytest.approx((step, removed, largest), abs=1e-6)


@settings(max_examples=80, deadline=None, suppress_health_check=RELAXED)
@given(runs(), st.integers(1, 6), st.sampled_from(["before", "after"]))
def test_any_bidirectional_run_follows_the_rule(calls: list[AttentionCall], top: int, measure: str) -> None:
    assert_replayed(calls, {"top": top, "measure": measure}, causal=False)


@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
@given(
    runs(), st.integers(1, 6), st.sampled_from(["before", "after"]), st.sampled_from(["last_row", "received"])
)  # fmt: skip
def test_any_causal_run_follows_the_rule(calls: list[AttentionCall], top: int, measure: str, rank_by: str) -> None:
    assert_replayed(calls, {"top": top, "measure": measure, "rank_by": rank_by}, causal=True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=2, max_size=5),
    st.integers(1, 8),
    st.booleans(),
)
def test_the_masked_set_is_the_k_largest_of_the_step_before(rows: list[list[int]], top: int, causal: bool) -> None:
    """One query a step, whole-number logits: of equals the lower position is taken, and at least one key stays."""
    calls = [logits_call(torch.tensor(row, dtype=torch.float64).view(1, 1, 1, -1)) for row in rows]
    changed = step_through(MaskSinks(top=top).start(model(causal)), calls)
    assert changed[0].mask is None
    for before, after in zip(rows, changed[1:], strict=False):
        assert hidden_keys(after) == [[set(sorted(range(9), key=lambda j: (-before[j], j))[:top])]]


def test_heads_rows_and_layers_are_ranked_apart() -> None:
    logits = torch.zeros(2, 2, 3, 5)
    for (row, head), key in {(0, 0): 4, (0, 1): 1, (1, 0): 2, (1, 1): 0}.items():
        logits[row, head, :, key] = 5.0
    lab = MaskSinks(top=1).start(model(False))
    lab(at(logits_call(logits), 0, layer=0))
    lab(at(logits_call(logits.flip(-1)), 0, layer=1))
    assert hidden_keys(lab(at(logits_call(logits), 1, layer=0))) == [[{4}, {1}], [{2}, {0}]]
    assert hidden_keys(lab(at(logits_call(logits), 1, layer=1))) == [[{0}, {3}], [{2}, {4}]]


def test_read_after_its_own_mask_the_ranking_oscillates() -> None:
    """The masked key has received nothing, so the runner-up is masked next, and the sink comes back."""
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1])).expand(1, 1, 4, 3)
    calls = [logits_call(logits)] * 5
    labs = {measure: MaskSinks(top=1, measure=measure).start(model(False)) for measure in ("before", "after")}
    changed = {measure: step_through(lab, calls)[1:] for measure, lab in labs.items()}
    assert [hidden_keys(call) for call in changed["before"]] == [[[{0}]]] * 4
    assert [hidden_keys(call) for call in changed["after"]] == [[[{0}]], [[{1}]], [[{0}]], [[{1}]]]
    ratios = {measure: [dose.ratio for dose in lab.doses] for measure, lab in labs.items()}
    assert ratios["before"] == pytest.approx([0, 1, 1, 1, 1], abs=1e-6)
    assert ratios["after"] == pytest.approx([0, 1, 0.5, 1, 0.5], abs=1e-6)
    assert labs["after"].dose == pytest.approx(0.75, abs=1e-6)


def test_masking_equals_dropping_the_keys() -> None:
    """Where every head loses the same keys."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 1, 20, 8), torch.randn(1, 1, 20, 8), torch.randn(1, 4, 20, 8)
    call = AttentionCall(query=query.expand(1, 4, 20, 8), key=key.expand(1, 4, 20, 8), value=value)
    _, masked = step_through(MaskSinks(top=5).start(model(False)), [call, call])
    (heads,) = hidden_keys(masked)
    assert heads[0] == heads[1] == heads[2] == heads[3]
    assert len(heads[0]) == 5
    keep = torch.tensor([j not in heads[0] for j in range(20)])
    dropped = call.keep_keys(keep)
    torch.testing.assert_close(
        run_attention(masked.scores, value).output,
        run_attention(dropped.scores, dropped.value).output,
        atol=1e-6,
        rtol=0,
    )


def test_the_last_key_that_a_query_sees_stays() -> None:
    """Keys go in the order of their rank, so the lowest ranked stays; under a causal mask, query by query."""
    wide = logits_call(torch.tensor([[2.0, 1.0, 3.0]]).expand(1, 1, 2, 3))
    _, masked = step_through(MaskSinks(top=9).start(model(False)), [wide, wide])
    assert hidden_keys(masked) == [[{0, 2}]]
    square = logits_call(torch.tensor([[0.0, 1.0, 2.0]]).expand(1, 1, 3, 3), is_causal=True)
    lab = MaskSinks(top=2, keys="recomputed").start(model(True))
    _, masked = step_through(lab, [square, square])  # the newest query ranks 2, 1, 0
    assert masked.mask is not None
    assert masked.mask[0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, False]]
    lab = MaskSinks(top=3, keys="recomputed").start(model(True))
    _, masked = step_through(lab, [square, square])
    assert masked.mask is not None
    assert masked.mask[0, 0].tolist() == [[True, False, False]] * 3
    assert lab.doses[1].removed == pytest.approx(_removed_by_hand(), abs=1e-6)


def _removed_by_hand() -> float:
    weights = [torch.softmax(torch.arange(n).double(), 0) for n in (1, 2, 3)]
    return sum(1 - float(row[0]) for row in weights) / 3


def test_masks_are_as_narrow_as_they_can_be() -> None:
    """Bidirectional or one query: nothing of size query x key is made."""
    query = torch.randn(1, 2, 6000, 4)
    call = AttentionCall(query=query, key=query, value=query)
    _, masked = step_through(MaskSinks(top=1).start(model(False)), [call, call])
    assert masked.mask is not None
    assert masked.mask.shape == (1, 2, 1, 6000)
    newest = replace(call, query=query[:, :, -1:])
    _, masked = step_through(MaskSinks(top=1).start(model(True)), [replace(call, is_causal=True), newest])
    assert masked.mask is not None
    assert masked.mask.shape == (1, 2, 1, 6000)


def test_a_target_that_was_evicted_is_no_loss() -> None:
    call = logits_call(torch.tensor([0.0, 3.0, 1.0, 2.0]).view(1, 1, 1, 4), key_positions=torch.tensor([0, 5, 2, 7]))
    left = call.keep_keys(torch.tensor([3, 0]))
    _, masked = step_through(MaskSinks(top=2).start(model(False)), [call, left])  # ranked: positions 5 and 7
    assert hidden_keys(masked) == [[{0}]]  # position 7 stands first


def test_the_same_step_again_is_masked_alike_and_a_new_run_is_not() -> None:
    first, second = (logits_call(torch.tensor(row).view(1, 1, 1, 3)) for row in ([3.0, 1.0, 0.0], [0.0, 1.0, 3.0]))
    lab = MaskSinks(top=1).start(model(False))
    with at_step(StepNumber(0)):
        lab(at(first, 0))
    with at_step(StepNumber(1)):
        assert hidden_keys(lab(at(second, 1))) == [[{0}]]
        assert hidden_keys(lab(at(second, 1))) == [[{0}]]
    with at_step(StepNumber(2)):
        assert hidden_keys(lab(at(first, 2))) == [[{2}]]
    with at_step(StepNumber(1)):  # back: another run, seen from its step 1 on
        assert lab(at(first, 1)).mask is None
    with at_step(StepNumber(2)):
        assert hidden_keys(lab(at(first, 2))) == [[{0}]]
        assert lab(at(logits_call(torch.zeros(2, 1, 1, 3)), 2)).mask is None  # another batch
    assert [dose.run for dose in lab.doses] == [0, 0, 0, 0, 1, 1, 2]


def test_without_a_sampler_the_shape_tells_a_new_run() -> None:
    wide, narrow = logits_call(torch.ones(1, 1, 4, 4)), logits_call(torch.ones(1, 1, 3, 3))
    lab = MaskSinks(top=1).start(model(False))
    masks = [lab(at(call, step)).mask for step, call in enumerate([wide, wide, narrow, narrow])]
    assert [mask is None for mask in masks] == [True, False, True, False]


def test_looking_ahead_is_told_from_real_positions_alone() -> None:
    """Some models let padding queries see everything; that says nothing about the family."""
    call = logits_call(torch.zeros(1, 1, 3, 3))
    square, real = torch.ones(3, 3, dtype=torch.bool), torch.tensor([[False, True, True]])
    assert looks_ahead(call)
    assert looks_ahead(replace(call, mask=square))
    assert not looks_ahead(replace(call, is_causal=True))
    assert not looks_ahead(replace(call, mask=square.tril()))
    first_sees_all = square.tril() | torch.tensor([[True], [False], [False]])
    assert looks_ahead(replace(call, mask=first_sees_all))
    assert not looks_ahead(replace(call, mask=first_sees_all, real_queries=real, real_keys=real))
    last_is_seen = square.tril() | torch.tensor([False, False, True])
    assert looks_ahead(replace(call, mask=last_is_seen))
    assert not looks_ahead(replace(call, mask=last_is_seen, real_keys=real.flip(-1)))
    newest = replace(call, query=call.query[:, :, -1:])
    assert not looks_ahead(newest)
    assert looks_ahead(replace(newest, query_positions=torch.tensor([1])))


def test_gradients_pass_through_a_masked_call() -> None:
    bias = torch.zeros(1, 1, 4, 4, requires_grad=True)
    call = logits_call(torch.randn(1, 1, 4, 4), mask=bias)
    _, masked = step_through(MaskSinks(top=1).start(model(False)), [call, call])
    run_attention(masked.scores, masked.value).output.square().sum().backward()
    assert bias.grad is not None
    assert bias.grad.any()
