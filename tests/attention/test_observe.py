"""observe and intervene on native models: the golden vectors, steps, groups, maps, norms, and leaving no trace."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sinklens as sl
from sinklens.attention.clock import StepNumber
from sinklens.attention.measure import Meter
from sinklens.attention.seam import scopes_of
from sinklens.attention.watch import Watch

FAMILIES = ("llada", "dream", "mmada")


def vectors(golden: Path, family: str) -> dict[str, Tensor]:
    return load_file(golden / family / "vectors.safetensors")


@pytest.mark.parametrize("impl", ["reference", "chunked", "triton"])
@pytest.mark.parametrize("family", FAMILIES)
def test_received_and_maps_are_those_of_the_original_code(golden: Path, family: str, impl: str) -> None:
    stored = vectors(golden, family)
    model = sl.load(golden / family)
    wanted = [(layer, head) for layer in range(3) for head in range(4)]
    with torch.no_grad(), sl.observe(model, maps=wanted, impl=impl) as seen:
        logits = model(stored["input_ids"])
    torch.testing.assert_close(logits, stored["logits"], atol=5e-5, rtol=0)
    for layer in range(3):
        probabilities = stored[f"attn.{layer}.probs"]
        torch.testing.assert_close(seen.received[layer], probabilities.sum(-2), atol=5e-5, rtol=0)
        for head in range(4):
            torch.testing.assert_close(seen.maps[layer, head], probabilities[:, head], atol=2e-5, rtol=0)
        keys = stored[f"attn.{layer}.k"].norm(dim=-1)
        torch.testing.assert_close(seen.key_norm[layer], keys, atol=5e-5, rtol=0)
    assert {record.impl for record in seen.calls} == {impl}
    torch.testing.assert_close(seen.received.sum(-1), torch.full((3, 2, 4), 24.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.expected, torch.ones(3, 2, 1, 24))


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_is_counted_neither_as_query_nor_as_key(golden: Path, family: str) -> None:
    stored = vectors(golden, family)
    model = sl.load(golden / family)
    mask = stored["masked.attention_mask"]
    with torch.no_grad(), sl.observe(model) as seen:
        model(stored["masked.input_ids"], attention_mask=mask)
    for layer in range(3):
        probabilities = stored[f"masked.attn.{layer}.probs"]
        expected = torch.einsum("bhqk,bq->bhk", probabilities, mask.float()) * mask[:, None]
        torch.testing.assert_close(seen.received[layer], expected, atol=5e-5, rtol=0)
    assert seen.fair_share[:, 0, :, :5].isnan().all()
    assert not seen.fair_share[:, 0, :, 5:].isnan().any()


def test_logits_are_the_same_bits_before_during_and_after_even_after_an_exception(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    with torch.no_grad():
        before = model(ids)
        with pytest.raises(KeyboardInterrupt), sl.observe(model):
            assert torch.equal(model(ids), before)
            raise KeyboardInterrupt
        after = model(ids)
    assert torch.equal(before, after)
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert not any(scopes_of(m) for m in model.modules())


def test_an_exception_inside_the_forward_leaves_nothing(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]

    def fail(call: sl.AttentionCall) -> sl.AttentionCall:
        raise ZeroDivisionError

    with torch.no_grad():
        before = model(ids)
        with pytest.raises(ZeroDivisionError), sl.observe(model), sl.intervene(model, fail):
            model(ids)
        with sl.observe(model) as seen:
            assert torch.equal(model(ids), before)
    assert [r.site.layer for r in seen.calls] == [0, 1, 2]


def test_nested_observers_each_see_what_one_sees(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]
    with torch.no_grad():
        with sl.observe(model) as alone:
            model(ids)
        with sl.observe(model) as outer:
            model(ids)
            with sl.observe(model) as inner:
                model(ids)
    assert torch.equal(inner.received, alone.received)
    assert [step.step for step in outer.steps] == [0, 1]
    assert [step.step for step in inner.steps] == [0]
    assert all(torch.equal(step.received, alone.received) for step in outer.steps)


def test_groups_add_up_to_the_total(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]
    masked = ids == model.spec.mask_id
    first = torch.zeros_like(masked)
    first[:, 0] = ~masked[:, 0]
    asked: list[StepNumber] = []

    def masked_queries(step: StepNumber) -> Tensor:
        asked.append(step)
        return masked

    with (
        torch.no_grad(),
        sl.observe(model, groups={"masked": masked_queries, "first": first}, maps=[(1, 2)]) as seen,
    ):
        model(ids)
    assert asked == [0]
    rows = seen.maps[1, 2]
    expected = torch.einsum("bqk,bq->bk", rows, masked.float())
    torch.testing.assert_close(seen.groups["masked"][1, :, 2], expected, atol=1e-5, rtol=0)
    rest = seen.received - seen.groups["masked"] - seen.groups["first"]
    counted = (~masked & ~first).sum(-1).float()
    torch.testing.assert_close(rest.sum(-1), counted[None, :, None].expand(3, 2, 4), atol=1e-4, rtol=0)
    expected = masked.sum(-1).float()[None, :, None].expand(3, 2, 1)
    torch.testing.assert_close(seen.group_expected["masked"].sum(-1), expected, atol=1e-4, rtol=0)


def test_overlapping_groups_are_refused(golden: Path) -> None:
    model = sl.load(golden / "llada")
    everyone = torch.ones(1, 4, dtype=torch.bool)
    with (
        pytest.raises(sl.SinklensError, match="group 'b' overlaps"),
        sl.observe(model, groups={"a": everyone, "b": everyone}),
    ):
        model(torch.ones(1, 4, dtype=torch.long))


def test_a_group_of_the_wrong_width_is_refused(golden: Path) -> None:
    model = sl.load(golden / "llada")
    narrow = torch.ones(1, 3, dtype=torch.bool)
    with (
        pytest.raises(sl.SinklensError, match="group 'a' covers 3 positions"),
        sl.observe(model, groups={"a": narrow}),
    ):
        model(torch.ones(1, 4, dtype=torch.long))


def test_more_than_eight_groups_are_refused(golden: Path) -> None:
    model = sl.load(golden / "llada")
    groups = {str(i): torch.ones(1, 4, dtype=torch.bool) for i in range(9)}
    with pytest.raises(sl.SinklensError, match="9 query groups; at most 8"), sl.observe(model, groups=groups):
        pass


def test_maps_beyond_the_limit_say_what_they_would_take(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = vectors(golden, "llada")["input_ids"]
    with pytest.raises(sl.SinklensError, match=r"take 9,216 bytes.*2 x 24 x 24 floats a head.*raise map_bytes"):  # noqa: SIM117
        with torch.no_grad(), sl.observe(model, maps=[(0, 0), (0, 1)], map_bytes=4 * 2 * 24 * 24):
            model(ids)


@pytest.mark.parametrize(
    ("place", "message"),
    [((0, 9), "layer 0, head 9; the model has 3 layers of 4"), ((7, 0), "layer 7, head 0; the model has")],
)
def test_maps_that_do_not_exist_are_refused(golden: Path, place: tuple[int, int], message: str) -> None:
    model = sl.load(golden / "llada")
    with pytest.raises(sl.SinklensError, match=message), torch.no_grad(), sl.observe(model, maps=[place]):
        model(torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_norms_entropy_and_contribution(golden: Path, family: str) -> None:
    stored = vectors(golden, family)
    model = sl.load(golden / family)
    with torch.no_grad(), sl.observe(model, entropy=True, hidden_norms=True) as seen:
        model(stored["input_ids"])
    attention = next(m for m in model.modules() if type(m).__name__ == "SelfAttention")
    weight = next(p for n, p in attention.named_parameters() if n.split(".")[0] in ("o", "out", "o_proj", "output"))
    values = stored["attn.0.v"].repeat_interleave(4 // stored["attn.0.v"].shape[1], dim=1)
    for head in range(4):
        output = values[:, head] @ weight[:, head * 16 : (head + 1) * 16].T
        expected = seen.received[0, :, head] * output.norm(dim=-1)
        torch.testing.assert_close(seen.contribution[0, :, head], expected, atol=1e-3, rtol=1e-4)
    rows = stored["attn.0.probs"].double()
    entropy = torch.special.entr(rows).sum(-1).float()
    torch.testing.assert_close(seen.entropy[0], entropy, atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.value_norm[0], stored["attn.0.v"].norm(dim=-1), atol=5e-5, rtol=0)
    hidden = stored["resid.1"].norm(dim=-1)
    torch.testing.assert_close(seen.hidden_norm[0], hidden, atol=5e-4, rtol=0)


def test_what_was_not_asked_for_says_how_to_ask(golden: Path) -> None:
    model = sl.load(golden / "llada")
    with torch.no_grad(), sl.observe(model, norms=False) as seen:
        model(torch.ones(1, 4, dtype=torch.long))
    for name, how in (
        ("key_norm", "norms=True"),
        ("entropy", "entropy=True"),
        ("hidden_norm", "hidden_norms=True"),
    ):
        with pytest.raises(sl.SinklensError, match=how):
            getattr(seen, name)
    with pytest.raises(sl.SinklensError, match="no null_mass"):
        _ = seen.null_mass


def test_only_some_layers(golden: Path) -> None:
    model = sl.load(golden / "llada")
    with torch.no_grad(), sl.observe(model, layers=[0, 2]) as seen:
        model(torch.ones(1, 4, dtype=torch.long))
    assert seen.layers == [0, 2]
    assert seen.received.shape == (2, 1, 4, 4)


def test_layers_that_do_not_exist_are_noticed(golden: Path) -> None:
    model = sl.load(golden / "llada")
    with pytest.raises(sl.SinklensError, match=r"no self-attention layer is among layers=\[8\]"):  # noqa: SIM117
        with torch.no_grad(), sl.observe(model, layers=[8]):
            model(torch.ones(1, 4, dtype=torch.long))


MISUSE = """
import torch, sinklens as sl
module = torch.nn.Linear(1, 1)
for misuse in (
    lambda: sl.observe(3),
    lambda: sl.observe(module, measure="later"),
    lambda: sl.observe(module, impl="fast"),
    lambda: sl.observe(module, attention_mask=torch.ones(3)),
    lambda: sl.intervene(module, 3),
    lambda: sl.observe(module, groups=["masked"]),
    lambda: sl.observe(module, groups={"a": [True, False]}),
    lambda: sl.observe(module, maps=[3]),
):
    try:
        with misuse():
            pass
    except sl.SinklensError as error:
        print(error)
