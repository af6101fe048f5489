"""Prompts in every form, results, random draws, and samplers of one's own."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import case
from scripted_model import EOS, MASK, PAD, VOCAB, Letters, Scripted, always, random_logits
from tiny_causal import tiny_causal
from torch import Tensor

from sinklens.attention.clock import current_step
from sinklens.errors import UsageError
from sinklens.models.load import wrap
from sinklens.sampling.autoregressive import AutoregressiveSampler
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate, steps
from sinklens.sampling.prompt import read_prompt
from sinklens.sampling.rng import draws_from
from sinklens.sampling.step import Sampler, Step

SAMPLER = LLaDASampler(steps=4, length=4, block=4)


def model(**changes: Any) -> Scripted:
    return Scripted(random_logits, **changes)


@pytest.mark.parametrize(
    "prompt",
    [
        torch.tensor([[1, 2, 3]]),
        torch.tensor([1, 2, 3]),
        torch.tensor([[1, 2, 3]], dtype=torch.int32),
        [1, 2, 3],
        [[1, 2, 3]],
        [torch.tensor([1, 2, 3])],
        "bcd",
        ["bcd"],
    ],
    ids=["2d", "1d", "int32", "list", "lists", "tensors", "text", "texts"],
)
def test_every_form_of_prompt_means_the_same(prompt: Any) -> None:
    out = generate(model(tokenizer=Letters()), prompt, SAMPLER)
    assert out.ids[0, :3].tolist() == [1, 2, 3]
    assert torch.equal(out.ids, generate(model(), [1, 2, 3], SAMPLER).ids)
    assert out.prompt_length == 3


@pytest.mark.parametrize(
    ("changes", "fill"), [({}, PAD), ({"pad_id": None}, EOS), ({"pad_id": None, "eos_id": None}, 0)]
)
def test_rows_of_different_length_are_padded_on_the_left(changes: dict[str, Any], fill: int) -> None:
    ids, padding = read_prompt(model(tokenizer=Letters(), **changes), ["b", "bcd"])
    assert ids.tolist() == [[fill, fill, 1], [1, 2, 3]]
    assert padding is not None and padding.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_the_padding_reaches_the_model_and_covers_what_is_generated() -> None:
    seen = model()
    generate(seen, [[5, 1], [2, 3]], SAMPLER, attention_mask=torch.tensor([[False, True], [True, True]]))
    assert [mask.tolist() for _, mask, _ in seen.seen] == [[[0, 1, 1, 1, 1, 1], [1] * 6]] * 4
    guided = model()
    sampler = LLaDASampler(steps=4, length=4, block=4, cfg=1.0)
    generate(guided, [[5, 1], [2, 3]], sampler, attention_mask=[[0, 1], [1, 1]])
    assert guided.seen[0][1].tolist() == [[0, 1, 1, 1, 1, 1], [1] * 6] * 2


def test_a_mask_of_ones_is_no_mask() -> None:
    seen = model()
    generate(seen, [1, 2], SAMPLER, attention_mask=[1, 1])
    assert all(mask is None for _, mask, _ in seen.seen)


@pytest.mark.parametrize(
    ("prompt", "mask", "message"),
    [
        ("abc", None, "the prompt is text, but this model has no tokenizer; pass ids"),
        ([], None, "the prompt is empty .row 0 has no ids.; pass at least one id a row"),
        ([[1], []], None, "row 1 has no ids"),
        (torch.zeros(1, 0, dtype=torch.long), None, r"the prompt is empty \(shape \(1, 0\)\)"),
        (torch.zeros(1, 2), None, "prompt ids are torch.float32; expected an integer dtype"),
        (torch.zeros(1, 2, 3).long(), None, r"have shape \(1, 2, 3\); expected \[batch, position\]"),
        ([1.5, 2.0], None, "a prompt row is 1.5; expected a string or a list of integer ids"),
        ([[1, 2], 3], None, "a prompt row is 3; expected"),
        (7, None, "the prompt is of type int; expected ids, a string, or a list of either"),
        ([1, VOCAB], None, "prompt id 16 is out of range; this model's ids go from 0 to 15"),
        ([-1, 2], None, "prompt id -1 is out of range"),
        ([[1, 2]], [[1, 1, 1]], r"attention_mask has shape \(1, 3\); expected the prompt's, \(1, 2\)"),
        ([[1, 2]], [[2, 1]], r"attention_mask \(torch.int64\) holds values other than 0 and 1; expected 1 for a token"),
        ([[1, 2], [3, 4]], [[1, 1], [0, 0]], "row is padding only .* at least one real id"),
        ([[1, 2], [3]], [[1, 1], [0, 1]], "rows of different length, .* pass one or the other"),
    ],
)
def test_prompts_that_cannot_be_meant_are_refused(prompt: Any, mask: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompt(model(), prompt, mask)


def test_steps_refuses_before_the_first_step() -> None:
    with pytest.raises(UsageError, match="out of range"):
        steps(model(), [99], SAMPLER)
    with pytest.raises(UsageError, match=re.escape("expected an object with run(model, prompt, attention_mask)")):
        steps(model(), [1], LLaDASampler)  # the class, not an object of it


def test_text_ends_at_eos_and_leaves_out_masks() -> None:
    speaker = Scripted(always(0, 1, 2, EOS, 3), tokenizer=Letters())
    out = generate(speaker, ["a"], LLaDASampler(steps=4, length=4, block=4))
    assert (out.text, out.lengths.tolist()) == (["bc"], [3])
    early = generate(speaker, ["a"], LLaDASampler(steps=4, length=4, block=1, stop_at_eos=True))
    assert (early.text, early.steps) == (["bc"], 3)
    assert generate(model(), [1], SAMPLER).text is None
    # A mask that was itself proposed stays, and is not read out.
    stubborn = Scripted(always(0, 1, MASK, 3, 4), tokenizer=Letters())
    kept = generate(stubborn, ["a"], LLaDASampler(steps=1, length=4, block=4))
    assert (kept.ids.tolist(), kept.text) == ([[0, 1, MASK, 3, 4]], ["bde"])
    assert kept.lengths.tolist() == [4]


def test_the_step_is_announced_to_each_forward_and_to_nothing_else() -> None:
    seen = model()
    for number, step in enumerate(steps(seen, [1, 2], DreamSampler(steps=3, length=4, alg="entropy"))):
        assert step.index == number
        assert current_step() is None
        announced = seen.seen[number][2]
        assert announced == number
        assert torch.equal(announced.canvas, seen.seen[number][0])
        assert torch.equal(announced.masked, announced.canvas == MASK)
    assert torch.is_grad_enabled()


def test_a_step_is_a_snapshot() -> None:
    taken = list(steps(model(), [1, 2], SAMPLER))
    assert [(step.canvas == MASK).sum().item() for step in taken] == [3, 2, 1, 0]
    prompt = torch.tensor([[1, 2]])
    generate(model(), prompt, SAMPLER)
    assert prompt.tolist() == [[1, 2]]


WARM = LLaDASampler(steps=4, length=4, block=4, temperature=1.0)


def test_a_seed_leaves_the_callers_generator_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = generate(model(), [1, 2], WARM, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(generate(model(), [1, 2], WARM, seed=3).ids, first.ids)
    others = [generate(model(), [1, 2], WARM, seed=seed).ids for seed in range(4, 12)]
    assert any(not torch.equal(other, first.ids) for other in others)


def test_an_exception_inside_leaves_the_callers_generator_as_it_was() -> None:
    def failing(ids: Tensor) -> Tensor:
        torch.rand(3)
        raise RuntimeError("no more")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no more"):
        generate(Scripted(failing), [1, 2], WARM, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


def test_interleaved_runs_and_callers_do_not_disturb_each_other() -> None:
    alone = [generate(model(), [1, 2], WARM, seed=seed).ids for seed in (3, 4)]
    torch.manual_seed(7)
    wanted = torch.rand(4)
    torch.manual_seed(7)
    drawn, last = [], []
    for pair in zip(steps(model(), [1, 2], WARM, seed=3), steps(model(), [1, 2], WARM, seed=4), strict=True):
        drawn.append(torch.rand(1))
        last = [step.canvas for step in pair]
    assert torch.equal(torch.cat(drawn), wanted)
    assert all(torch.equal(ids, canvas) for ids, canvas in zip(alone, last, strict=True))


def test_without_a_seed_the_callers_generator_is_used() -> None:
    torch.manual_seed(3)
    first = generate(model(), [1, 2], WARM).ids
    assert torch.equal(generate(model(), [1, 2], WARM, seed=3).ids, first)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert not torch.equal(torch.get_rng_state(), after)


def test_a_seed_on_a_device_without_a_known_generator_is_refused() -> None:
    elsewhere = model()
    elsewhere.device = torch.device("meta")
    with pytest.raises(UsageError, match="a seed works on 'cpu' and 'cuda' models, not on 'meta'"):
        steps(elsewhere, [1, 2], WARM, seed=3)


def test_golden_seeds_replay_while_the_caller_draws(checkpoint) -> None:
    found = case("dream", "maskgit_plus_alg_temp_seeded")
    for step in steps(checkpoint("dream"), found.prompt, found.sampler, seed=found.seed):
        torch.rand(5)
        assert torch.equal(step.canvas, found.canvases[step.index + 1])


@dataclass(frozen=True, kw_only=True)
class LeftToRight:
    """A sampler of one's own: the leftmost mask of each row, one a step."""

    length: int

    def run(self, model: Any, prompt: Tensor, attention_mask: Tensor | None = None) -> Iterator[Step]:
        canvas = torch.cat([prompt, torch.full((len(prompt), self.length), model.spec.mask_id)], dim=1)
        for index in range(self.length):
            place = prompt.shape[1] + index
            committed = torch.zeros_like(canvas, dtype=torch.bool)
            committed[:, place] = True
            tokens = model(canvas, attention_mask=None).argmax(dim=-1)
            canvas = torch.where(committed, tokens, canvas)
            nothing = torch.full(canvas.shape, torch.nan)
            yield Step(index=index, canvas=canvas, committed=committed, confidence=nothing)


