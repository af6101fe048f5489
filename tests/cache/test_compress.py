"""A cut cache computes attention over what is kept, at true positions: against the whole sequence run at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from attention.zoo import rows as zoo_rows
from cache.reference import hidden_forward, llama, prompt, seen_later
from sinklens.cache.settings import ORDERS

LENGTH, NEW = 14, 6


def decoded(model: Any, ids: Tensor, start: int, chunks: list[int], mask: Tensor | None = None) -> tuple[Tensor, Any]:
    """Logits of ids[:, start:], fed in chunks after a prefill of ids[:, :start]."""
    logits = []
    with torch.no_grad():
        out = model(ids[:, :start], attention_mask=None if mask is None else mask[:, :start], use_cache=True)
        for size in chunks:
            end = start + size
            positions = None if mask is None else (mask[:, :end].long().cumsum(-1) - 1).clamp(min=0)[:, start:]
            out = model(
                ids[:, start:end],
                attention_mask=None if mask is None else mask[:, :end],
                position_ids=positions,
                past_key_values=out.past_key_values,
                use_cache=True,
            )
            logits.append(out.logits)
            start = end
    return torch.cat(logits, 1), out.past_key_values


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("chunks", [[1] * NEW, [NEW], [2, 1, 3]], ids=["one", "six", "mixed"])
@pytest.mark.parametrize("skip", [(), (0, 2)])
def test_decoding_sees_the_kept_entries_and_no_others(
    implementation: str, chunks: list[int], skip: tuple[int, ...]
) -> None:
    model, ids = llama(implementation), prompt(2, LENGTH + NEW)
    with sl.compress(model, sl.Compression(keep=5, skip=skip)) as cut:
        logits, cache = decoded(model, ids, LENGTH, chunks)
    lengths = [LENGTH + NEW if layer in skip else 5 + NEW for layer in range(3)]
    assert cut.lengths == lengths
    assert [layer.keys.shape[2] for layer in cache.layers] == lengths
    assert [layer.values.shape[2] for layer in cache.layers] == lengths
    assert cache.get_seq_length() == LENGTH + NEW
    wanted = hidden_forward(model, ids, seen_later(cut.kept, LENGTH, LENGTH + NEW))[:, LENGTH:]
    near = 1e-9 if implementation == "sdpa" else 1e-4  # transformers' eager softmax is in float32
    torch.testing.assert_close(logits, wanted, rtol=near, atol=near)
    assert (logits - hidden_forward(model, ids, {})[:, LENGTH:]).abs().max() > 1e-3  # eviction does something


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_runs_and_keeps_its_own(order: str) -> None:
    """What is kept is what the scores of the full layer say, recomputed from the cache of an uncompressed run."""
    model, ids = llama(), prompt(2, LENGTH)
    compression = sl.Compression(keep=6, skip=(), order=order, first=1, last=1)
    with sl.compress(model, compression, tokenizer=Words()) as cut:
        logits, _ = decoded(model, torch.cat([ids, prompt(2, 3, seed=2)], 1), LENGTH, [1, 2])
    for positions in cut.kept:
        kept = positions[..., :6]
        assert bool((kept.diff(dim=-1) > 0).all())
        assert bool((kept[..., 0] == 0).all()) and bool((kept[..., -1] == LENGTH - 1).all())
        assert positions[..., 6:].tolist() == [[[14, 15, 16]] * 2] * 2
    wanted = hidden_forward(model, torch.cat([ids, prompt(2, 3, seed=2)], 1), seen_later(cut.kept, LENGTH, LENGTH + 3))
    torch.testing.assert_close(logits, wanted[:, LENGTH:], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        plain = model(ids, use_cache=True).past_key_values
    if order in ("low", "high", "value"):
        for layer, held in enumerate(plain.layers):
            norm = (held.values if order == "value" else held.keys).norm(dim=-1)
            norm = (-norm if order == "low" else norm)[..., 1:-1]
            best = norm.topk(4).indices.sort().values + 1
            assert torch.equal(cut.kept[layer][..., 1:5], best)


class Words:
    """A tokenizer whose ids 10 to 20 are punctuation."""

    all_special_ids = (0, 1, 2)

    def get_vocab(self) -> dict[str, int]:
        return {f"w{i}": i for i in (*range(10), *range(21, 64))} | dict(zip(".,!?:;-()[]", range(10, 21), strict=True))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_received_is_the_attention_of_all_queries_so_far(implementation: str) -> None:
    """The mean over viewers and over the group, at a cut after two forwards, against full maps."""
    model, ids = llama(implementation), prompt(2, LENGTH)
    with torch.no_grad(), sl.observe(model, maps=[(layer, head) for layer in range(3) for head in range(4)]) as seen:
        model(ids, use_cache=False)
    settings = sl.Compression(keep=LENGTH - 1, skip=(), order="received", schedule="saw", above=LENGTH)
    with sl.compress(model, settings) as cut:
        decoded(model, ids, LENGTH - 4, [3, 1])
    viewers = torch.arange(LENGTH, 0, -1)
    for layer in range(3):
        maps = torch.stack([seen.maps[(layer, head)] for head in range(4)], 1)
        received = (maps.sum(2) / viewers).view(2, 2, 2, LENGTH).mean(2)
        dropped = received.argmin(-1)
        for row in range(2):
            for head in range(2):
                there = set(range(LENGTH)) - {int(dropped[row, head])}
                assert set(cut.kept[layer][row, head].tolist()) == there


def test_expected_attention_is_that_of_a_gaussian_of_the_queries() -> None:
    """Statistics by hand: queries before RoPE from the projections, turned by the mean rotation ahead."""
    model, ids = llama(), prompt(1, LENGTH)
    found = {}

    from sinklens.cache import layer as cache_layer

    real_score = cache_layer.score

    def spy(order: str, entries: Any, **more: Any) -> Tensor:
        found[entries.layer] = entries.queries
        return real_score(order, entries, **more)

    cache_layer.score = spy
    try:
        with sl.compress(model, sl.Compression(keep=6, skip=(), order="expected")):
            decoded(model, torch.cat([ids, ids[:, :1]], 1), LENGTH, [1])
    finally:
        cache_layer.score = real_score
    hidden = {}
    hooks = [
        block.self_attn.register_forward_pre_hook(
            lambda m, a, k: hidden.__setitem__(m.layer_idx, k["hidden_states"]), with_kwargs=True
        )
        for block in model.model.layers
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    half = 4
    for layer, block in enumerate(model.model.layers):
        query = block.self_attn.q_proj(hidden[layer])[0, 4:].view(-1, 4, 8).transpose(0, 1)
        mean = query.mean(1)
        centred = query - mean[:, None]
        covariance = centred.mT @ centred / query.shape[1]
        turn = torch.zeros(8, 8, dtype=torch.float64)
        frequency = 1.0 / model.config.rope_parameters["rope_theta"] ** (torch.arange(half) / half).double()
        for position in range(LENGTH, LENGTH + 512):
            for i in range(half):
                angle = position * frequency[i]
                turn[i, i] += angle.cos() / 512
                turn[i + half, i + half] += angle.cos() / 512
                turn[i, i + half] -= angle.sin() / 512
                turn[i + half, i] += angle.sin() / 512
        torch.testing.assert_close(found[layer].mean[0].double(), mean @ turn.T, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            found[layer].covariance[0].double(), turn @ covariance @ turn.T, rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize(
    "settings",
    [
        sl.Compression(keep=LENGTH + NEW, skip=()),
        sl.Compression(keep=LENGTH, skip=()),
        sl.Compression(keep=LENGTH + NEW, skip=(), schedule="cap", order="high"),
        sl.Compression(keep=LENGTH, skip=(), strict=True),
        sl.Compression(keep=2, skip=(), schedule="saw", above=LENGTH + NEW + 1),
    ],
    ids=["once", "once exactly", "cap", "strict", "saw"],
)
@pytest.mark.parametrize("padded", [False, True])
def test_nothing_evicted_means_bit_identical(settings: sl.Compression, padded: bool) -> None:
    model, ids, mask = llama(), prompt(2, LENGTH + NEW), None
    if padded:
        mask = torch.ones_like(ids)
        mask[1, :4] = 0
    plain, _ = decoded(model, ids, LENGTH, [1] * NEW, mask)
    with sl.compress(model, settings):
        again, _ = decoded(model, ids, LENGTH, [1] * NEW, mask)
    assert torch.equal(plain, again)


def test_the_model_is_bit_identical_outside_and_after_an_exception() -> None:
    model, ids = llama(), prompt(2, LENGTH + 2)
    before, _ = decoded(model, ids, LENGTH, [1, 1])
    state = {name: dict(module.__dict__) for name, module in model.named_modules()}
    with pytest.raises(ZeroDivisionError), sl.compress(model, sl.Compression(keep=3, skip=(), order="received")):
        decoded(model, ids, LENGTH, [1, 1])
        1 / 0  # noqa: B018
    assert torch.equal(before, decoded(model, ids, LENGTH, [1, 1])[0])
    for name, module in model.named_modules():
        assert "forward" not in module.__dict__
        assert set(module.__dict__) == set(state[name])
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_cap_holds_at_every_step_and_hides_what_it_evicts() -> None:
    model, ids, kept = llama(), prompt(2, 16), []
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=4, skip=(0,), schedule="cap")) as cut:
        cache, logits = None, []
        for step in range(16):
            out = model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, [*logits, out.logits]
            kept.append(cut.kept)
            assert cut.lengths == [step + 1, min(step + 1, 4), min(step + 1, 4)]
    visible = {layer: torch.zeros(2, 2, 16, 16, dtype=torch.bool) for layer in (1, 2)}
    for layer in (1, 2):
        for step in range(16):
            visible[layer][:, :, step, step] = True
            if step:
                visible[layer][:, :, step].scatter_(-1, kept[step - 1][layer], True)
    wanted = hidden_forward(model, ids, visible)
    torch.testing.assert_close(torch.cat(logits, 1), wanted, rtol=1e-9, atol=1e-9)


def test_the_saw_runs_between_1960_and_1999() -> None:
    model = llama(num_attention_heads=1, num_key_value_heads=1, head_dim=2, hidden_size=2, num_hidden_layers=2)
    ids, held = prompt(1, 2100), []
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=1960, above=2000, schedule="saw", skip=(0,))) as cut:
        cache = model(ids[:, :1950], use_cache=True).past_key_values
        for step in range(1950, 2100):
            cache = model(ids[:, step : step + 1], past_key_values=cache, use_cache=True).past_key_values
            held.append(cut.lengths[1])
    after = held[held.index(1999) :]
    assert (min(after), max(after)) == (1960, 1999)
    assert after[:3] == [1999, 1960, 1961]
    assert cut.lengths[0] == 2100


def test_strict_chooses_no_answer_token_from_the_full_cache() -> None:
    model, ids = llama(), prompt(2, LENGTH + 3)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=5, skip=(0,), strict=True)) as cut:
        out = model(ids[:, :LENGTH], use_cache=True)
        assert cut.lengths == [LENGTH, 5, 5]
        assert out.logits.shape[1] == LENGTH
        last = model(ids[:, LENGTH:], past_key_values=out.past_key_values, use_cache=True).logits
        assert cut.lengths == [LENGTH + 3, 8, 8]
        only = model(ids[:, :LENGTH], use_cache=True, logits_to_keep=1)
    assert torch.equal(only.logits, out.logits[:, -1:])
    wanted = hidden_forward(model, ids, seen_later(cut.kept, LENGTH - 1, LENGTH + 3))
    torch.testing.assert_close(torch.cat([out.logits, last], 1), wanted, rtol=1e-9, atol=1e-9)
    assert all(bool((positions[..., 4] == LENGTH - 1).all()) for positions in cut.kept[1:])


@pytest.mark.parametrize("name", [row.name for row in zoo_rows() if row.generates and not row.name.startswith("gemma")])
def test_decoders_of_any_kind(name: str) -> None:
    row = next(row for row in zoo_rows() if row.name == name)
    for implementation in row.implementations:
        model, ids = row.build(implementation), prompt(2, LENGTH + 3)
        skip = (0,) if name == "gpt_oss" else ()  # a sliding window
        orders = ("low", "received") if name in ("gpt2", "gpt_oss") else ("low", "expected")
        for order in orders:
            with sl.compress(model, sl.Compression(keep=5, skip=skip, order=order)) as cut:
                logits, _ = decoded(model, ids, LENGTH, [1, 2])
            assert cut.lengths[1] == 8
            if name == "gpt_oss":  # its masks are two kinds, and its softmax has a null term
                assert torch.isfinite(logits).all()
                continue
            wanted = hidden_forward(model, ids, seen_later(cut.kept, LENGTH, LENGTH + 3))[:, LENGTH:]
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


def test_a_function_is_an_order_too() -> None:
    model, ids = llama(), prompt(2, LENGTH + 1)
    with sl.compress(model, sl.Compression(keep=4, skip=(0, 1), order=lambda e: -e.positions.float())) as cut:
        decoded(model, ids, LENGTH, [1])
    assert cut.kept[2].tolist() == [[[0, 1, 2, 3, 14]] * 2] * 2
    with (
        pytest.raises(sl.SinklensError, match=r"gave torch.int32 \(2, 2, 14\); expected floats"),
        sl.compress(model, sl.Compression(keep=4, skip=(), order=lambda e: e.positions)),
    ):
        decoded(model, ids, LENGTH, [1])


def test_random_is_drawn_anew_at_every_event_and_by_seed() -> None:
    model, ids = llama(), prompt(1, LENGTH + 1)

    def kept(seed: Any) -> list[list[int]]:
        with sl.compress(model, sl.Compression(keep=4, skip=(0, 1), order="random", seed=seed)) as cut:
            decoded(model, ids, LENGTH, [1])
        return cut.kept[2][0].tolist()

    assert kept(0) == kept(0)
    assert kept(0) != kept(1)
    assert kept((3,)) == kept(3)  # row 0 of either
    assert kept(0)[0] != kept(0)[1]


def test_memory_is_freed() -> None:
    model, ids = llama(), prompt(1, 40)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=4, skip=())) as cut:
        cache = model(ids, use_cache=True).past_key_values
    entry = 2 * 8 * 8 * 2  # keys and values, 8 numbers of 8 bytes, 2 kv heads
    assert cut.bytes == 3 * 4 * entry
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            assert states.untyped_storage().nbytes() == 4 * entry // 2
