"""Where removed attention goes: by hand, and from whole maps of real runs."""

from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinklens as sl
from interventions.replayed import counted, probed, real_keys, truth_of
from interventions.test_masking_models import LLADA, ROWS, arm
from interventions.test_masking_rule import RELAXED, logits_call, model, runs, step_through
from sinklens.attention.call import AttentionCall
from sinklens.interventions.flow import Flow, shares
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys


def test_what_every_kind_of_key_gains() -> None:
    """Key 0 is masked; keys 1 and 2 are near it; of the rest key 5 ranks highest."""
    weights = torch.tensor([0.5, 0.1, 0.05, 0.05, 0.1, 0.2]).double()
    call = logits_call(weights.log().expand(1, 1, 3, 6))
    lab = MaskSinks(top=1, follow=True).start(model(False))
    step_through(lab, [call, call])
    (flow,) = lab.flows
    assert (flow.run, flow.step, flow.layer) == (0, 1, 0)
    assert (flow.neighbours, flow.next_ranked, flow.others) == pytest.approx((0.15, 0.2, 0.15), abs=1e-6)
    assert flow.null == 0
    assert flow.removed == pytest.approx(lab.doses[1].removed, abs=1e-6) == pytest.approx(0.5)
    assert flow.new_sinks == 0


def test_the_shares_of_a_whole_run() -> None:
    def flow(step: int, *parts: float) -> Flow:
        names = ("neighbours", "next_ranked", "others", "null", "new_sinks")
        return Flow(run=0, step=step, layer=0, **dict(zip(names, parts, strict=True)))

    nan = float("nan")  # a step that denied nobody anything
    found = shares(
        [flow(1, 0.1, 0.2, 0.1, 0.0, 0.5), flow(2, 0.3, 0.0, 0.2, 0.1, 0.0), flow(3, nan, nan, nan, nan, nan)]
    )
    assert found == pytest.approx(
        {"neighbours": 0.4, "next_ranked": 0.2, "others": 0.3, "null": 0.1, "new_sinks": 0.25}
    )
    assert all(isnan(value) for value in shares([]).values())


def test_a_key_that_rises_above_the_threshold_is_a_new_sink() -> None:
    """Without key 0, key 9 of head 0 has 1.3 of 2.8 parts, 4.2 fair shares among 9 keys; before, it had 1.3."""
    strong = torch.tensor([7.2] + [0.25] * 6 + [0.0] * 2 + [1.3]) + 1e-3
    call = logits_call(torch.stack([strong, torch.ones(10)]).double().log()[None, :, None].expand(1, 2, 10, 10))
    lab = MaskSinks(top=1, follow=True).start(model(False))
    step_through(lab, [call, call])
    assert lab.flows[0].new_sinks == 0.5
    higher = MaskSinks(epsilon=5.0, follow=True).start(model(False))
    step_through(higher, [call, call])
    assert higher.flows[0].new_sinks == 0


def test_a_sink_that_was_one_before_is_not_new() -> None:
    weights = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4]).double() + 0.01
    call = logits_call(weights.log().expand(1, 1, 10, 10))  # 4.1 fair shares before, 8 after
    lab = MaskSinks(top=1, follow=True).start(model(False))
    step_through(lab, [call, call])
    assert lab.flows[0].new_sinks == 0


def test_learned_sinks_take_their_part() -> None:
    speaker = arm("gpt_oss", "eager")
    with sl.intervene(speaker, MaskSinks(top=2, follow=True)) as lab:
        sl.generate(speaker, ROWS, sl.AutoregressiveSampler(length=6))
    doses = [dose for dose in lab.doses if dose.masked]
    assert [flow.removed for flow in lab.flows] == pytest.approx([dose.removed for dose in doses], abs=1e-5)
    assert any(flow.null > 0.01 for flow in lab.flows)


@pytest.mark.parametrize("chosen", [MaskSinks(top=2, follow=True), RandomKeys(epsilon=0.3, follow=True)], ids=str)
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_the_parts_of_real_runs(golden: Path, name: str, chosen: Any) -> None:
    speaker: Any = arm() if name == "llama" else sl.load(golden / "llada")
    sampler: Any = sl.AutoregressiveSampler(length=6) if name == "llama" else LLADA
    with probed(speaker, chosen) as (lab, seen):
        sl.generate(speaker, ROWS, sampler)
    masked = [one for one, dose in zip(seen, lab.doses, strict=True) if dose.masked]
    assert len(masked) == len(lab.flows) > 4
    for one, flow in zip(masked, lab.flows, strict=True):
        assert (flow.neighbours, flow.next_ranked, flow.others) == pytest.approx(parts(one), abs=2e-5)


def parts(one: Any) -> tuple[float, float, float]:
    """The same from the maps before and after, key by key."""
    before, after, asked = truth_of(one.incoming), truth_of(one.effective), counted(one.incoming)
    lost, gain = (before.visible & ~after.visible).any(2), after.received(asked) - before.received(asked)
    received, where = before.received(asked), one.incoming.where_keys().tolist()
    found = np.zeros((3, *gain.shape[:2]))
    for row, head in np.ndindex(*gain.shape[:2]):
        gone = set(np.flatnonzero(lost[row, head]))
        rest = [j for j in range(len(where)) if j not in gone and real_keys(one.incoming)[row, j]]
        near = [j for j in rest if any(abs(where[j] - where[k]) <= 2 for k in gone)]
        others = sorted((j for j in rest if j not in near), key=lambda j: -received[row, head, j])
        following, others = others[: len(gone)], others[len(gone) :]
        for kind, keys in enumerate((near, following, others)):
            found[kind, row, head] = sum(gain[row, head, j] for j in keys) / max(1, asked[row].sum())
    return tuple(found[:, asked.any(-1)].mean((1, 2)).tolist())  # type: ignore[return-value]


@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
@given(runs(), st.integers(1, 6))
def test_the_parts_of_any_run_add_up(calls: list[AttentionCall], top: int) -> None:
    """Also where a query keeps a denied key because it sees no other."""
    lab = MaskSinks(top=top, follow=True).start(model(False))
    step_through(lab, calls)
    masked = [dose for dose in lab.doses if dose.masked]
    for dose, flow in zip(masked, lab.flows, strict=True):
        assert flow.removed == pytest.approx(dose.removed, abs=1e-6, nan_ok=True)
        assert min(flow.neighbours, flow.next_ranked, flow.others, flow.null) > -1e-6 or isnan(flow.others)


def test_nothing_is_followed_unasked() -> None:
    call = logits_call(torch.zeros(1, 1, 3, 6))
    lab = MaskSinks(top=1).start(model(False))
    step_through(lab, [call, call])
    assert lab.flows == []
