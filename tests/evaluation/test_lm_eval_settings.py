"""What the model arguments of lm-eval say; lm-eval itself is not needed for that."""

import pytest

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.evaluation.lm_eval_settings import ModelArguments, build_sampler, find_preset, read_arguments


def test_arguments_are_read_or_refused() -> None:
    assert str(read_arguments({"pretrained": "x", "mask": "random:top=5,draw=1"}).condition) == "random:top=5,draw=1"
    assert str(read_arguments({"pretrained": "x", "mask_top": 0}).condition) == "none"
    for given, message in (
        ({}, "no model; give one with --model_args pretrained=NAME"),
        ({"pretrained": "x", "masks": 1}, "model argument masks=1; expected pretrained, device"),
        ({"pretrained": "x", "mask": "sinks:top=1", "mask_top": 1}, "give one of them"),
        ({"pretrained": "x", "batch_size": "auto:4"}, "batch_size is 'auto:4'; .* 'auto' is not known here"),
        ({"pretrained": "x", "elbo_draws": 0}, "elbo_draws is 0; expected a whole number, 1 or more"),
        ({"pretrained": "x", "preset": "llada-8b-base"}, "expected MODEL/TASK"),
        ({"pretrained": "x", "preset": "llada-8b-base/gsm8k/9"}, "but there are 4 of llada-8b-base for gsm8k"),
    ):
        with pytest.raises(UsageError, match=message):
            read_arguments(given)


def test_the_arguments_stand_above_the_task_but_no_answer_is_longer(talking_llada) -> None:
    model = sl.load(talking_llada)
    arguments = ModelArguments(pretrained="x", length=64, block=32, temperature=0.0)
    sampler = build_sampler(model, arguments, asked={"temperature": 1.0})
    assert (sampler.length, sampler.steps, sampler.block, sampler.temperature) == (64, 64, 32, 0.0)
    assert build_sampler(model, arguments, asked={"max_gen_toks": 32}).length == 32
    assert build_sampler(model, arguments, asked={"max_gen_toks": 1024}).length == 64
    with pytest.raises(UsageError, match="alg='entropy' is no setting of LLaDASampler, which 'llada' models use"):
        build_sampler(model, ModelArguments(pretrained="x", alg="entropy"), asked={})


def test_a_preset_is_the_published_sampler(talking_llada) -> None:
    model = sl.load(talking_llada)
    for name in ("llada-8b-base/gsm8k", "llada-8b-instruct/gsm8k/2", "llada-8b-instruct/humaneval"):
        arguments = read_arguments({"pretrained": "x", "preset": name})
        assert build_sampler(model, arguments, asked={}) == find_preset(name).sampler()
    assert find_preset("GSAI-ML/LLaDA-8B-Instruct/gsm8k/2") == find_preset("llada-8b-instruct/gsm8k/2")
    assert find_preset("models/LLaDA-1.5/humaneval") == find_preset("llada-1.5/humaneval")
    above = read_arguments({"pretrained": "x", "preset": "llada-8b-base/gsm8k", "length": 64, "block": 64, "steps": 8})
    assert build_sampler(model, above, asked={}) == sl.LLaDASampler(steps=8, length=64, block=64)
