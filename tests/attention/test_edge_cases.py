"""Models and situations that once went wrong, or easily could."""

from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import sinklens as sl
from attention.zoo import PLAIN, SMALL, causal, ids, inputs, right_padding, row_sums, rows, seeded
from sinklens.attention import routes

ROWS = {row.name: row for row in rows()}


# Models that compute something of their own around their attention


@pytest.mark.parametrize("options", [{"num_kv_heads": 4}, {"alibi": True}, {"multi_query": True}], ids=str)
def test_a_model_that_branches_on_the_name_of_its_attention_keeps_its_bits(options: dict[str, Any]) -> None:
    """Falcon calls SDPA itself, and takes another path when its config names anything but "sdpa"."""
    model = causal(hf.FalconConfig(**PLAIN, **options))
    with torch.no_grad():
        before = model(ids()).logits
        with sl.observe(model) as seen:
            during = model(ids()).logits
    assert torch.equal(before, during)
    assert len(seen.calls) == 2
    torch.testing.assert_close(seen.received.sum(-1), torch.full((2, 2, 4), 12.0), atol=1e-4, rtol=0)


def test_an_eager_function_of_another_name_is_the_one_that_runs() -> None:
    config = hf.Llama4VisionConfig(
        hidden_size=32, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
        num_channels=1, projector_input_dim=32, projector_output_dim=32, vision_output_dim=32, pixel_shuffle_ratio=0.5,
    )  # fmt: skip
    model = seeded(lambda: hf.Llama4VisionModel(config), "eager")
    pixels = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(pixels).last_hidden_state
        with sl.observe(model) as seen:
            during = model(pixels).last_hidden_state
    assert torch.equal(before, during)
    assert len(seen.calls) == 2


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5"])
def test_transformers_without_a_place_to_step_in_is_routed_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS[name]
    for implementation in row.implementations:
        model, feed = row.build(implementation), inputs(row, padded=True)
        with torch.no_grad():
            before = model(**feed).logits
            with sl.observe(model) as seen:
                model(**feed)
            with monkeypatch.context() as patch:
                patch.setattr(routes, "_route", lambda _, configs: routes.routes_by_name(configs))
                with sl.observe(model) as named, sl.observe(model) as nested:
                    during = model(**feed).logits
        assert torch.equal(before, during)
        assert model.config._attn_implementation == implementation
        for other in (named, nested):
            assert len(other.calls) == len(seen.calls)
            assert all(torch.equal(a.received, b.received) for a, b in zip(seen.calls, other.calls, strict=True))


def test_two_models_may_share_a_config(llama: Any) -> None:
    other = hf.LlamaForCausalLM(llama.config).eval()
    with torch.no_grad():
        before = other(ids()).logits
        with sl.observe(llama) as seen:
            llama(ids())
            assert torch.equal(other(ids()).logits, before)
    assert len(seen.calls) == 2


def test_a_compiled_model_is_refused_in_words(llama: Any) -> None:
    compiled = torch.compile(llama, backend="eager")
    with pytest.raises(sl.SinklensError, match=r"compiled by torch\.compile.*_orig_mod"), sl.observe(compiled):
        pass


# Heads, norms, precision


def test_kv_heads_are_the_models_own_with_and_without_padding(llama: Any) -> None:
    with torch.no_grad(), sl.observe(llama) as seen:
        llama(ids())
        llama(ids(), attention_mask=right_padding())
    plain, padded = seen.steps
    assert plain.key_norm.shape == padded.key_norm.shape == (2, 2, 2, 12)
    torch.testing.assert_close(plain.key_norm[:, 0], padded.key_norm[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.contribution[:, 0], padded.contribution[:, 0], atol=1e-4, rtol=0)


def test_norms_of_a_model_with_windows_can_be_stacked() -> None:
    model = ROWS["gemma3"].build("sdpa")
    with torch.no_grad(), sl.observe(model) as seen:
        model(ids())
    assert seen.key_norm.shape == (2, 2, 2, 12)


def test_a_model_made_in_inference_mode_is_observed() -> None:
    with torch.inference_mode():
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)).eval()
        with sl.observe(model) as seen:
            model(ids())
    assert seen.contribution.shape == (2, 2, 4, 12)


