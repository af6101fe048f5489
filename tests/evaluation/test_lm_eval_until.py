"""A run that ends with its stop strings writes what the whole run writes, in fewer steps."""

from typing import Any

import pytest

import sinklens as sl
from sinklens.evaluation.until import UntilStop, cut_at, until_stop

PROMPTS = [
    "Question: Mia has 12 apples. She finds 5 more apples. How many apples does Mia have now?\nAnswer:",
    "Question: Tom has 3 pens. He buys 4 more pens. How many pens does Tom have now?\nAnswer:",
]


def test_text_is_cut_at_the_first_stop() -> None:
    assert cut_at("one two three", ["three", "two"]) == "one "
    assert cut_at("one two three", []) == "one two three"
    assert cut_at("one two three", ["four", ""]) == "one two three"


def samplers() -> list[tuple[str, Any]]:
    return [
        ("tiny-llama", sl.AutoregressiveSampler(length=16)),
        ("tiny-llada", sl.LLaDASampler(steps=16, length=16, block=4)),
        ("tiny-dream", sl.DreamSampler(steps=16, length=16, alg="entropy")),
    ]


@pytest.mark.parametrize(("name", "sampler"), samplers(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_end_of_a_run_changes_nothing_before_it(name: str, sampler: Any) -> None:
    model = sl.load(name)
    whole = sl.generate(model, PROMPTS, sampler)
    for stops in ((" = ", "never written"), ("never written",)):
        ended = sl.generate(model, PROMPTS, until_stop(sampler, stops))
        assert [cut_at(text, stops) for text in ended.text] == [cut_at(text, stops) for text in whole.text]
        assert ended.steps <= whole.steps
        if " = " in stops and name != "tiny-dream":  # which may leave the first of its tokens for last
            assert ended.steps < whole.steps
    assert any(" = " in text for text in whole.text)


def test_nothing_to_stop_at_is_the_sampler_itself() -> None:
    sampler = sl.AutoregressiveSampler(length=4)
    assert until_stop(sampler, [""]) is sampler
    wrapped = until_stop(sampler, ["x"])
    assert isinstance(wrapped, UntilStop) and wrapped.length == 4 and wrapped.eos_id is None