def test_a_sampler_of_ones_own_runs_like_the_others() -> None:
    sampler = LeftToRight(length=3)
    assert isinstance(sampler, Sampler)
    out = generate(Scripted(always(0, 1, 2, EOS)), [9], sampler)
    assert out.ids.tolist() == [[9, 1, 2, EOS]]
    assert out.canvases.tolist() == [
        [[9, MASK, MASK, MASK]],
        [[9, 1, MASK, MASK]],
        [[9, 1, 2, MASK]],
        [[9, 1, 2, EOS]],
    ]
    assert (out.steps, out.lengths.tolist()) == (3, [3])


def test_a_sampler_that_yields_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"LeftToRight\.run yielded no step"):
        generate(model(), [9], LeftToRight(length=0))


def test_lengths_of_a_causal_run_are_not_those_of_the_prompt() -> None:
    speaker = Scripted(always(EOS, 4, EOS), causal=True, mask_id=None)
    out = generate(speaker, [EOS, EOS], AutoregressiveSampler(length=3))
    assert out.ids.tolist() == [[EOS, EOS, 4, EOS, PAD]]
    assert out.lengths.tolist() == [2]


class Collected:
    """A sampler that hands its steps over all at once."""

    def __init__(self, steps: Any = None) -> None:
        self.steps = steps

    def run(self, model: Any, prompt: Tensor, attention_mask: Tensor | None = None) -> Any:
        return list(LeftToRight(length=3).run(model, prompt)) if self.steps is None else self.steps


