"""The cache of diffusion samplers: exact at every refresh, and between refreshes what it says it is."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import FAMILIES, FOLDER, Case, cases
from scripted_model import Scripted, random_logits
from torch import Tensor

import sinklens as sl
from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import StepNumber
from sinklens.cache.blocks import CanvasCache
from sinklens.cache.evicted_prompt import ORDERS, Eviction
from sinklens.errors import UsageError
from sinklens.models.layers import rotate
from sinklens.sampling.block_cache import BlockCache
from sinklens.sampling.canvas import predict
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate, steps

PROMPT, WIDTH = 10, 22
SPANS = {"prefix": range(14, WIDTH), "dual": range(14, 18), "all": range(0, WIDTH), "shifted": range(9, WIDTH)}
PADDINGS = {"none": None, "left": [0, 3], "right of the prompt": [[6, 7], [9]]}


def canvas_of(model: Any, seed: int = 0) -> Tensor:
    """A canvas in the middle of a run: a prompt, four decided positions, masks."""
    ids = torch.randint(0, 80, (2, WIDTH), generator=torch.Generator().manual_seed(seed))
    ids[:, 14:] = model.spec.mask_id
    return ids


def padding_of(name: str) -> Tensor | None:
    if name == "none":
        return None
    mask = torch.ones(2, WIDTH, dtype=torch.long)
    if name == "left":
        mask[1, :3] = 0
    else:
        mask[0, 6:8] = mask[1, 9] = 0
    return mask


def held(model: Any, ids: Tensor, mask: Tensor | None, span: range, eviction: Eviction | None = None) -> CanvasCache:
    """A cache that was refreshed on `ids`."""
    cache = CanvasCache(model.spec.layers, eviction=eviction)
    cache.refresh(span=span, prompt=PROMPT, masked=ids == model.spec.mask_id)
    with torch.no_grad():
        model(ids, attention_mask=mask, cache=cache)
    return cache


def part(model: Any, ids: Tensor, mask: Tensor | None, cache: CanvasCache) -> Tensor:
    with torch.no_grad():
        return model(ids, attention_mask=mask, cache=cache)


@functools.cache
def load_once(family: str) -> Any:
    return sl.load(FOLDER / family)


every_case = pytest.mark.parametrize("case", cases(*FAMILIES), ids=lambda case: f"{case.family}-{case.name}")


@every_case
def test_a_refresh_at_every_step_is_the_run_without_a_cache(checkpoint, case: Case) -> None:
    cache = BlockCache(refresh=1, suffix=case.family != "dream", prompt_keep=1)
    out = generate(
        checkpoint(case.family),
        case.prompt,
        replace(case.sampler, cache=cache),
        attention_mask=case.attention_mask,
        seed=case.seed,
    )
    assert torch.equal(out.canvases, case.canvases)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refresh_at_every_step_keeps_every_bit(checkpoint, family: str) -> None:
    model, sampler = checkpoint(family), LLaDASampler(steps=4, length=8, block=4)
    cached = list(steps(model, [[5, 6, 7], [8]], replace(sampler, cache=BlockCache(refresh=1))))
    for one, other in zip(cached, steps(model, [[5, 6, 7], [8]], sampler), strict=True):
        assert torch.equal(one.canvas, other.canvas)
        assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("span", SPANS)
def test_where_nothing_has_changed_a_part_is_the_whole(checkpoint, family: str, padding: str, span: str) -> None:
    model, where = checkpoint(family), SPANS[span]
    ids, mask = canvas_of(model), padding_of(padding)
    with torch.no_grad():
        whole = model(ids, attention_mask=mask)
    cache = held(model, ids, mask, where)
    found = part(model, ids, mask, cache)
    real = torch.ones(2, WIDTH, dtype=torch.bool) if mask is None else mask.bool()
    real = real[:, where.start : where.stop]
    assert found.shape == (2, len(where), model.spec.vocab_size)
    torch.testing.assert_close(found[real], whole[:, where.start : where.stop][real], rtol=1e-4, atol=1e-5)


def by_hand(model: Any, ids: Tensor, cache: CanvasCache, span: range, old: Tensor) -> Tensor:
    """Logits of the span in float64: held entries from a forward of `old`, attention over what each head holds."""
    where, some = torch.arange(WIDTH), slice(span.start, span.stop)
    states = {"old": [model.embed(old)], "new": [model.embed(ids[:, some])]}
    rotation = model._rotary.at(where[None], WIDTH)
    for layer, block in enumerate(model.blocks):
        attention, outputs = block.attention, {}
        qkv = {}
        for name, stream in (("old", states["old"][-1]), ("new", states["new"][-1])):
            normed = block.attention_norm(stream)
            q, k, v = (
                p(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for p in (attention.q, attention.k, attention.v)
            )
            table = rotation if name == "old" else tuple(t[:, some] for t in rotation)
            qkv[name] = (*(rotate(x, *table, full_precision=True) for x in (q, k)), v)
        keys, values = (torch.cat([qkv["old"][i][:, :, : span.start], qkv["new"][i]], dim=2) for i in (1, 2))
        kept = cache.layers[layer].held.prompt
        for name, k_all, v_all in (("old", qkv["old"][1], qkv["old"][2]), ("new", keys, values)):
            q = qkv[name][0]
            out = torch.zeros_like(q)
            for row in range(q.shape[0]):
                for head in range(q.shape[1]):
                    kv = head * k_all.shape[1] // q.shape[1]
                    there = where
                    if name == "new" and kept is not None:
                        there = torch.cat([kept.positions[row, kv], where[PROMPT:]])
                    logits = q[row, head] @ k_all[row, kv, there].T / q.shape[-1] ** 0.5
                    out[row, head] = logits.softmax(-1) @ v_all[row, kv, there]
            outputs[name] = attention.o(out.transpose(1, 2).flatten(2))
        for name, output in outputs.items():
            after = states[name][-1] + output
            states[name].append(after + block.mlp(block.mlp_norm(after)))
    return model.unembed(model.final_norm(states["new"][-1]))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("order", ["low", "masked"])
def test_between_refreshes_new_queries_see_old_entries(family: str, order: str) -> None:
    model = sl.load(FOLDER / family, dtype="float64")
    span, old = SPANS["prefix"], canvas_of(model)
    ids = old.clone()
    ids[:, 15] = 7  # committed since the refresh
    cache = held(model, old, None, span, Eviction(keep=3, order=order, skip=(0,)))
    with torch.no_grad():
        expected = by_hand(model, ids, cache, span, old)
        torch.testing.assert_close(part(model, ids, None, cache), expected, rtol=1e-9, atol=1e-9)
    assert [layer.held.prompt is None for layer in cache.layers] == [True, False, False]


def brute_scores(call: AttentionCall, order: str, masked: Tensor) -> Tensor:
    """[batch, kv_head, prompt]: the highest are to be kept."""
    keys = call.key.double()
    if order in ("low", "high"):
        return keys.norm(dim=-1)[..., :PROMPT] * (-1 if order == "low" else 1)
    per_kv = call.query.shape[1] // keys.shape[1]
    logits = call.query.double() @ keys.repeat_interleave(per_kv, 1).transpose(-1, -2) / keys.shape[-1] ** 0.5
    if call.real_keys is not None:
        logits = logits.masked_fill(~call.real_keys[:, None, None], -torch.inf)
    weights = logits.softmax(-1) * masked[:, None, :, None]
    return weights.sum(2).unflatten(1, (-1, per_kv)).sum(2)[..., :PROMPT]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", ["low", "high", "masked"])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_the_kept_entries_are_the_best(checkpoint, family: str, order: str, padding: str) -> None:
    model, mask, calls = checkpoint(family), padding_of(padding), {}
    ids = canvas_of(model)

    def note(call: AttentionCall) -> AttentionCall:
        calls.setdefault(call.site.layer, call)
        return call

    with sl.intervene(model, note):
        cache = held(model, ids, mask, SPANS["prefix"], Eviction(keep=4, order=order, skip=()))
    for layer, call in calls.items():
        scores = brute_scores(call, order, ids == model.spec.mask_id)
        if call.real_keys is not None:
            scores = scores.masked_fill(~call.real_keys[:, None, :PROMPT], -torch.inf)
        kept = cache.layers[layer].held.prompt
        assert torch.equal(kept.positions, scores.topk(4).indices.sort(-1).values)
        index = kept.positions[..., None].expand(-1, -1, -1, call.key.shape[-1])
        assert torch.equal(kept.key, call.key.gather(2, index))
        assert torch.equal(kept.value, call.value.gather(2, index))


def test_random_entries_are_drawn_anew_at_each_refresh_and_belong_to_their_row(checkpoint) -> None:
    model = checkpoint("llada")
    ids = canvas_of(model)

    def draws(rows: slice, seed: int | tuple[int, ...]) -> list[Tensor]:
        cache, found = CanvasCache(3, eviction=Eviction(keep=4, order="random", skip=(), seed=seed)), []
        for _ in range(2):
            cache.refresh(span=SPANS["prefix"], prompt=PROMPT, masked=ids[rows] == model.spec.mask_id)
            part(model, ids[rows], None, cache)
            found.append(torch.stack([layer.held.prompt.positions for layer in cache.layers]))
        return found

    both, again, alone = draws(slice(0, 2), (5, 6)), draws(slice(0, 2), (5, 6)), draws(slice(1, 2), (6,))
    assert all(map(torch.equal, both, again))
    assert not torch.equal(both[0], both[1])
    assert torch.equal(both[0][:, 1:], alone[0])
    assert not torch.equal(both[0], draws(slice(0, 2), (7, 8))[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_budget_for_the_whole_prompt_changes_nothing(checkpoint, family: str) -> None:
    model, rows = checkpoint(family), [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    sampler = LLaDASampler(steps=4, length=8, block=8, cache=BlockCache())
    kept, fewer = (replace(sampler, cache=BlockCache(prompt_keep=keep, skip=())) for keep in (6, 2))
    runs = [list(steps(model, rows, one)) for one in (sampler, kept, fewer)]
    assert all(
        torch.equal(one.confidence.nan_to_num(), two.confidence.nan_to_num())
        for one, two in zip(*runs[:2], strict=True)
    )
    assert any(
        not torch.equal(one.confidence.nan_to_num(), two.confidence.nan_to_num())
        for one, two in zip(*runs[1:], strict=True)
    )


CACHES = {
    "prefix": BlockCache(refresh=3),
    "blocks": BlockCache(),
    "dual": BlockCache(refresh=2, suffix=True),
    "low": BlockCache(refresh=4, prompt_keep=5, skip=()),
    "masked, dual": BlockCache(suffix=True, prompt_keep=2, order="masked", skip=(0,)),
    "random": BlockCache(refresh=4, prompt_keep=2, order="random", skip=(), seed=(3, 3, 3)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
def test_rows_of_a_padded_batch_give_what_they_give_alone(checkpoint, family: str, cache: str) -> None:
    model, chosen = checkpoint(family), CACHES[cache]
    rows = [[5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22], [30, 31, 32, 33, 34, 35, 36]]
    together = generate(model, rows, LLaDASampler(steps=8, length=8, block=4, cache=chosen))
    one = replace(chosen, seed=(3,)) if cache == "random" else chosen
    for number, row in enumerate(rows):
        alone = generate(model, row, LLaDASampler(steps=8, length=8, block=4, cache=one))
        assert together.ids[number, 8:].tolist() == alone.ids[0, len(row) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("suffix", [False, True])
@pytest.mark.parametrize("first", [14, 0])  # 0: a canvas without a prompt
def test_a_step_that_follows_no_change_predicts_the_same(checkpoint, family: str, suffix: bool, first: int) -> None:
    """The output that predicts a position is the same one, shifted or not, in a part and in the whole."""
    model, block = checkpoint(family), range(first, first + 4)
    ids = canvas_of(model)
    ids[:, first:] = model.spec.mask_id
    decidable = ids == model.spec.mask_id
    decidable[:, block.stop :] = False
    number = StepNumber(0, canvas=ids, masked=ids == model.spec.mask_id, block=block)
    run = BlockCache(suffix=suffix).start(model, prompt=min(first, PROMPT), mask_id=model.spec.mask_id)
    predicted = [run.predict(ids, None, number, block=block) for _ in range(3)]
    expected = predict(model, ids, None, number)[decidable]
    assert run.refreshes == 1
    assert torch.equal(predicted[0].at(decidable), expected)
    for one in predicted[1:]:
        assert len(one.positions) < WIDTH or (first == 0 and not suffix)
        torch.testing.assert_close(one.at(decidable), expected, rtol=1e-4, atol=1e-5)


ALL = (0, 12)


def blocked(count: int, **cache: Any) -> LLaDASampler:
    return LLaDASampler(steps=count, length=8, block=4, cache=BlockCache(**cache))


def whole(count: int, **cache: Any) -> DreamSampler:
    return DreamSampler(steps=count, length=8, alg="entropy", cache=BlockCache(**cache))


@pytest.mark.parametrize(
    ("family", "sampler", "computed"),
    [
        ("llada", blocked(8, refresh=2), [ALL, (4, 12), ALL, (4, 12), ALL, (8, 12), ALL, (8, 12)]),
        ("llada", blocked(8, suffix=True), [ALL, (4, 8), (4, 8), (4, 8), ALL, (8, 12), (8, 12), (8, 12)]),
        ("dream", blocked(4, suffix=True), [ALL, (3, 8), ALL, (7, 12)]),
        ("dream", whole(5, refresh=3), [ALL, (3, 12), (3, 12), ALL, (3, 12)]),
    ],
    ids=["prefix", "dual", "dual, shifted", "whole answer, shifted"],
)
def test_what_each_step_computes(checkpoint, family: str, sampler: Any, computed: list[tuple[int, int]]) -> None:
    model, seen = checkpoint(family), []

    def note(call: AttentionCall) -> AttentionCall:
        if call.site.layer == 0:
            where = call.where_queries()
            seen.append((int(where[0]), int(where[-1]) + 1))
            assert torch.equal(call.where_keys(), torch.arange(12))
        return call

    with sl.intervene(model, note):
        generate(model, [[5, 6, 7, 8]], sampler)
    assert seen == computed


def test_masks_left_on_the_left_are_computed_too(checkpoint) -> None:
    model = checkpoint("llada")
    prompt = torch.tensor([[5, 6, model.spec.mask_id, 8, 9]])
    sampler = LLaDASampler(steps=8, length=8, block=4, cache=BlockCache(refresh=2))
    seen = []
    for step in steps(model, prompt, replace(sampler, threshold=0.9)):
        seen.append(step)
    assert not (seen[-1].canvas == model.spec.mask_id).any()
    first = next(steps(model, prompt, sampler))
    assert first.confidence[0, 2].isfinite()
    second = list(steps(model, prompt, sampler))[1]
    still = first.canvas[0, 2] == model.spec.mask_id
    assert bool(second.confidence[0, 2].isfinite()) == bool(still)


@settings(deadline=None, max_examples=15)
@given(
    family=st.sampled_from(FAMILIES),
    block=st.sampled_from([2, 4, 8]),
    refresh=st.sampled_from([None, 1, 2, 3, 7]),
    suffix=st.booleans(),
    keep=st.sampled_from([None, 1, 3]),
    order=st.sampled_from(ORDERS),
    cfg=st.sampled_from([0.0, 1.0]),
    temperature=st.sampled_from([0.0, 0.8]),
)
def test_any_cached_run_fills_its_blocks_and_never_takes_back(
    *, family: str, block: int, refresh: int | None, suffix: bool, keep: int | None, order: str, cfg: float,
    temperature: float,
) -> None:  # fmt: skip
    model = load_once(family)
    cache = BlockCache(refresh=refresh, suffix=suffix, prompt_keep=keep, order=order, skip=(1,), seed=(1, 2))
    sampler = LLaDASampler(steps=8, length=8, block=block, cfg=cfg, temperature=temperature, cache=cache)
    taken = list(steps(model, [[5, 6, 7, 8, 9], [10, 11]], sampler, seed=3))
    plain = next(steps(model, [[5, 6, 7, 8, 9], [10, 11]], replace(sampler, cache=None), seed=3))
    assert torch.equal(taken[0].canvas, plain.canvas)  # the first step is a refresh
    before = taken[0].canvas.masked_fill(taken[0].committed, model.spec.mask_id)
    for step in taken:
        decided = before != model.spec.mask_id
        assert torch.equal(step.canvas[decided], before[decided])
        before = step.canvas
    assert len(taken) == 8
    if temperature == 0 and family != "mmada":
        assert all(step.committed.sum(dim=1).tolist() == [1, 1] for step in taken)


WATCHED = {name: CACHES[name] for name in ("prefix", "dual", "low", "masked, dual")}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", WATCHED)
def test_observers_see_the_canvas_and_change_nothing(checkpoint, family: str, cache: str) -> None:
    model, rows = checkpoint(family), [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    sampler = LLaDASampler(steps=8, length=8, block=4, cache=WATCHED[cache])
    plain = list(steps(model, rows, sampler))
    masked = {"masked": lambda step: step.masked}
    with sl.observe(model, groups=masked) as seen:
        watched = list(steps(model, rows, sampler))
    for one, other in zip(watched, plain, strict=True):
        assert torch.equal(one.canvas, other.canvas)
        assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))
    assert len(seen.steps) == 8
    evicted = 0
    for step in seen.steps:
        for record in step.calls:
            assert record.received.shape == (2, 4, 14)
            torch.testing.assert_close(record.received.sum(-1), record.queries - padded(record))
            assert (record.received[1, :, :3] == 0).all()  # padding
            hidden = record.viewers == 0
            assert (record.received[hidden.expand_as(record.received)] == 0).all()
            evicted += int((hidden[0] & (torch.arange(14) < 6)).sum())
    assert (evicted > 0) == (WATCHED[cache].prompt_keep is not None)


def padded(record: Any) -> Tensor:
    """Padded queries are not counted: row 1 has three, in steps that compute the whole canvas."""
    return torch.tensor([0.0, 3.0 if record.queries == 14 else 0.0])[:, None].expand(2, 4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("padding", "keep"), [("none", 3), ("left", 3), ("left", 9)])  # 9: more than row 1 has
def test_what_interventions_are_shown_is_what_runs(checkpoint, family: str, padding: str, keep: int) -> None:
    """Attention on the kept entries alone, against that on the canvas with the evicted keys hidden."""
    model, mask = checkpoint(family), padding_of(padding)
    ids, span = canvas_of(model), SPANS["dual"]
    cache = held(model, ids, mask, span, Eviction(keep=keep, skip=()))
    found = part(model, ids, mask, cache)

    def remade(call: AttentionCall) -> AttentionCall:
        assert call.key.shape[2] == WIDTH
        return replace(call, mask=call.mask.clone())  # another call: the model's own way is not taken

    with sl.intervene(model, remade):
        again = part(model, ids, mask, cache)
    torch.testing.assert_close(found, again, rtol=1e-4, atol=1e-5)
    whole = part(model, ids, mask, held(model, ids, mask, span))
    assert (found - whole).abs().max() > 1e-2


@pytest.mark.parametrize("span", ["prefix", "dual"])
@pytest.mark.parametrize("keep", [None, 3])
def test_every_key_is_shown_at_its_place(checkpoint, span: str, keep: int | None) -> None:
    model, shown = checkpoint("dream"), []
    ids, eviction = canvas_of(model), None if keep is None else Eviction(keep=keep, skip=())
    with sl.intervene(model, lambda call: shown.append(call) or call):
        cache = held(model, ids, None, SPANS[span], eviction)
        part(model, ids, None, cache)
    for layer, (whole, call) in enumerate(zip(shown[:3], shown[3:], strict=True)):
        assert call.where_keys().tolist() == list(range(WIDTH))
        assert call.where_queries().tolist() == list(SPANS[span])
        there = torch.ones(2, 2, WIDTH, dtype=torch.bool)
        if keep is not None:
            there[..., :PROMPT] = False
            there.scatter_(2, cache.layers[layer].held.prompt.positions, True)
            assert torch.equal(call.mask, there.repeat_interleave(2, dim=1)[:, :, None])
            there[..., SPANS[span]] = layer == 0  # further up, what is computed lacks what was evicted
        torch.testing.assert_close(call.key[there], whole.key[there], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(call.value[there], whole.value[there], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", WATCHED)
def test_sinks_are_masked_in_a_cached_run(checkpoint, cache: str) -> None:
    model = checkpoint("llada")
    sampler = LLaDASampler(steps=8, length=8, block=4, cache=WATCHED[cache])
    with sl.intervene(model, sl.MaskSinks(positions=[0])), sl.observe(model) as seen:
        generate(model, [[5, 6, 7, 8, 9, 10]], sampler)
    for step in seen.steps:
        assert (step.received[..., 0] == 0).all()
    for settings_ in (sl.MaskSinks(top=2, keys="cached"), sl.ZeroValue(top=1), sl.MaskSinks(top=1, measure="shadow")):
        with sl.intervene(model, settings_) as lab:
            generate(model, [[5, 6, 7, 8, 9, 10]], sampler)
        assert [dose.step for dose in lab.doses if dose.layer == 0] == list(range(8))


@pytest.mark.parametrize("keep", [None, 2])
def test_a_trace_has_canvas_coordinates(checkpoint, tmp_path: Path, keep: int | None) -> None:
    model, cache = checkpoint("llada"), BlockCache(refresh=4, suffix=True, prompt_keep=keep, skip=(0,))
    sampler = LLaDASampler(steps=8, length=8, block=4, cache=cache)
    trace = sl.trace(model, [[5, 6, 7, 8, 9, 10]], sampler, to=tmp_path / "a")
    layer = trace.layer(0, 1, norms=True)
    assert layer.received.shape == (8, 4, 14)
    computed = [14, 4, 4, 4, 14, 4, 4, 4]
    assert layer.received.sum(-1) == pytest.approx(torch.tensor(computed)[:, None].expand(8, 4).numpy(), rel=1e-3)
    seen = (layer.viewers[1, :, :6] > 0).sum(-1)
    assert (seen == (6 if keep is None else 2)).all()
    there = np.isfinite(layer.hidden_norm).reshape(8, 14)  # of what a step computed
    assert there.sum(-1).tolist() == computed
    assert there[1, 6:10].all() and there[5, 10:14].all()


def test_evicted_entries_are_freed(checkpoint) -> None:
    model = checkpoint("dream")
    ids, span = canvas_of(model), SPANS["dual"]
    whole = held(model, ids, None, span)
    layers, rows, kv_heads, dim, entry = 3, 2, 2, 16, 2 * 4
    assert whole.bytes == layers * rows * kv_heads * dim * entry * (WIDTH - len(span))
    few = held(model, ids, None, span, Eviction(keep=3, skip=(0,)))
    index = 8 * rows * kv_heads * 3  # positions of the kept
    assert whole.bytes - few.bytes == 2 * (rows * kv_heads * dim * entry * (PROMPT - 3) - index)
    for cache in (whole, few):
        for layer in cache.layers:
            prompt = () if layer.held.prompt is None else (layer.held.prompt.key, layer.held.prompt.value)
            for tensor in (*layer.held.before, *layer.held.after, *prompt):
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_refusals(checkpoint) -> None:
    with pytest.raises(UsageError, match="refresh is 0; expected an integer of at least 1"):
        BlockCache(refresh=0)
    with pytest.raises(UsageError, match="prompt_keep is 0; expected an integer of at least 1"):
        BlockCache(prompt_keep=0)
    with pytest.raises(UsageError, match=r"unknown order 'lowest'; expected one of 'low', 'high', 'random', 'masked'"):
        BlockCache(order="lowest")
    with pytest.raises(UsageError, match=r"skip is \[0\]; expected a tuple of layer numbers"):
        BlockCache(skip=[0])
    with pytest.raises(UsageError, match=r"seed is \(1, 'a'\); expected an integer, or a tuple"):
        BlockCache(seed=(1, "a"))
    with pytest.raises(UsageError, match="DreamSampler has no blocks"):
        DreamSampler(steps=4, length=4, cache=BlockCache(suffix=True))
    sampler = LLaDASampler(steps=4, length=4, block=4, cache=BlockCache(refresh=2))
    with pytest.raises(UsageError, match="this 'scripted' model computes all or nothing: leave cache out"):
        steps(Scripted(random_logits), [[1, 2]], sampler)
    with pytest.raises(UsageError, match="skip names layer 3; this model has layers 0 to 2"):
        steps(checkpoint("llada"), [[1, 2]], replace(sampler, cache=BlockCache(prompt_keep=1, skip=(3,))))


def test_a_canvas_cache_is_not_used_unprepared(checkpoint) -> None:
    model = checkpoint("llada")
    ids, cache = canvas_of(model), CanvasCache(3)
    with pytest.raises(UsageError, match="the cache holds nothing yet"):
        part(model, ids, None, cache)
    with pytest.raises(UsageError, match=r"span is range\(4, 4\); expected consecutive positions"):
        cache.refresh(span=range(4, 4), prompt=4, masked=ids == model.spec.mask_id)
    cache = held(model, ids, None, SPANS["dual"])
    with pytest.raises(UsageError, match=r"ids have shape \[2, 4\], but the cache was refreshed for .* \[2, 22\]"):
        part(model, ids[:, 14:18], None, cache)
