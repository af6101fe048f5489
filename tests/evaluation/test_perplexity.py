"""Text under a mask: one forward gives what one token at a time gives, and both give what a plain softmax gives."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import sinklens as sl
from sampling.tiny_causal import tiny_causal
from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.perplexity import masked_nll, runs_at_once

FIRST, LENGTH = 9, 16
PROMPT = (
    "none",
    "first:top=1,keys=cached",
    "first:top=2,keys=recomputed",
    "sinks:top=2",
    "sinks:top=2,rank_by=last_row",
    "sinks:top=2,keys=recomputed",
    "sinks:top=2,keys=recomputed,queries=generated",
    "sinks:top=2,scope=layer",
    "sinks:top=2,scope=model",
    "sinks:top=2,scope=model,keys=recomputed",
    "sinks:epsilon=1",
    "sinks:top=2,act=zero",
    "sinks:top=2,act=zero,keys=recomputed",
    "random:top=2,draw=3",
    "random:top=2,keys=recomputed",
    "random:top=2,scope=model,keys=recomputed",
    "next:top=2",
    "mass:top=1",
    "position:top=2",
    "other_head:top=2",
)
STEPS = (
    "sinks:top=1",
    "sinks:top=30,source=same_step",  # all keys: a query keeps its last one
    "sinks:top=2,source=same_step",
    "random:top=2,source=same_step",
    "sinks:top=2,scope=layer",
    "sinks:epsilon=1",
    "random:top=2",
    "next:top=2",
    "mass:top=1",
    "position:top=2",
    "other_head:top=2",
)


@pytest.fixture(scope="module")
def model():
    return sl.wrap(tiny_causal("llama").double())


@pytest.fixture(scope="module")
def chunks() -> torch.Tensor:
    """In the first, the two layers and the model as a whole have different sinks."""
    return torch.randint(1, 64, (2, LENGTH), generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize(
    ("ranked", "clean", "text"),
    [
        *(("prompt", FIRST, text) for text in PROMPT),
        *(("steps", FIRST, text) for text in STEPS),
        *(("steps", 1, text) for text in STEPS[:4]),
    ],
)
def test_one_forward_is_one_token_at_a_time(model, chunks, ranked: str, clean: int, text: str) -> None:
    condition = parse_condition(text)
    assert runs_at_once(condition, ranked)
    asked = {"first": FIRST, "clean": clean, "seed": 3, "ranked": ranked}
    at_once = masked_nll(model, chunks[:1], condition, **asked)
    in_steps = masked_nll(model, chunks[:1], condition, stepwise=True, **asked)
    for one, other in zip(at_once, in_steps, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, rtol=0, atol=1e-10)
        for name in ("dose", "removed", "keys_removed"):
            if getattr(other, name) is None:
                assert getattr(one, name) is None
            else:
                assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-10)


def test_in_steps_is_generation_under_the_same_intervention(model) -> None:
    """What the model writes by itself has the losses that its own confidences say."""
    condition = parse_condition("sinks:top=2")
    prompt = [5, 9, 33, 2, 17, 8, 41, 3, 3, 60, 12, 7]
    with sl.intervene(model, condition.intervention(seed=0)):
        steps = list(sl.steps(model, prompt, sl.AutoregressiveSampler(length=10)))
    ids = steps[-1].canvas
    said = [float(step.confidence[0, -1]) for step in steps]
    found = masked_nll(model, ids, condition, first=len(prompt), ranked="steps")[0]
    np.testing.assert_allclose(np.exp(-found.losses), said, rtol=1e-5)
    clean = masked_nll(model, ids, Condition(), first=len(prompt))[0]
    assert np.abs(found.losses - clean.losses)[1:].max() > 1e-3  # the mask does something
    assert found.losses[0] == pytest.approx(clean.losses[0], abs=1e-12)  # the prompt's own prediction is not masked


def test_position_0_recomputed_is_deleting_the_token(model, chunks) -> None:
    """No later query sees it, in any layer: rotary positions are relative, so the text without it says the same."""
    masked = masked_nll(model, chunks, parse_condition("first:top=1,keys=recomputed"), first=FIRST)
    with torch.no_grad():
        logits = model(chunks[:, 1:-1])[:, FIRST - 1 :]
    for row, found in enumerate(masked):
        expected = F.cross_entropy(logits[row], chunks[row, FIRST + 1 :], reduction="none")
        # transformers computes the angles of positions in float32
        np.testing.assert_allclose(found.losses[1:], expected.numpy(), rtol=0, atol=1e-5)


def test_unmasked_is_the_model_itself(model, chunks) -> None:
    with torch.no_grad():
        logits = model(chunks)[:, FIRST - 1 : -1]
    for row, found in enumerate(masked_nll(model, chunks, Condition(), first=FIRST)):
        expected = F.cross_entropy(logits[row], chunks[row, FIRST:], reduction="none")
        np.testing.assert_allclose(found.losses, expected.numpy(), rtol=0, atol=1e-12)
        assert found.nll == pytest.approx(float(expected.mean()))
        assert (found.dose, found.removed, found.keys_removed) == (None, None, None)


def test_cached_leaves_the_prompt_alone_and_recomputed_does_not(model, chunks) -> None:
    cached, recomputed, generated = (
        masked_nll(model, chunks, parse_condition(f"first:top=1,{rest}"), first=FIRST)[0].losses
        for rest in ("keys=cached", "keys=recomputed", "keys=recomputed,queries=generated")
    )
    assert np.abs(cached - recomputed)[1:].min() > 1e-6
    np.testing.assert_allclose(cached, generated, rtol=0, atol=1e-10)


def test_the_draws_of_a_chunk_are_its_own(model, chunks) -> None:
    asked = {"first": FIRST, "seed": 5}
    condition = parse_condition("random:top=2")
    both = masked_nll(model, chunks, condition, **asked)
    first_alone = masked_nll(model, chunks[:1], condition, **asked)
    np.testing.assert_array_equal(both[0].losses, first_alone[0].losses)
    twins = masked_nll(model, chunks[[0, 0]], condition, **asked)
    assert np.abs(twins[0].losses - twins[1].losses).max() > 1e-6
    draws = [masked_nll(model, chunks[:1], parse_condition(f"random:top=2,draw={draw}"), **asked)[0] for draw in (1, 2)]
    assert all(np.abs(one.losses - other.losses).max() > 1e-6 for one, other in pairwise((both[0], *draws)))


def test_the_sinks_of_the_text_itself_have_the_largest_dose(model, chunks) -> None:
    """With as many keys as there are, all but one is removed: the dose is what of a query's attention they hold."""
    all_keys = masked_nll(model, chunks[:1], parse_condition(f"sinks:top={FIRST}"), first=FIRST)[0]
    few = masked_nll(model, chunks[:1], parse_condition("sinks:top=2"), first=FIRST)[0]
    assert all_keys.keys_removed == FIRST and few.keys_removed == 2
    assert 0 < few.removed < all_keys.removed < 1
    assert all_keys.dose <= 1 + 1e-12