def test_the_steps_of_a_sampler_may_be_any_iterable() -> None:
    with torch.no_grad():  # the steps run when the list is made
        assert generate(Scripted(always(0, 1, 2, EOS)), [9], Collected()).ids.tolist() == [[9, 1, 2, EOS]]
    with pytest.raises(UsageError, match=r"Collected\.run returned a int; expected its steps: write it as a generator"):
        generate(model(), [9], Collected(7))


def test_a_transformers_model_as_it_is() -> None:
    raw = tiny_causal("llama")
    sampler = AutoregressiveSampler(length=3)
    expected = generate(wrap(raw), [1, 2, 3], sampler).ids
    assert torch.equal(generate(raw, [1, 2, 3], sampler).ids, expected)
    assert torch.equal(list(steps(raw, [1, 2, 3], sampler))[-1].canvas, expected)
    with pytest.raises(UsageError, match=r"no tokenizer; pass ids, or give it one \(models.load.wrap\)"):
        generate(raw, "text", sampler)
    with pytest.raises(UsageError, match=r"a Linear is no language model \(it has no spec, tokenizer, device\)"):
        generate(torch.nn.Linear(2, 2), [1], sampler)


@pytest.mark.parametrize("seed", [1.5, "a", True, 2**70, -(2**63) - 1])
def test_seeds_that_torch_does_not_take(seed: Any) -> None:
    with pytest.raises(UsageError, match=r"seed is .*; expected an integer from -2\*\*63 to 2\*\*64 - 1"):
        draws_from(seed, torch.device("cpu"))


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), np.int64(3)])
def test_seeds_at_the_ends_of_the_range(seed: Any) -> None:
    with draws_from(seed, torch.device("cpu"))():
        torch.rand(1)


def test_what_is_printed_has_shapes_in_place_of_tensors() -> None:
    out = generate(model(tokenizer=Letters()), ["bcd", "ef", "g"], SAMPLER)
    assert repr(out).startswith("Generation(ids=[3, 7], canvases=[5, 3, 7], steps=4, prompt_length=3, text=['")
    assert repr(out).endswith("] and 1 more)") and "tensor" not in repr(out)
    assert repr(replace(out, text=["x" * 100])).endswith(f"text=['{'x' * 59}…'])")
    assert repr(replace(out, text=None)).endswith("text=None)")
    first = next(steps(model(), [1, 2], SAMPLER))
    assert repr(first) == "Step(index=0, canvas=[1, 6], committed=1, block=range(2, 6))"
