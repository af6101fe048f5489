"""sinklens as a model of lm-eval, beside lm-eval's own model of the same folder."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.models.catalog import ZOO

pytest.importorskip("lm_eval", reason="needs the extra: pip install 'sinklens[eval]'")
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of what lm-eval imports

PROMPT = "Question: Mia has 12 apples. She finds 5 more apples. How many apples does Mia have now?\nAnswer:"
SHORT = "Question: Tom has 3 pens. He buys 4 more pens. How many pens has he?\nAnswer:"
CHOICES = [(PROMPT, " 17"), (PROMPT, " 18"), (PROMPT, "\n12 + 5 = 17"), ("", "No context"), ("The cat ", " sat")]


def asked(*all_arguments: Any) -> list[Any]:
    return [SimpleNamespace(args=arguments) for arguments in all_arguments]


@pytest.fixture(scope="module")
def ours() -> Any:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    return SinklensLM(pretrained=str(ZOO / "tiny-llama"), dtype="float32", batch_size=3)


@pytest.fixture(scope="module")
def theirs() -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(ZOO / "tiny-llama"), device="cpu", dtype="float32", batch_size=3)


def test_likelihoods_are_those_of_the_harness_itself(ours, theirs) -> None:
    requests = asked(*CHOICES)
    found = ours.loglikelihood(requests, disable_tqdm=True)
    for (value, greedy), (expected, as_greedy) in zip(found, theirs.loglikelihood(requests), strict=True):
        assert value == pytest.approx(expected, abs=1e-4) and greedy == as_greedy


def test_windows_of_a_long_text_are_those_of_the_harness_itself(ours, theirs) -> None:
    """A text of more than the 512 tokens of the model, and a short one."""
    long = "The quick brown fox jumps over the lazy dog. " * 35
    assert ours.max_length == 512 < len(ours.tok_encode(long)) < 1024
    requests = asked((long,), ("Short.",))
    found = ours.loglikelihood_rolling(requests, disable_tqdm=True)
    assert found == pytest.approx(theirs.loglikelihood_rolling(requests, disable_tqdm=True), rel=1e-6)


def test_texts_are_those_of_the_harness_itself(ours, theirs) -> None:
    stops = {"until": ["####", "\n\n"], "max_gen_toks": 24, "do_sample": False}
    few = {"until": ["never"], "max_gen_toks": 5}
    requests = asked((PROMPT, stops), (SHORT, stops), (SHORT, few), ("Once", few))
    found = ours.generate_until(requests, disable_tqdm=True)
    assert found == theirs.generate_until(requests, disable_tqdm=True)
    assert "12 + 5 = 17" in found[0] and "####" not in found[0]


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_a_diffusion_model_writes_and_is_bounded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    model = SinklensLM(pretrained=name, batch_size="2", elbo_draws=2, steps=12)
    stops = {"until": ["####"], "max_gen_toks": 24}
    found = model.generate_until(asked((PROMPT, stops), (SHORT, stops)), disable_tqdm=True)
    sampler: Any = sl.LLaDASampler(steps=12, length=24, block=24)
    if name == "tiny-dream":
        sampler = sl.DreamSampler(steps=12, length=24, alg="entropy")
    plain = sl.generate(model.model, [PROMPT, SHORT], sampler).text
    assert found == [text.split("####")[0] for text in plain]
    logging.getLogger("lm_eval").propagate = True  # its own set-up may have been here
    with caplog.at_level(logging.WARNING):
        ((value, greedy),) = model.loglikelihood(asked((PROMPT, " 17 apples")), disable_tqdm=True)
    assert value < 0 and not greedy
    assert "ELBOs of 2 draws" in caplog.text
    told = model.get_model_info()
    assert told["likelihood"] == "elbo" and told["elbo_draws"] == 2 and told["elbo_mean_error"] > 0
    assert told["mask"] == "none" and told["generation_dose"] is None and told["model_dtype"] == "float32"


def test_a_mask_holds_while_writing_and_while_scoring(ours) -> None:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    masked = SinklensLM(pretrained=ours.model, batch_size=2, mask_top=1)
    stops = {"until": ["####"], "max_gen_toks": 6}
    requests = asked((PROMPT, stops), (SHORT, stops))
    texts = masked.generate_until(requests, disable_tqdm=True)
    with sl.intervene(ours.model, sl.MaskSinks(top=1)):
        expected = sl.generate(ours.model, [PROMPT, SHORT], sl.AutoregressiveSampler(length=6)).text
    assert texts == [text.split("####")[0] for text in expected]
    assert texts != ours.generate_until(requests, disable_tqdm=True)
    (score,), (plain,) = (one.loglikelihood(asked((PROMPT, " 17")), disable_tqdm=True) for one in (masked, ours))
    assert abs(score[0] - plain[0]) > 1e-3
    told = masked.get_model_info()
    assert told["mask"] == "sinks:top=1" and told["likelihood"] == "whole_text"
    assert "keys=recomputed,source=same_input" in told["likelihood_mask"]
    assert ours.get_model_info()["likelihood"] == "exact"
    assert 0 < told["generation_dose"] <= 1 and 0 < told["likelihood_dose"] <= 1


def test_every_answer_is_kept_for_the_cache(ours) -> None:
    kept: list[tuple[str, Any, Any]] = []
    hook, ours.cache_hook = ours.cache_hook, SimpleNamespace(add_partial=lambda *entry: kept.append(entry))
    try:
        settings = {"until": ["."], "max_gen_toks": 3}
        texts = ours.generate_until(asked(("Once", settings), ("Two words", settings)), disable_tqdm=True)
        scores = ours.loglikelihood(asked(*CHOICES[:2]), disable_tqdm=True)
        (rolled,) = ours.loglikelihood_rolling(asked(("Short.",)), disable_tqdm=True)
    finally:
        ours.cache_hook = hook
    expected = [
        *(("generate_until", (text, settings), made) for text, made in zip(("Once", "Two words"), texts, strict=True)),
        *(("loglikelihood", pair, score) for pair, score in zip(CHOICES[:2], scores, strict=True)),
        ("loglikelihood_rolling", ("Short.",), rolled),
    ]
    assert sorted(kept, key=repr) == sorted(expected, key=repr)


def test_what_does_not_fit_is_cut_from_the_left_or_refused(ours) -> None:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    small = SinklensLM(pretrained=ours.model, max_length=8)
    assert small._fit(list(range(20)), [1, 2, 3]) == (list(range(14, 20)), [1, 2, 3])
    assert small._context(PROMPT, room=5) == ours.tok_encode(PROMPT)[-3:]
    with pytest.raises(UsageError, match="continuation of 9 tokens does not fit into the 8"):
        small._fit([1], [2] * 9)
    with pytest.raises(UsageError, match="an answer of 8 tokens leaves no room"):
        small._context(PROMPT, room=8)


def test_what_lm_eval_adds_stands_below_the_model_arguments(ours) -> None:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    added = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    made = SinklensLM.create_from_arg_obj({"pretrained": "tiny-llama", "batch_size": 7}, added)
    assert made.batch_size == 7 and made.model.device.type in ("cpu", "cuda")
    made = SinklensLM.create_from_arg_string("pretrained=tiny-llama,mask_top=2", {"batch_size": 3})
    assert made.batch_size == 3 and str(made.condition) == "sinks:top=2"


def test_a_conversation_becomes_text(talking_llada) -> None:
    from sinklens.evaluation.lm_eval_model import SinklensLM

    model = SinklensLM(pretrained=str(talking_llada))
    messages = [{"role": "user", "content": "Hello"}]
    assert model.apply_chat_template(messages) == model.model.chat_format.render(messages)
    assert "turn" in model.chat_template(True)
    with pytest.raises(UsageError, match="gen_prefix"):
        model.apply_chat_template(messages, add_generation_prompt=False)


def test_unknown_settings_of_a_task_are_told_once(ours, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("lm_eval").propagate = True
    for _ in range(2):
        sampler, stops = ours._prepare({"until": "x", "max_new_tokens": 9, "num_beams": 4, "temperature": 0.0})
    assert (sampler.length, stops) == (9, ["x"])
    assert caplog.text.count("num_beams=4 has no meaning for sinklens") == 1
    sampler, _ = ours._prepare({"do_sample": True, "temperature": 0.5, "top_p": 0.9})
    assert (sampler.length, sampler.temperature, sampler.top_p) == (256, 0.5, 0.9)