"""


def test_misuse_is_refused_in_words() -> None:
    """In a process without the shape checks of this test run, which would answer first."""
    done = subprocess.run([sys.executable, "-c", MISUSE], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[0].startswith("expected a model (a torch.nn.Module")
    assert words[1] == "unknown measure 'later'; expected one of 'after', 'before'"
    assert words[2].startswith("unknown impl 'fast'; expected one of 'auto'")
    assert words[3].startswith("attention_mask has shape (3,); expected [batch, key]")
    assert words[4].startswith("intervention is 3; expected a function AttentionCall -> AttentionCall")
    assert words[5].startswith("groups is ['masked']; expected {name: mask or function of the step}")
    assert words[6].startswith("group 'a' is a list; expected a boolean tensor [batch, query] or a function")
    assert words[7].startswith("maps is [3]; expected (layer, head) pairs")


@pytest.mark.parametrize(
    ("place", "message"), [((0, 9), "head 9 of layer 0, which has 4"), ((7, 0), "asks for layer 7;")]
)
def test_maps_that_another_model_does_not_have_are_noticed(place: tuple[int, int], message: str) -> None:
    """A model that does not say how many it has: the head is noticed when it is reached, the layer at the end."""
    from attention.zoo import rows

    model = next(row for row in rows() if row.name == "llama").build("sdpa")
    with pytest.raises(sl.SinklensError, match=message), torch.no_grad(), sl.observe(model, maps=[place]):
        model(torch.ones(1, 4, dtype=torch.long))


def test_what_was_seen_is_shown_in_a_line(golden: Path) -> None:
    model = sl.load(golden / "llada")
    with torch.no_grad(), sl.observe(model) as seen:
        model(torch.ones(1, 4, dtype=torch.long))
    assert repr(seen) == "Observation(1 forwards, 3 attention calls)"
    assert repr(seen.steps[0]) == "StepObservation(step 0, 3 attention calls)"
    assert "received [1, 4, 4], model, chunked" in repr(seen.calls[0]) or "sdpa" in repr(seen.calls[0])


def test_a_sampler_announces_its_steps(golden: Path) -> None:
    model = sl.load(golden / "llada")
    prompt = torch.tensor([[5, 6, 7, 8, 9]])
    seen_masked: list[int] = []

    def masked(step: StepNumber) -> Tensor:
        assert step.masked is not None
        seen_masked.append(int(step.masked.sum()))
        return step.masked

    sampler = sl.LLaDASampler(steps=4, length=8, block=4)
    plain = sl.generate(model, prompt, sampler)
    with sl.observe(model, groups={"masked": masked}) as seen:
        observed = sl.generate(model, prompt, sampler)
    assert torch.equal(plain.ids, observed.ids)
    assert [step.step for step in seen.steps] == [0, 1, 2, 3]
    assert seen_masked == [8, 6, 4, 2]
    assert observed.canvases is not None
    for step, canvas in zip(seen.steps, observed.canvases, strict=False):
        expected = (canvas == model.spec.mask_id).sum(-1).float()
        torch.testing.assert_close(step.groups["masked"].sum(-1), expected[None, :, None].expand(3, 1, 4))


def test_under_guidance_scopes_see_the_conditional_half(golden: Path) -> None:
    model = sl.load(golden / "llada")
    prompt = torch.tensor([[5, 6, 7, 8, 9]])
    guided = sl.LLaDASampler(steps=2, length=4, block=4, cfg=1.5)
    shapes: list[torch.Size] = []

    def look(call: sl.AttentionCall) -> sl.AttentionCall:
        shapes.append(call.query.shape)
        return call

    plain = sl.generate(model, prompt, guided)
    with sl.intervene(model, look), sl.observe(model) as seen:
        observed = sl.generate(model, prompt, guided)
    assert torch.equal(plain.ids, observed.ids)
    assert seen.steps[0].received.shape == (3, 1, 4, 9)
    assert {shape[0] for shape in shapes} == {1}
    assert observed.canvases is not None
    with torch.no_grad(), sl.observe(model) as direct:
        model(observed.canvases[0])
    torch.testing.assert_close(seen.steps[0].received, direct.received, atol=1e-5, rtol=0)


def test_only_the_watched_model_is_seen(golden: Path) -> None:
    watched, other = sl.load(golden / "llada"), sl.load(golden / "llada")
    ids = torch.ones(1, 4, dtype=torch.long)
    with torch.no_grad(), sl.observe(watched) as seen:
        other(ids)
        watched(ids)
        other(ids)
    assert len(seen.steps) == 1


def test_a_part_called_alone_is_a_forward_of_its_own(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = torch.ones(1, 4, dtype=torch.long)
    whole = nn.ModuleDict({"inner": model})
    with torch.no_grad(), sl.observe(whole) as seen:
        model(ids)
        model(ids)
    assert [len(step.calls) for step in seen.steps] == [3, 3]
    assert [step.step for step in seen.steps] == [0, 1]


def test_steps_that_were_thrown_away_were_seen(golden: Path) -> None:
    """Whoever reads each step as it comes may drop it."""
    model = sl.load(golden / "llada")
    with torch.no_grad(), sl.observe(model, maps=[(1, 0)]) as seen:
        model(vectors(golden, "llada")["input_ids"])
        seen.steps.clear()
    assert not seen.steps


@pytest.mark.parametrize("intervening", [False, True])
def test_what_watched_is_gone_with_its_context(golden: Path, intervening: bool) -> None:
    """Not when memory is tidied up: on a card it holds much, and nobody knows when that is."""
    model = sl.load(golden / "llada")
    gc.collect()
    gc.disable()
    try:
        context = sl.intervene(model, sl.MaskSinks(top=1)) if intervening else sl.observe(model, hidden_norms=True)
        with torch.no_grad(), context:
            model(torch.arange(10)[None])
        del context
        assert not [each for each in gc.get_objects() if type(each) in (Watch, Meter)]
    finally:
        gc.enable()
