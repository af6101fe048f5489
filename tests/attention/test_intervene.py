"""intervene on native models: calls are changed, observers see both sides, and nothing stays behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import sinklens as sl
from sinklens.attention.call import Site
from sinklens.attention.clock import StepNumber
from sinklens.attention.measure import Meter, Shown, Wanted
from sinklens.attention.seam import Seen
from sinklens.kernels.forward import Forward


def vectors(golden: Path, family: str) -> dict[str, Tensor]:
    return load_file(golden / family / "vectors.safetensors")


def hide(position: int) -> Any:
    def intervention(call: sl.AttentionCall) -> sl.AttentionCall:
        return replace(call, mask=(call.where_keys() != position).view(1, 1, 1, -1))

    return intervention


def test_an_intervention_changes_the_call_and_observers_see_both_sides(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]
    with torch.no_grad():
        plain = model(ids)
        with (
            sl.observe(model, measure="before") as before,
            sl.intervene(model, hide(3)),
            sl.observe(model) as after,
        ):
            changed = model(ids)
        restored = model(ids)
        with sl.observe(model) as clean:
            model(ids)
    assert not torch.allclose(plain, changed)
    assert torch.equal(plain, restored)
    assert not after.received[..., 3].any()
    assert after.fair_share[..., 3].isnan().all()
    torch.testing.assert_close(before.received[0], clean.received[0])
    torch.testing.assert_close(after.received.sum(-1), torch.full((3, 2, 4), 24.0), atol=1e-4, rtol=0)


def test_dropping_a_key_is_the_same_as_hiding_it(golden: Path) -> None:
    model = sl.load(golden / "dream")
    ids = vectors(golden, "dream")["input_ids"]

    def drop(call: sl.AttentionCall) -> sl.AttentionCall:
        keep = call.where_keys() != 3
        return replace(
            call, key=call.key[:, :, keep], value=call.value[:, :, keep], key_positions=call.where_keys()[keep],
            query_positions=call.where_queries(),
        )  # fmt: skip

    with torch.no_grad():
        with sl.intervene(model, hide(3)), sl.observe(model) as hidden:
            first = model(ids)
        with sl.intervene(model, drop), sl.observe(model) as dropped:
            second = model(ids)
    torch.testing.assert_close(first, second, atol=1e-4, rtol=0)
    torch.testing.assert_close(hidden.received, dropped.received, atol=1e-4, rtol=0)
    assert dropped.received.shape[-1] == 24


def test_interventions_stack_in_the_order_they_were_entered(golden: Path) -> None:
    model = sl.load(golden / "llada")
    order: list[str] = []

    def named(name: str) -> Any:
        def look(call: sl.AttentionCall) -> sl.AttentionCall:
            assert call.site is not None
            if call.site.layer == 0:
                order.append(name)
            return call

        return look

    with torch.no_grad(), sl.intervene(model, named("first")), sl.intervene(model, named("second")):
        model(torch.ones(1, 4, dtype=torch.long))
    assert order == ["first", "second"]


def test_the_log_sum_exp_of_a_changed_call_is_not_used_for_the_call_before_it() -> None:
    """A fused kernel hands over the lse of what it computed; a call of another scale has another."""
    site = Site(step=0, layer=0, module="m")
    q, k = torch.randn(1, 2, 6, 16), torch.randn(1, 2, 6, 16)
    before = sl.AttentionCall(query=q, key=k, value=k, site=site)
    after = replace(before, scale=0.01)
    lse = torch.logsumexp(q @ k.transpose(-1, -2) * 0.01, dim=-1)
    forward = Forward(output=q, lse=lse, kernel="sdpa:flash")
    seen = Seen(incoming=before, effective=after, forward=forward)
    sums = {}
    for measured in (True, False):
        wanted = Wanted(
            groups={}, maps=frozenset(), map_bytes=0, norms=False, entropy=False, ranks=False, layers=None,
            before=measured, impl="triton",
        )  # fmt: skip
        shown = Shown(seen=seen, step=StepNumber(0), canvas=None)
        sums[measured] = Meter(wanted).measure([shown])[0].received
    for measured, scale in ((True, 0.25), (False, 0.01)):
        expected = torch.softmax(q @ k.transpose(-1, -2) * scale, dim=-1).sum(-2)
        torch.testing.assert_close(sums[measured], expected, atol=1e-5, rtol=0)
