"""Observation of transformers models against their own eager maps: the same numbers, and nothing changed."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from attention.zoo import PADDED, Row, inputs, rows

ROWS = rows()
CASES = [
    pytest.param(row, implementation, padded, id=f"{row.name}-{implementation}-{'padded' if padded else 'plain'}")
    for row in ROWS
    for implementation in row.implementations
    for padded in ((False, True) if row.padding else (False,))
]
GENERATING = [pytest.param(r, i, id=f"{r.name}-{i}") for r in ROWS if r.generates for i in r.implementations]


def outputs(result: Any) -> Tensor:
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


def eager_maps(row: Row, feed: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """The maps that the eager twin returns, by kind."""
    twin = row.build("eager")
    maps: dict[str, list[Tensor]] = {"self": [], "cross": []}
    names = {
        "self": ("encoder_attentions", "attentions", "decoder_attentions"),
        "cross": ("cross_attentions",),
    }
    if row.name == "diffusion_gemma":  # one list for two stacks: hooks keep their order
        for name, module in twin.named_modules():
            if name.endswith("self_attn") and "vision" not in name:
                module.register_forward_hook(lambda _m, _a, out: maps["self"].append(out[1]))
        with torch.no_grad():
            twin(**feed)
        return maps
    with torch.no_grad():
        result = twin(**feed, output_attentions=True)
    for kind, fields in names.items():
        for field in fields:
            maps[kind] += list(getattr(result, field, None) or ())
    return maps


def real(feed: dict[str, Tensor], name: str, length: int, batch: int) -> Tensor:
    mask = feed.get(name)
    return torch.ones(batch, length) if mask is None else mask.float()


def expected_sums(row: Row, feed: dict[str, Tensor], kind: str, i: int, weights: Tensor) -> Tensor:
    batch, _, queries, keys = weights.shape
    key_mask = query_mask = "attention_mask"
    if row.name == "t5" and kind == "cross":
        query_mask = "decoder_attention_mask"
    elif row.name == "t5" and i >= 2:
        key_mask = query_mask = "decoder_attention_mask"
    looking = real(feed, query_mask, queries, batch)
    return torch.einsum("bhqk,bq->bhk", weights, looking) * real(feed, key_mask, keys, batch)[:, None]


@pytest.mark.parametrize(("row", "implementation", "padded"), CASES)
def test_received_is_the_column_sum_of_the_eager_maps(row: Row, implementation: str, padded: bool) -> None:
    model, feed = row.build(implementation), inputs(row, padded=padded)
    with torch.no_grad():
        before = outputs(model(**feed))
        with sl.observe(model) as seen:
            during = outputs(model(**feed))
        after = outputs(model(**feed))
    assert torch.equal(before, during)
    assert torch.equal(before, after)
    maps = eager_maps(row, feed)
    for kind, wanted in maps.items():
        records = sorted((r for r in seen.calls if r.site.kind == kind), key=lambda r: r.site.layer)
        assert len(records) == len(wanted)
        for i, (record, weights) in enumerate(zip(records, wanted, strict=True)):
            sums = expected_sums(row, feed, kind, i, weights)
            keys = sums.shape[-1]
            torch.testing.assert_close(record.received[..., -keys:], sums, atol=1e-5, rtol=0)
            assert not record.received[..., :-keys].any()


def test_padding_is_zero_received_and_no_fair_share() -> None:
    row = next(r for r in ROWS if r.name == "llama")
    model, feed = row.build("sdpa"), inputs(row, padded=True)
    with torch.no_grad(), sl.observe(model) as seen:
        model(**feed)
    assert seen.received.shape == (2, 2, 4, 12)
    assert seen.expected.shape == (2, 2, 1, 12)
    assert not seen.received[:, 1, :, :PADDED].any()
    assert seen.fair_share[:, 1, :, :PADDED].isnan().all()
    assert not seen.fair_share[:, 0].isnan().any()
    queries = torch.tensor([12.0, 12.0 - PADDED])
    torch.testing.assert_close(seen.received.sum(-1), queries[None, :, None].expand(2, 2, 4), atol=1e-5, rtol=0)


def test_the_mask_can_be_given_where_the_model_takes_none() -> None:
    row = next(r for r in ROWS if r.name == "bert")
    model = row.build("sdpa")
    ids = inputs(row, padded=False)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, -PADDED:] = 0
    with torch.no_grad(), sl.observe(model, attention_mask=mask) as seen:
        model(input_ids=ids)
    assert not seen.received[:, 1, :, -PADDED:].any()
    assert (seen.viewers[:, 1, :, :-PADDED] == 12 - PADDED).all()


def test_gpt_oss_reports_what_its_learned_sinks_take() -> None:
    row = next(r for r in ROWS if r.name == "gpt_oss")
    model, feed = row.build("eager"), inputs(row, padded=False)
    with torch.no_grad(), sl.observe(model) as seen:
        model(**feed)
    assert (seen.null_mass > 0.01).all()
    torch.testing.assert_close(seen.received.sum(-1) + seen.null_mass, torch.full((2, 2, 4), 12.0))


@pytest.mark.parametrize(("row", "implementation"), GENERATING)
def test_generation_with_a_cache_is_recorded_step_by_step(row: Row, implementation: str) -> None:
    """transformers' own generate: the prefill, then one row a token, at its true position."""
    model, feed = row.build(implementation), inputs(row, padded=True)
    settings = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    plain = model.generate(**feed, **settings)
    with sl.observe(model) as seen:
        observed = model.generate(**feed, **settings)
    assert torch.equal(plain, observed)
    assert [step.step for step in seen.steps] == [0, 1, 2, 3, 4]
    mask = torch.cat([feed["attention_mask"], torch.ones(2, 4, dtype=torch.long)], dim=1)
    twin = row.build("eager")
    with torch.no_grad():
        maps = twin(
            input_ids=observed[:, :-1],
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            output_attentions=True,
        ).attentions
    for number, step in enumerate(seen.steps[1:], start=1):
        position = 11 + number
        for layer in range(2):
            row_of_token = maps[layer][:, :, position, : position + 1] * mask[:, None, : position + 1]
            record = step.calls[layer]
            torch.testing.assert_close(record.received, row_of_token, atol=1e-4, rtol=0)
    with pytest.raises(sl.SinklensError, match=r"5 forwards were observed.*\.steps\[i\]"):
        _ = seen.received


