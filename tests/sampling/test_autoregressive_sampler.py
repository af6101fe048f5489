"""Autoregressive runs: against transformers' own generate, with and without a cache."""

from typing import Any

import pytest
import torch
from scripted_model import EOS, EOT, PAD, VOCAB, Scripted, always, random_logits
from tiny_causal import tiny_causal

from sinklens.errors import ModelError, UsageError
from sinklens.models.load import wrap
from sinklens.sampling.autoregressive import AutoregressiveSampler
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate, steps

PROMPT = torch.tensor([[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]])
PADDING = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


class WithoutCache:
    """A wrapped model with `decode` hidden: every step runs on all ids."""

    def __init__(self, model: Any) -> None:
        self.model, self.spec, self.tokenizer = model, model.spec, model.tokenizer
        self.device = model.device
        self.widths: list[int] = []

    def __call__(self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        self.widths.append(ids.shape[1])
        return self.model(ids, attention_mask=attention_mask)

    def chat(self, messages: Any) -> torch.Tensor:
        return self.model.chat(messages)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_greedy_is_what_transformers_generates(kind: str) -> None:
    plain = tiny_causal(kind)
    wanted = plain.generate(PROMPT, attention_mask=PADDING, max_new_tokens=10, do_sample=False, pad_token_id=0)
    out = generate(wrap(plain), PROMPT, AutoregressiveSampler(length=10), attention_mask=PADDING)
    assert torch.equal(out.ids, wanted)
    assert out.canvases is None and out.text is None
    assert (out.steps, out.prompt_length, out.lengths.tolist()) == (10, 5, [10, 10])


def test_ended_rows_are_filled_like_transformers_does() -> None:
    free = generate(wrap(tiny_causal("llama")), PROMPT, AutoregressiveSampler(length=10))
    eos = int(free.ids[0, 7])
    plain = tiny_causal("llama", eos_token_id=eos, pad_token_id=63)
    wanted = plain.generate(PROMPT, max_new_tokens=10, do_sample=False)
    out = generate(wrap(plain), PROMPT, AutoregressiveSampler(length=10))
    assert torch.equal(out.ids[:, : wanted.shape[1]], wanted)
    assert out.ids[0, 5 + out.lengths[0] - 1] == eos
    assert bool((out.ids[0, 5 + out.lengths[0] :] == 63).all())


def test_the_cache_changes_nothing_but_the_work() -> None:
    model = wrap(tiny_causal("llama"))
    bare = WithoutCache(model)
    sampler = AutoregressiveSampler(length=6)
    assert torch.equal(
        generate(bare, PROMPT, sampler, attention_mask=PADDING).ids,
        generate(model, PROMPT, sampler, attention_mask=PADDING).ids,
    )
    assert bare.widths == [5, 6, 7, 8, 9, 10]


def test_a_decode_that_refuses_falls_back_to_whole_sequences() -> None:
    class Cacheless(WithoutCache):
        def decode(self, ids: Any, attention_mask: Any, cache: Any) -> Any:
            raise ModelError("keeps no KV cache")

    bare = Cacheless(wrap(tiny_causal("llama")))
    generate(bare, PROMPT, AutoregressiveSampler(length=2))
    assert bare.widths == [5, 6]


def test_a_decode_that_fails_later_is_not_covered_up() -> None:
    class Failing(WithoutCache):
        def decode(self, ids: Any, attention_mask: Any, cache: Any) -> Any:
            if cache is not None:
                raise ModelError("the cache is full")
            return self.model.decode(ids, attention_mask, cache)

    with pytest.raises(ModelError, match="the cache is full"):
        generate(Failing(wrap(tiny_causal("llama"))), PROMPT, AutoregressiveSampler(length=2))


def test_steps_tell_the_token_and_its_probability() -> None:
    model = Scripted(random_logits, causal=True, mask_id=None, eos_id=None, eot_id=None)
    taken = list(steps(model, [1, 2], AutoregressiveSampler(length=3)))
    for step, (ids, mask, number) in zip(taken, model.seen, strict=True):
        assert mask is None and number == step.index
        assert number.canvas is ids
        logits = random_logits(ids)[0, -1]
        assert step.canvas[0].tolist() == [*ids[0].tolist(), int(logits.argmax())]
        assert step.committed[0].tolist() == [False] * ids.shape[1] + [True]
        assert float(step.confidence[0, -1]) == pytest.approx(float(logits.softmax(-1).max()))
        assert bool(step.confidence[0, :-1].isnan().all())


@pytest.mark.parametrize("end", [EOS, EOT])
def test_a_run_ends_with_the_last_row_and_is_filled_up(end: int) -> None:
    model = Scripted(always(0, 3, end, 5), causal=True, mask_id=None)
    out = generate(model, [1, 2], AutoregressiveSampler(length=6))
    assert out.ids.tolist() == [[1, 2, 3, end, PAD, PAD, PAD, PAD]]
    assert (out.steps, out.lengths.tolist()) == (2, [2])


def test_without_a_pad_the_fill_is_eos() -> None:
    model = Scripted(always(0, EOS), causal=True, mask_id=None, pad_id=None)
    out = generate(model, [1, 2], AutoregressiveSampler(length=3))
    assert out.ids.tolist() == [[1, 2, EOS, EOS, EOS]]


def test_an_ended_row_counts_as_padding_in_the_steps_that_follow() -> None:
    model = Scripted(random_logits, causal=True, mask_id=None, eot_id=None)
    rows = [[1, 2], [3, 4]]
    eos = int(generate(model, rows, AutoregressiveSampler(length=1)).ids[0, 2])
    model = Scripted(random_logits, causal=True, mask_id=None, eot_id=None, eos_id=eos)
    out = generate(model, rows, AutoregressiveSampler(length=4))
    assert out.lengths[0] == 1 and out.lengths[1] > 2
    assert model.seen[1][1] is None
    assert model.seen[2][1].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_temperature_draws_from_the_nucleus() -> None:
    logits = torch.full((VOCAB,), -20.0)
    logits[:3] = torch.tensor([0.6, 0.3, 0.1]).log()
    model = Scripted(lambda ids: logits.expand(*ids.shape, VOCAB), causal=True, mask_id=None)
    rows = torch.ones(4000, 1, dtype=torch.long)
    out = generate(model, rows, AutoregressiveSampler(length=1, temperature=1.0, top_p=0.8), seed=0)
    share = torch.bincount(out.ids[:, 1], minlength=3) / 4000
    assert share[:3].tolist() == pytest.approx([2 / 3, 1 / 3, 0], abs=0.03)
    cold = generate(model, rows, AutoregressiveSampler(length=1, temperature=0.1), seed=0)
    assert float((cold.ids[:, 1] == 0).float().mean()) > 0.99


def test_samplers_refuse_the_other_kind_of_model() -> None:
    causal, bidirectional = Scripted(random_logits, causal=True), Scripted(random_logits)
    with pytest.raises(UsageError, match="'scripted' is not; use LLaDASampler or DreamSampler"):
        steps(bidirectional, [1], AutoregressiveSampler(length=2))
    for sampler in (LLaDASampler(steps=2, length=2, block=2), DreamSampler(steps=2, length=2)):
        with pytest.raises(UsageError, match="causal model; use AutoregressiveSampler"):
            steps(causal, [1], sampler)


def test_right_padding_is_refused() -> None:
    model = Scripted(random_logits, causal=True)
    with pytest.raises(UsageError, match="ends in padding; pad rows on the left"):
        steps(model, [[1, 2]], AutoregressiveSampler(length=2), attention_mask=[[1, 0]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length is 0; expected an integer of at least 1"),
        ({"length": 2, "temperature": -1.0}, "temperature is -1.0; expected a finite number of at least 0"),
        ({"length": 2, "top_p": 0.0}, "top_p is 0.0; expected a number above 0 and at most 1"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AutoregressiveSampler(**settings)