def test_numbers_are_float32_under_autocast(llama: Any) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = llama(ids()).logits
        with sl.observe(llama, maps=[(0, 0)], impl="reference") as seen:
            assert torch.equal(llama(ids()).logits, before)
    assert seen.maps[0, 0].dtype == torch.float32
    torch.testing.assert_close(seen.received.sum(-1), torch.full((2, 2, 4), 12.0), atol=1e-5, rtol=0)


# Interventions


def test_dropping_keys_of_a_causal_call_does_not_leak_the_future(llama: Any) -> None:
    first, second = ids(), ids()
    second[:, -1] = (second[:, -1] + 7) % 50 + 3
    with torch.no_grad(), sl.intervene(llama, lambda call: call.keep_keys(call.where_keys() != 1)):
        a, b = llama(first).logits, llama(second).logits
        with sl.observe(llama) as seen:
            llama(first, attention_mask=right_padding())
    assert torch.equal(a[:, :-1], b[:, :-1])
    assert not seen.received[..., 1].any()
    assert seen.received.shape[-1] == 12
    assert not seen.received[:, 1, :, 8:].any()


def test_dropping_keys_without_what_goes_with_them_is_refused(llama: Any) -> None:
    from dataclasses import replace

    def drop(call: sl.AttentionCall) -> sl.AttentionCall:
        return replace(call, key=call.key[:, :, 1:], value=call.value[:, :, 1:], key_positions=None)

    with pytest.raises(sl.SinklensError, match=r"from 12 to 11 without.*call\.keep_keys"):  # noqa: SIM117
        with torch.no_grad(), sl.intervene(llama, drop):
            llama(ids())


def test_an_intervention_that_forgets_to_return_says_so(llama: Any) -> None:
    with pytest.raises(sl.SinklensError, match="returned None; expected an AttentionCall"):  # noqa: SIM117
        with torch.no_grad(), sl.intervene(llama, lambda call: None):  # type: ignore[arg-type, return-value]
            llama(ids())


def test_intervening_on_a_model_that_cannot_be_reached_is_an_error() -> None:
    model = causal(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), "eager")
    with pytest.raises(sl.SinklensError, match="by hand"), torch.no_grad(), sl.intervene(model, lambda call: call):
        model(ids())


# Training, interrupts


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_one_forward(reentrant: bool) -> None:
    model = causal(hf.LlamaConfig(**SMALL)).train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # new in 5.23
    enable({"use_reentrant": reentrant})
    with sl.observe(model) as seen:
        model(ids(), labels=ids(), use_cache=False).loss.backward()
    assert len(seen.steps) == 1
    assert [r.site.layer for r in seen.calls] == [0, 1]


