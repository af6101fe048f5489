"""Modules that know nothing of sinklens: SDPA called directly, torch's own attention modules, FlexAttention."""

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention  # bound before sinklens is imported

import sinklens as sl

BATCH, LENGTH, WIDTH, HEADS = 2, 10, 16, 4


class PlainAttention(nn.Module):
    """Attention as people write it, with an early-bound import."""

    def __init__(self, *, kv_heads: int = HEADS, causal: bool = False, flat: bool = False) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * kv_heads * WIDTH // HEADS)
        self.kv_heads, self.causal, self.flat = kv_heads, causal, flat

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def split(t: Tensor, heads: int) -> Tensor:
            return t.view(*x.shape[:2], heads, -1).transpose(1, 2)

        key, value = self.kv(x).chunk(2, dim=-1)
        return split(self.q(x), HEADS), split(key, self.kv_heads), split(value, self.kv_heads)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x)
        if self.flat:  # no head axis
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal, enable_gqa=self.kv_heads < HEADS
        )
        if self.flat:
            out = out.view(x.shape[0], HEADS, x.shape[1], -1)
        return out.transpose(1, 2).flatten(-2)


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = x + block(x, mask)
        return x


def sums(q: Tensor, k: Tensor, visible: Tensor | None = None) -> Tensor:
    """Column sums by the definition."""
    logits = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    logits = logits * q.shape[-1] ** -0.5
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
    return torch.softmax(logits, -1).sum(-2).float()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)) * 2


CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "float"])
def test_a_module_that_calls_sdpa_itself(x: Tensor, kv_heads: int, masking: str) -> None:
    torch.manual_seed(0)
    blocks = [PlainAttention(kv_heads=kv_heads, causal=masking == "causal") for _ in range(2)]
    model = Stack(*blocks)
    mask = {"bool": CAUSAL, "float": torch.zeros(LENGTH, LENGTH).masked_fill(~CAUSAL, -torch.inf)}.get(masking)
    with torch.no_grad():
        before = model(x, mask)
        with sl.observe(model) as seen:
            during = model(x, mask)
    assert torch.equal(before, during)
    assert [r.site.module for r in seen.calls] == ["blocks.0", "blocks.1"]
    q, k, _ = blocks[0].project(x)
    expected = sums(q, k, None if masking == "none" else CAUSAL)
    torch.testing.assert_close(seen.received[0], expected, atol=1e-5, rtol=0)


def test_attention_without_a_head_axis(x: Tensor) -> None:
    torch.manual_seed(0)
    model = PlainAttention(flat=True)
    with torch.no_grad():
        before = model(x)
        with sl.observe(model) as seen:
            assert torch.equal(model(x), before)
        q, k, _ = model.project(x)
    expected = sums(q, k).flatten(0, 1)[:, None]
    torch.testing.assert_close(seen.received[0], expected, atol=1e-5, rtol=0)


def test_a_gradient_flows_through_an_observed_module(x: Tensor) -> None:
    torch.manual_seed(0)
    model = Stack(PlainAttention())
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with sl.observe(model):
        model(x).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True) if p.grad is not None)


def maps_of(layer: nn.MultiheadAttention, x: Tensor, y: Tensor, padding: Tensor | None) -> Tensor:
    with torch.no_grad():
        _, weights = layer(x, y, y, key_padding_mask=padding, need_weights=True, average_attn_weights=False)
    return weights


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("crossing", [False, True])
def test_multihead_attention(x: Tensor, need_weights: bool, padded: bool, crossing: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    y = torch.randn(BATCH, 7, WIDTH) if crossing else x
    padding = None
    if padded:
        padding = torch.zeros(BATCH, y.shape[1], dtype=torch.bool)
        padding[1, -3:] = True
    with torch.no_grad():
        before = layer(x, y, y, key_padding_mask=padding, need_weights=need_weights)
        with sl.observe(layer) as seen:
            during = layer(x, y, y, key_padding_mask=padding, need_weights=need_weights)
    assert torch.equal(before[0], during[0])
    assert not flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    assert need_weights == (during[1] is not None)
    weights = maps_of(layer, x, y, padding)
    if padded and not crossing:
        weights = weights * ~padding[:, None, :, None]  # padding does not count as query
    (record,) = seen.calls
    assert record.site.kind == ("cross" if crossing else "self")
    torch.testing.assert_close(record.received, weights.sum(-2), atol=1e-5, rtol=0)


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, dropout=0.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch explains when its fast path is off
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False)).eval()


