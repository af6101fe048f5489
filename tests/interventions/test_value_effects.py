"""Values taken while weights stay, and a null key beside them: against whole maps in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinklens as sl
from interventions.replayed import Replay, probed, truth_of, wide
from interventions.test_masking_models import ARM, DLM, LLADA, ROWS, Uncached, arm, assert_follows
from interventions.test_masking_rule import RELAXED, at, logits_call, model, runs, step_through
from sinklens.attention.call import AttentionCall
from sinklens.attention.seam import Seen
from sinklens.errors import UsageError
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.mean_value import MeanValue
from sinklens.interventions.null_sink import NullSink
from sinklens.interventions.random_keys import RandomKeys
from sinklens.interventions.zero_value import ZeroValue
from sinklens.kernels.forward import run_attention

EFFECTS: dict[str, Any] = {"zero": ZeroValue, "mean": MeanValue}


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_diffusion_models(golden: Path, family: str, effect: str) -> None:
    """The weights of every call are the model's own; the doses are those of the keys that MaskSinks would deny."""
    speaker = sl.load(golden / family)
    sampler: Any = sl.DreamSampler(steps=4, length=8) if family == "dream" else LLADA
    with probed(speaker, EFFECTS[effect](top=3)) as (lab, seen):
        sl.generate(speaker, ROWS, sampler)
    assert_follows(lab, seen, Replay(top=3, effect=effect, **DLM))
    for one in seen:
        assert one.effective.mask is one.incoming.mask
        assert one.effective.query is one.incoming.query


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_decoders(effect: str, name: str) -> None:
    speaker = arm(name)
    with probed(speaker, EFFECTS[effect](top=2)) as (lab, seen):
        sl.generate(speaker, ROWS, sl.AutoregressiveSampler(length=6))
    assert_follows(lab, seen, Replay(top=2, effect=effect, **ARM))


@pytest.mark.parametrize("effect", EFFECTS)
def test_all_queries_of_a_decoder_and_nothing_from_the_future(effect: str) -> None:
    """Without a cache: the mean at a key is that of the values up to it."""
    speaker = arm()
    with probed(speaker, EFFECTS[effect](of=MaskSinks(top=2, keys="recomputed"))) as (lab, seen):
        sl.generate(Uncached(speaker), ROWS, sl.AutoregressiveSampler(length=4))
    assert_follows(lab, seen, Replay(top=2, effect=effect, **(ARM | {"queries": "all", "keys": "recomputed"})))


@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
@given(runs(), st.integers(1, 6), st.sampled_from(["zero", "mean"]))
def test_any_run(calls: list[AttentionCall], top: int, effect: str) -> None:
    lab = EFFECTS[effect](top=top).start(model(False))
    changed = step_through(lab, calls)
    seen = [
        Seen(incoming=at(call, step), effective=after, forward=run_attention(after.scores, after.value))
        for step, (call, after) in enumerate(zip(calls, changed, strict=True))
    ]
    tolerance = 1e-6 if calls[0].sink_logits is None and calls[0].softcap is None else 1e-4
    Replay(top=top, effect=effect, **DLM).follow(seen, tolerance=tolerance)


def test_the_keys_of_a_control() -> None:
    """`of` says whose values: the draws of RandomKeys, not the sinks."""
    call = logits_call(torch.randn(1, 3, 6, 6))
    by_mask = step_through(RandomKeys(top=2, seed=4).start(model(False)), [call, call])[1]
    by_value = step_through(ZeroValue(of=RandomKeys(top=2, seed=4)).start(model(False)), [call, call])[1]
    assert by_mask.mask is not None
    assert torch.equal(~by_mask.mask[:, :, 0], ~by_value.value.any(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ZeroValue, "top is None and of is None; expected one of them"),
        (lambda: MeanValue(top=1, of=MaskSinks(top=1)), "expected one of them: MeanValue"),
        (lambda: ZeroValue(top=0), "top is 0; expected an integer of at least 1"),
        (lambda: ZeroValue(of=3), "of is 3; expected settings that choose keys"),
        (lambda: ZeroValue(of=MaskSinks(top=1, follow=True)), "no attention goes anywhere; leave follow out"),
        (lambda: ZeroValue(of=MaskSinks(top=1, drop=True)), "drop=True: no key is denied; leave drop out"),
        (lambda: NullSink(logit=float("inf")), "logit is inf; expected a finite number"),
        (lambda: NullSink(logit="0"), "logit is '0'; expected a finite number"),
    ],
)
def test_what_cannot_be_meant(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_value_is_changed_for_all_queries_or_none() -> None:
    speaker = arm()
    message = "a value is changed for all queries of a call, but with queries='last' only some of"
    with pytest.raises(UsageError, match=message), sl.intervene(speaker, ZeroValue(top=1)):
        sl.generate(Uncached(speaker), ROWS, sl.AutoregressiveSampler(length=4))


# --- the null sink ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logit", [-3.0, 0, 2.5])
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_null_sink_is_one_more_key_without_a_value(name: str, logit: float) -> None:
    """Appended by hand: a key of logit `logit` for every query, with value 0. A learned sink stays beside it."""
    speaker = arm(name, "eager" if name == "gpt_oss" else "sdpa")
    with probed(speaker, NullSink(logit=logit)) as (_, seen):
        sl.generate(speaker, ROWS, sl.AutoregressiveSampler(length=4))
    for one in seen:
        weights = truth_of(one.incoming).weights
        call = one.incoming
        logits = call.query.double() @ call.key.double().repeat_interleave(call.scores.per_kv, 1).mT
        logits = logits * call.scores.softmax_scale
        visible = torch.from_numpy(weights > 0)
        total = torch.where(visible, logits.exp(), 0.0).sum(-1, keepdim=True) + torch.tensor(logit).double().exp()
        if call.sink_logits is not None:
            total = total + call.sink_logits.detach().double().exp().view(1, -1, 1, 1)
        by_hand = torch.where(visible, logits.exp(), 0.0) / total
        output = by_hand @ call.value.double().repeat_interleave(call.scores.per_kv, 1)
        real = visible.any(-1) if call.real_queries is None else visible.any(-1) & call.real_queries[:, None]
        error = (output - torch.from_numpy(wide(one.forward.output))).abs().amax(-1)
        assert error[real].max().item() < 2e-5


def test_observers_report_what_the_null_sink_takes(golden: Path) -> None:
    speaker, ids = sl.load(golden / "llada"), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad(), sl.intervene(speaker, NullSink(logit=1.0)), sl.observe(speaker) as seen:
        speaker(ids)
    assert seen.null_mass is not None
    assert float(seen.null_mass.min()) > 0.05
    total = (seen.received.sum(-1) + seen.null_mass) / 4
    torch.testing.assert_close(total, torch.ones_like(total))


def test_cross_attention_has_no_null_sink() -> None:
    call = at(logits_call(torch.zeros(1, 2, 3, 3)), 0)
    assert call.site is not None
    cross = replace(call, site=replace(call.site, kind="cross"))
    assert NullSink()(cross) is cross
    assert NullSink()(call).sink_logits is not None