def test_an_interrupt_caught_inside_the_context_spoils_nothing_after_it(llama: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with torch.no_grad(), sl.observe(llama) as seen:
        handle = llama.model.layers[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            llama(ids(), attention_mask=right_padding())
        handle.remove()
        llama(ids())
        llama(ids()[:1])
    assert [[r.site.layer for r in step.calls] for step in seen.steps] == [[0], [0, 1], [0, 1]]
    assert row_sums(seen)[-2:] == [[12.0]] * 2


def test_the_padding_of_an_interrupted_part_is_forgotten() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    class Masked(Attention):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            raise KeyboardInterrupt

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked, self.plain = Masked(), Attention()

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            return self.plain(x) if mask is None else self.masked(x, mask)

    model, x = Either(), torch.randn(2, 1, 12, 8)
    with sl.observe(model) as seen:
        with pytest.raises(KeyboardInterrupt):
            model(x, right_padding())
        model(x, None)
    assert row_sums(seen) == [[12.0, 12.0]]


def test_a_hook_that_fails_before_ours_does_not_unbalance_anything() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    class Lenient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Attention(), Attention()

        def forward(self, x: Tensor) -> Tensor:
            with suppress(ValueError):
                x = self.first(x)
            return self.second(x)

    def fail(*_: Any) -> None:
        raise ValueError

    model = Lenient()
    model.first.register_forward_pre_hook(fail)
    with sl.observe(model) as seen:
        model(torch.randn(1, 2, 6, 8))
    assert [r.site.module for r in seen.calls] == ["second"]


# torch's own modules


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_inside_a_module_keeps_its_nested_path() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=padding)

    torch.manual_seed(0)
    model = Wrapper().eval()
    x, padding = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.no_grad():
        before = model(x, padding)
        with sl.observe(model) as seen:
            during = model(x, padding)
    assert torch.equal(before, during)
    assert row_sums(seen) == [[6.0, 4.0]] * 2


@pytest.mark.parametrize("option", ["add_zero_attn", "add_bias_kv"])
def test_multihead_attention_with_keys_of_its_own(option: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True, **{option: True}).eval()
    x, padding = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.no_grad():
        before = layer(x, x, x, key_padding_mask=padding)[0]
        with sl.observe(layer) as seen:
            during = layer(x, x, x, key_padding_mask=padding)[0]
    assert torch.equal(before, during)
    assert row_sums(seen) == [[6.0, 4.0]]
    assert seen.calls[0].received.shape[-1] == 7


def test_multi_head_attention_forward_called_directly_is_seen() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            a = self.attention
            return F.multi_head_attention_forward(
                x, x, x, 16, 4, a.in_proj_weight, a.in_proj_bias, None, None, False, 0.0, a.out_proj.weight,
                a.out_proj.bias, average_attn_weights=False,
            )  # fmt: skip

    torch.manual_seed(0)
    model = Direct().eval()
    x = torch.randn(6, 2, 16)
    with torch.no_grad():
        before, weights = model(x)
        with sl.observe(model) as seen:
            during, _ = model(x)
    assert torch.equal(before, during)
    assert weights is not None
    torch.testing.assert_close(seen.received[0], weights.sum(-2), atol=1e-5, rtol=0)


class Sdpa(nn.Module):
    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)


def test_one_row_of_queries_for_a_batch_of_keys() -> None:
    model, q, k = Sdpa(), torch.randn(1, 2, 5, 8), torch.randn(3, 2, 7, 8)
    with sl.observe(model) as seen:
        out = model(q, k)
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, k))
    assert seen.received.shape == (1, 3, 2, 7)


def test_a_mask_for_each_head_without_a_batch_axis() -> None:
    model, q = Sdpa(), torch.randn(2, 4, 5, 8)
    mask = torch.rand(4, 5, 5, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[:, :, 0] = True
    with sl.observe(model, maps=[(0, 3)]) as seen:
        model(q, q, mask)
    assert not seen.maps[0, 3][:, ~mask[3]].any()
    torch.testing.assert_close(seen.received[0, :, 3], seen.maps[0, 3].sum(-2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("low", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
def test_every_way_to_write_minus_infinity_hides_a_key(low: float) -> None:
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), low)
    fair = sl.attention_received(torch.zeros(1, 1, 8, 4), torch.randn(1, 1, 8, 4), mask=mask).fair_share
    torch.testing.assert_close(fair, torch.ones_like(fair), atol=1e-6, rtol=0)


def test_cross_attention_alone_says_where_it_is() -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad(), sl.observe(layer) as seen:
        layer(torch.randn(1, 3, 16), *[torch.randn(1, 5, 16)] * 2)
    with pytest.raises(sl.SinklensError, match=r"no self-attention.*\.calls"):
        _ = seen.received


# Groups


@pytest.mark.parametrize("sampler", [False, True])
def test_a_group_that_only_a_diffusion_sampler_knows_says_so(llama: Any, sampler: bool) -> None:
    rule = {"masked": lambda step: step.masked}
    with pytest.raises(sl.SinklensError, match=r"group 'masked' gave NoneType at step 0.*under a diffusion sampler"):  # noqa: SIM117
        with torch.no_grad(), sl.observe(llama, groups=rule):
            llama.generate(ids(), max_new_tokens=2) if sampler else llama(ids())