def test_heads_of_a_single_query_are_told_apart_wherever_they_lie() -> None:
    """From transformers 5.23 on, the heads of a kv head lie on the axis of the query when a padded text goes on."""
    row = next(r for r in ROWS if r.name == "llama")
    feed, found = inputs(row, padded=True), []
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for implementation in ("sdpa", "eager"):
        model = row.build(implementation)
        with sl.observe(model, ranks=True, entropy=True, maps=[(1, 3)]) as seen:
            model.generate(**feed, **settings)
        found.append(seen.steps[1:])
    for ours, theirs in zip(*found, strict=True):
        assert ours.received.shape[2] == 4 and ours.key_norm.shape[2] == 2
        for name in ("received", "expected", "contribution", "entropy", "output_rank", "output_size"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.maps[1, 3], theirs.maps[1, 3], atol=1e-4, rtol=1e-4)


def test_other_implementations_are_refused_with_the_way_out() -> None:
    model = next(r for r in ROWS if r.name == "llama").build("sdpa")
    model.config._attn_implementation_internal = "flex_attention"
    with (
        pytest.raises(sl.SinklensError, match=r"flex_attention.*attn_implementation=\"sdpa\""),
        sl.observe(model),
    ):
        pass


def test_an_unknown_keyword_of_the_attention_is_refused_by_name() -> None:
    row = next(r for r in ROWS if r.name == "llama")
    model, feed = row.build("sdpa"), inputs(row, padded=False)
    with pytest.raises(sl.SinklensError, match=r"LlamaAttention passes new_bias.*will not drop"):  # noqa: SIM117
        with torch.no_grad(), sl.observe(model):
            model(**feed, new_bias=torch.zeros(1))
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        model(**feed)


def test_gpt2_with_its_private_path_is_refused() -> None:
    model = next(r for r in ROWS if r.name == "gpt2").build("eager")
    model.config.reorder_and_upcast_attn = True
    with pytest.raises(sl.SinklensError, match="reorder_and_upcast_attn"), sl.observe(model):
        pass


def test_static_and_sliding_caches_keep_true_positions() -> None:
    row = next(r for r in ROWS if r.name == "gemma3")
    model, feed = row.build("sdpa"), inputs(row, padded=False)
    with sl.observe(model) as seen:
        model.generate(**feed, max_new_tokens=3, do_sample=False, eos_token_id=None)
    sliding = next(r for r in seen.steps[-1].calls if r.site.layer == 0)
    assert sliding.received.shape[-1] == 14
    assert not sliding.received[..., : 14 - 5].any()  # outside the window of 5
    assert (sliding.received[..., 14 - 5 :] > 0).all()