@pytest.mark.parametrize("grad", [False, True], ids=["fast path", "slow path"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_transformer_encoder_keeps_its_fast_path(x: Tensor, grad: bool, padded: bool, norm_first: bool) -> None:
    model = encoder(norm_first=norm_first)
    padding = None
    if padded:
        padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
        padding[:, -2:] = True
        padding[1, -4:] = True
    with torch.set_grad_enabled(grad):
        before = model(x, src_key_padding_mask=padding)
        with sl.observe(model) as seen:
            during = model(x, src_key_padding_mask=padding)
    assert torch.equal(before, during)
    assert seen.received.shape == (2, BATCH, HEADS, LENGTH)
    layer = model.layers[0]
    states = layer.norm1(x) if norm_first else x
    weights = maps_of(layer.self_attn, states, states, padding)
    if padding is not None:
        weights = weights * ~padding[:, None, :, None]
    torch.testing.assert_close(seen.received[0], weights.sum(-2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("part", ["encoder layer", "decoder layer"])
def test_a_single_torch_layer(x: Tensor, part: str) -> None:
    torch.manual_seed(0)
    if part == "encoder layer":
        model: nn.Module = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True).eval()
        feed, kinds = (x,), ["self"]
    else:
        model = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True).eval()
        feed, kinds = (x, torch.randn(BATCH, 6, WIDTH)), ["self", "cross"]
    with torch.no_grad():
        before = model(*feed)
        with sl.observe(model) as seen:
            during = model(*feed)
            again = model(*feed)
    assert torch.equal(before, during)
    assert torch.equal(before, again)
    assert [[r.site.kind for r in step.calls] for step in seen.steps] == [kinds, kinds]
    assert "forward" not in model.__dict__


def test_training_an_observed_encoder_draws_the_same_dropout(x: Tensor) -> None:
    model = encoder()
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.5
    torch.manual_seed(3)
    before = model(x)
    torch.manual_seed(3)
    with sl.observe(model):
        during = model(x)
    assert torch.equal(before, during)


def test_an_intervention_reaches_torchs_own_modules(x: Tensor) -> None:
    from dataclasses import replace

    model = encoder()

    def hide_first_key(call: sl.AttentionCall) -> sl.AttentionCall:
        mask = torch.ones(call.key.shape[2], dtype=torch.bool)
        mask[0] = False
        return replace(call, mask=mask.view(1, 1, 1, -1))

    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[:, 0] = True
    with torch.no_grad():
        plain = model(x)
        with sl.intervene(model, hide_first_key), sl.observe(model) as seen:
            changed = model(x)
        assert torch.equal(model(x), plain)
        expected = x
        for layer in model.layers:
            expected = layer(expected, src_key_padding_mask=padding)
    assert not seen.received[..., 0].any()
    torch.testing.assert_close(changed, expected, atol=1e-5, rtol=0)


class FlexAttention(PlainAttention):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = flex_attention.flex_attention(*self.project(x), **self.options)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).flatten(-2)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("blocked", [True, False])
def test_flex_attention_is_seen(x: Tensor, blocked: bool) -> None:
    torch.manual_seed(0)
    mask = flex_attention.create_block_mask(
        lambda b, h, i, j: i // 4 >= j // 4, None, None, LENGTH, LENGTH, device="cpu"
    )
    model = FlexAttention(block_mask=mask) if blocked else FlexAttention()
    with torch.no_grad():
        before = model(x)
        with sl.observe(model) as seen:
            during = model(x)
        q, k, _ = model.project(x)
    assert torch.equal(before, during)
    assert not flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    where = torch.arange(LENGTH) // 4
    visible = (where[:, None] >= where[None]) if blocked else None
    torch.testing.assert_close(seen.received[0], sums(q, k, visible), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_a_score_mod_is_refused_by_name(x: Tensor) -> None:
    def tilt(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + (i - j)

    model = FlexAttention(score_mod=tilt)
    with (
        torch.no_grad(),
        pytest.raises(sl.SinklensError, match=r"score_mod='tilt'.*block_mask only"),
        sl.observe(model),
    ):
        model(x)


def test_an_interrupt_inside_a_forward_leaves_no_listener(x: Tensor) -> None:
    class Interrupted(PlainAttention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            raise KeyboardInterrupt

    model = Stack(PlainAttention(), Interrupted())
    with pytest.raises(KeyboardInterrupt), sl.observe(model):
        model(x)
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_first_imported_inside_the_forward_is_seen() -> None:
    """In a fresh process: nothing has imported FlexAttention before the model runs."""
    code = """
import torch, sinklens as sl
class Late(torch.nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(x, x, x)
model = Late()
with torch.no_grad(), sl.observe(model) as seen:
    model(torch.randn(1, 2, 8, 16))
assert seen.received.shape == (1, 1, 2, 8)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_model_without_attention_says_so_on_leaving() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with (
        pytest.raises(sl.SinklensError, match=r"no attention call was seen in 1 forward.*attn_implementation=\"sdpa\""),
        sl.observe(model),
    ):
        model(torch.randn(1, 4))


def test_a_context_without_a_forward_says_so() -> None:
    with (
        pytest.raises(sl.SinklensError, match="the model was not run inside the context"),
        sl.observe(Stack()),
    ):
        pass


def test_an_sdpa_call_of_another_rank_is_refused(x: Tensor) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])

    with pytest.raises(sl.SinklensError, match=r"query of shape \(1, 1, 2, 10, 16\)"), sl.observe(Odd()) as _:
        model = Odd()
        with sl.observe(model):
            model(x)