@given(st.integers(1, 14), st.integers(1, 14))
@settings(max_examples=5, deadline=None)
def test_a_shorter_text_has_the_same_losses_up_to_its_end(first: int, cut: int) -> None:
    """Nothing of later tokens reaches an earlier one, neither in the mask nor in what it denies."""
    model = sl.wrap(tiny_causal("llama").double())
    ids = torch.randint(1, 64, (1, LENGTH), generator=torch.Generator().manual_seed(first))
    end = max(first + 2, cut)
    for ranked, text in (("prompt", "sinks:top=2,keys=recomputed"), ("steps", "sinks:top=2")):
        whole, part = (
            masked_nll(model, rows, parse_condition(text), first=first, ranked=ranked)[0].losses
            for rows in (ids, ids[:, :end])
        )
        np.testing.assert_allclose(whole[: len(part)], part, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("text", "ranked"),
    [
        ("sinks:top=1,keys=recomputed", "steps"),
        ("sinks:top=1,scope=model", "steps"),
        ("sinks:top=1,measure=after", "steps"),
        ("sinks:top=1,act=zero", "steps"),
        ("sinks:top=1,act=mean", "prompt"),
        ("stale:top=1", "steps"),
        ("sinks:top=1,queries=last,keys=recomputed", "prompt"),
        ("first:top=1,queries=last,keys=recomputed", "prompt"),
        ("first:top=1,queries=last,keys=recomputed", "steps"),
        ("sinks:top=1,source=same_step,prefill=masked", "steps"),
        ("random:top=1,source=same_step,prefill=masked", "steps"),
    ],
)
def test_what_one_forward_cannot_do_runs_in_steps(model, chunks, text: str, ranked: str) -> None:
    condition = parse_condition(text)
    assert not runs_at_once(condition, ranked)
    end = 1 if text.startswith("stale") else FIRST  # it looks eight steps back
    found, clean = (
        masked_nll(model, chunks[:1], one, first=FIRST, clean=end, ranked=ranked)[0] for one in (condition, Condition())
    )
    assert found.dose is not None and 0 < found.dose <= 1 + 1e-12
    assert np.abs(found.losses - clean.losses).max() > 1e-6
    stepwise = masked_nll(model, chunks[:1], condition, first=FIRST, clean=end, ranked=ranked, stepwise=True)[0]
    np.testing.assert_array_equal(found.losses, stepwise.losses)


def test_refusals(model, chunks) -> None:
    with pytest.raises(UsageError, match=r"measure='after' with ranked='prompt': the prompt runs without a mask"):
        masked_nll(model, chunks, parse_condition("sinks:top=1,measure=after"), first=FIRST)
    with pytest.raises(UsageError, match=r"source='same_step' with ranked='prompt'"):
        masked_nll(model, chunks, parse_condition("sinks:top=1,source=same_step"), first=FIRST)
    with pytest.raises(UsageError, match=r"choose='stale' with ranked='prompt'"):
        masked_nll(model, chunks, parse_condition("stale:top=1"), first=FIRST)
    with pytest.raises(UsageError, match=r"ranked 'step'|ranked.*'step'"):
        masked_nll(model, chunks, Condition(), first=FIRST, ranked="step")
    with pytest.raises(UsageError, match=r"chunks have shape \(16,\), torch.int64; expected integer ids"):
        masked_nll(model, chunks[0], Condition(), first=FIRST)
    with pytest.raises(UsageError, match=r"first is 15 and chunks have 16 tokens"):
        masked_nll(model, chunks, Condition(), first=15)
    with pytest.raises(UsageError, match=r"clean is 10, first is 9"):
        masked_nll(model, chunks, Condition(), first=FIRST, clean=10)
    with pytest.raises(UsageError, match=r"first is True; expected a number of tokens"):
        masked_nll(model, chunks, Condition(), first=True)
    with pytest.raises(UsageError, match=r"'llada' is not causal: it predicts no next token"):
        masked_nll(sl.load("tiny-llada"), chunks, Condition(), first=FIRST)
