"""Rows of a batch are independent, behind any padding; generation, samplers, beams and observers on cut caches."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sinklens as sl
from cache.reference import hidden_forward, llama, prompt, seen_later
from sinklens.cache.settings import ORDERS

SAMPLER = sl.AutoregressiveSampler(length=6)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(row.numel() for row in rows)
    ids = torch.stack([torch.cat([torch.zeros(width - row.numel(), dtype=torch.long), row]) for row in rows])
    mask = torch.stack([torch.tensor([0] * (width - row.numel()) + [1] * row.numel()) for row in rows])
    return ids, mask


def real_kept(cut: Any, row: int, shift: int) -> list[list[list[int]]]:
    """Positions that a row keeps in each layer and head, counted from its first real token."""
    return [
        [[int(p) - shift for p in head if p >= 0] for head in positions[row]]
        for positions in (p.tolist() for p in cut.kept)
    ]


SCHEDULES: list[dict[str, Any]] = [{}, {"schedule": "cap"}, {"schedule": "saw", "above": 9}, {"strict": True}]


@pytest.mark.parametrize(
    ("order", "schedule"),
    [("low", schedule) for schedule in SCHEDULES]
    + [("received", schedule) for schedule in SCHEDULES]
    + [(order, SCHEDULES[i % 3]) for i, order in enumerate(ORDERS) if order not in ("low", "received", "fastgen")],
    ids=str,
)
def test_a_padded_row_computes_what_it_computes_alone(order: str, schedule: dict[str, Any]) -> None:
    model = sl.wrap(llama(eos_token_id=None))
    rows = [prompt(1, 17, seed=3)[0], prompt(1, 5, seed=4)[0], prompt(1, 10, seed=5)[0]]
    ids, mask = padded(rows)
    together = sl.Compression(keep=6, skip=(1,), order=order, seed=(7, 8, 9), **schedule)
    with sl.compress(model, together) as cut:
        out = sl.generate(model, ids, SAMPLER, attention_mask=mask)
    for number, row in enumerate(rows):
        alone = sl.Compression(keep=6, skip=(1,), order=order, seed=(7 + number,), **schedule)
        with sl.compress(model, alone) as by_itself:
            single = sl.generate(model, row[None], SAMPLER)
        assert out.ids[number, 17:].tolist() == single.ids[0, row.numel() :].tolist()
        assert real_kept(cut, number, 17 - row.numel()) == real_kept(by_itself, 0, 0)


def test_padding_is_never_counted_as_kept_and_nothing_is_kept_twice() -> None:
    model = llama()
    ids, mask = padded([prompt(1, 12, seed=3)[0], prompt(1, 3, seed=4)[0]])
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=5, skip=())) as cut:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        out = model(ids, attention_mask=mask, position_ids=positions, use_cache=True)
        assert cut.lengths == [5, 5, 5]
        for kept in cut.kept:
            assert bool((kept[0] >= 0).all())
            assert [row.tolist() for row in kept[1]] == [[-1, -1, 9, 10, 11]] * 2
        # A query of several tokens, and then a mask that the caller forgets: filled-up entries stay hidden.
        more = torch.cat([mask, torch.ones(2, 2, dtype=torch.long)], 1)
        new = prompt(2, 2, seed=6)
        later = model(
            new,
            attention_mask=more,
            position_ids=(more.cumsum(-1) - 1)[:, -2:],
            past_key_values=out.past_key_values,
            use_cache=True,
        )
    wanted = hidden_forward(model, torch.cat([ids, new], 1), seen_later(cut.kept, 12, 14), more)
    torch.testing.assert_close(later.logits, wanted[:, 12:], rtol=1e-9, atol=1e-9)
    for kept in cut.kept:
        for head in kept.flatten(0, 1):
            there = head[head >= 0].tolist()
            assert len(there) == len(set(there))


def test_a_forgotten_mask_does_not_bring_padding_back() -> None:
    model = llama()
    ids, mask = padded([prompt(1, 12, seed=3)[0], prompt(1, 3, seed=4)[0]])
    new = prompt(2, 1, seed=6)
    positions = torch.tensor([[12], [3]])
    logits = []
    for later in (torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1), None):
        with torch.no_grad(), sl.compress(model, sl.Compression(keep=5, skip=())):
            first = (mask.cumsum(-1) - 1).clamp(min=0)
            cache = model(ids, attention_mask=mask, position_ids=first, use_cache=True).past_key_values
            out = model(new, attention_mask=later, position_ids=positions, past_key_values=cache, use_cache=True)
        logits.append(out.logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-12, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    keep=st.integers(1, 8),
    order=st.sampled_from([order for order in ORDERS if order != "fastgen"]),
    schedule=st.sampled_from(["once", "cap", "saw"]),
    new=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_counts_of_any_run(lengths: list[int], keep: int, order: str, schedule: str, new: list[int]) -> None:
    model = MODEL
    ids, mask = padded([prompt(1, length, seed=length)[0] for length in lengths])
    compression = sl.Compression(
        keep=keep, skip=(0,), order=order, schedule=schedule, above=keep + 2 if schedule == "saw" else None
    )
    held = lengths
    with torch.no_grad(), sl.compress(model, compression) as cut:
        cache, fed = None, ids
        for turn, size in enumerate([ids.shape[1], *new]):
            if turn:
                fed = prompt(len(lengths), size, seed=turn)
                mask = torch.cat([mask, torch.ones_like(fed)], 1)
                held = [number + size for number in held]
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -fed.shape[1] :]
            out = model(fed, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            if turn == 0 or schedule != "once":
                held = [compression.left_of(number) for number in held]
            assert torch.isfinite(out.logits).all()
            assert cache.get_seq_length() == mask.shape[1]
            for layer in (1, 2):
                counts = (cut.kept[layer] >= 0).sum(-1)
                assert counts.tolist() == [[number] * 2 for number in held]
                keys, values = cache.layers[layer].keys, cache.layers[layer].values
                assert keys.shape == values.shape == (len(lengths), 2, cut.lengths[layer], 8)


MODEL = llama()


def test_keys_and_values_of_an_entry_stay_together() -> None:
    model, ids = llama(), prompt(2, 14)
    with torch.no_grad():
        plain = model(ids, use_cache=True).past_key_values
        with sl.compress(model, sl.Compression(keep=6, skip=())) as cut:
            cache = model(ids, use_cache=True).past_key_values
    for full, layer, kept in zip(plain.layers, cache.layers, cut.kept, strict=True):
        index = kept[..., None].expand(-1, -1, -1, 8)
        assert torch.equal(layer.keys, full.keys.gather(2, index))
        assert torch.equal(layer.values, full.values.gather(2, index))


@pytest.mark.parametrize("skip", [(), (0,)])
def test_transformers_generate_and_ours_agree_and_positions_are_true(skip: tuple[int, ...]) -> None:
    model = llama(eos_token_id=None)
    ids, mask = padded([prompt(1, 17, seed=3)[0], prompt(1, 9, seed=4)[0]])
    compression = sl.Compression(keep=6, skip=skip)
    positions: list[Tensor] = []
    hook = model.model.layers[2].self_attn.register_forward_pre_hook(
        lambda m, a, k: positions.append(k["position_ids"].clone()), with_kwargs=True
    )
    with sl.compress(model, compression):
        theirs = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
        first = [step[:, -1].tolist() for step in positions]
        positions.clear()
        ours = sl.generate(model, ids, SAMPLER, attention_mask=mask)
    hook.remove()
    assert torch.equal(theirs, ours.ids)
    assert first == [[16 + step, 8 + step] for step in range(6)]
    assert [step[:, -1].tolist() for step in positions] == first


def test_beams_carry_their_entries_along() -> None:
    """Every hypothesis of a beam search scores what it scores when it is fed alone."""
    model, ids = llama(eos_token_id=None), prompt(1, 14)
    with sl.compress(model, sl.Compression(keep=5, skip=(0,), order="received", schedule="cap")):
        out = model.generate(
            ids, max_new_tokens=4, num_beams=3, num_return_sequences=3, do_sample=False, pad_token_id=0,
            output_scores=True, return_dict_in_generate=True, length_penalty=0.0,
        )  # fmt: skip
        for beam, total in zip(out.sequences, out.sequences_scores, strict=True):
            with torch.no_grad():
                step, cache, score = ids, None, 0.0
                for token in beam[14:]:
                    run = model(step, past_key_values=cache, use_cache=True)
                    score += float(run.logits[0, -1].log_softmax(-1)[token])
                    step, cache = token.view(1, 1), run.past_key_values
            assert score == pytest.approx(float(total), abs=1e-4)


def test_rows_are_reordered_with_all_that_is_known_of_them() -> None:
    model = llama()
    ids, mask = padded([prompt(1, 12, seed=3)[0], prompt(1, 3, seed=4)[0]])
    for order in ("received", "expected"):
        with torch.no_grad(), sl.compress(model, sl.Compression(keep=5, skip=(0,), order=order)):
            cache = model(ids, attention_mask=mask, use_cache=True).past_key_values
        layer = cache.layers[1]
        keys, columns, met, queries = layer.keys, layer.columns, layer.met, layer.queries
        cache.reorder_cache(torch.tensor([1, 0]))
        assert torch.equal(layer.keys, keys.flip(0)) and torch.equal(layer.met, met.flip(0))
        for name, column in columns.items():
            assert torch.equal(layer.columns[name], column.flip(0)), name
        if queries is not None:
            assert torch.equal(layer.queries.total, queries.total.flip(0))
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([2]))
        assert torch.equal(layer.keys, keys[:1])
        assert torch.equal(layer.columns["position"], columns["position"][:1])


@pytest.mark.parametrize("order", ["received", "low"])
def test_padding_on_the_right_is_not_kept_and_its_queries_do_not_count(order: str) -> None:
    model, ids = llama(), prompt(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    compression = sl.Compression(keep=5, skip=(), order=order)
    with torch.no_grad(), sl.compress(model, compression) as cut:
        model(ids, attention_mask=mask, use_cache=True)
    with torch.no_grad(), sl.compress(model, compression) as alone:
        model(ids[1:, :8], use_cache=True)
    for together, single in zip(cut.kept, alone.kept, strict=True):
        assert torch.equal(together[1], single[0])


def test_a_run_of_several_steps_is_observed_at_true_positions() -> None:
    model = llama(eos_token_id=None)
    ids = prompt(2, 14)
    compression = sl.Compression(keep=5, skip=(1,))
    with sl.compress(model, compression):
        free = sl.generate(model, ids, SAMPLER)
    seen_calls: list[sl.AttentionCall] = []

    def look(call: sl.AttentionCall) -> sl.AttentionCall:
        seen_calls.append(call)
        return call

    for outer in (True, False):
        if outer:
            with sl.observe(model) as seen, sl.compress(model, compression) as cut:
                out = sl.generate(model, ids, SAMPLER)
        else:
            with sl.compress(model, compression) as cut, sl.observe(model) as seen, sl.intervene(model, look):
                out = sl.generate(model, ids, SAMPLER)
        assert torch.equal(out.ids, free.ids)
        step = seen.steps[4]
        assert step.received.shape == (3, 2, 4, 18)
        torch.testing.assert_close(step.received.sum(-1).float(), torch.ones(3, 2, 4), rtol=1e-5, atol=1e-5)
        for layer in range(3):
            for row in range(2):
                for head in range(4):
                    where = step.received[layer, row, head].nonzero().squeeze(-1).tolist()
                    wanted = [int(p) for p in cut.kept[layer][row, head // 2] if p < 18]
                    assert where == wanted
    last = seen_calls[-1]
    assert last.where_keys().tolist() == list(range(19))
    assert last.where_queries().tolist() == [18]


def test_observed_numbers_are_those_of_the_hidden_forward() -> None:
    model, ids = llama(), prompt(2, 16)
    with torch.no_grad(), sl.compress(model, sl.Compression(keep=5, skip=())) as cut:
        cache = model(ids[:, :14], use_cache=True).past_key_values
        kept = cut.kept
        with sl.observe(model, maps=[(2, 3)]) as seen:
            logits = model(ids[:, 14:], past_key_values=cache, use_cache=True).logits
    wanted = hidden_forward(model, ids, seen_later(kept, 14, 16))
    torch.testing.assert_close(logits, wanted[:, 14:], rtol=1e-9, atol=1e-9)
    there = torch.zeros(2, 16, dtype=torch.bool)
    for row in range(2):
        there[row, kept[2][row, 1]] = True
    assert torch.equal(seen.maps[(2, 3)][:, 0] > 0, there | (torch.arange(16) == 14))
    assert torch.equal(seen.key_norm[2, :, 1] > 0, there | (torch.arange(16) >= 14))


def test_received_is_measured_beside_other_observers() -> None:
    model, ids = llama(eos_token_id=None), prompt(2, 14)
    compression = sl.Compression(keep=5, skip=(0,), order="received", schedule="cap")
    with sl.compress(model, compression) as alone:
        free = sl.generate(model, ids, SAMPLER)
    with sl.compress(model, compression) as cut, sl.observe(model):
        out = sl.generate(model, ids, SAMPLER)
    assert torch.equal(free.ids, out.ids)
    for positions, others in zip(alone.kept, cut.kept, strict=True):
        assert torch.equal(positions, others)


def test_strict_is_two_forwards_to_an_observer() -> None:
    for wrapped in (False, True):
        model: Any = llama(eos_token_id=None)
        model = sl.wrap(model) if wrapped else model
        with sl.compress(model, sl.Compression(keep=5, skip=(0,), strict=True)), sl.observe(model) as seen:
            sl.generate(model, prompt(1, 14), sl.AutoregressiveSampler(length=2))
        assert [len(step.calls) for step in seen.steps] == [3, 3, 3]
        assert [step.received.shape[-1] for step in seen.steps] == [13, 14, 15]
