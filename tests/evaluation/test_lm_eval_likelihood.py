"""Likelihoods against transformers' own forward, against the bound written out, and against keys hidden by hand."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Int
from torch import Tensor

import sinklens as sl
from sinklens.attention.call import AttentionCall
from sinklens.errors import UsageError
from sinklens.evaluation.conditions import Condition, parse_condition
from sinklens.evaluation.elbo import elbo
from sinklens.evaluation.likelihood import Likelihood, Scorer, in_one_pass
from sinklens.interventions.views import hide
from sinklens.models.catalog import ZOO

PROMPT = "Question: Mia has 12 apples. She finds 5 more apples. How many apples does Mia have now?\nAnswer:"
TEXTS = ("\n12 + 5 = 17\n#### 17", " 17", " 18", " an apple and another one")


@pytest.fixture(scope="module")
def models() -> Callable[[str], Any]:
    loaded: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in loaded:
            loaded[name] = sl.load(name)
        return loaded[name]

    return get


def pair(model: Any, text: str, prompt: str = PROMPT) -> tuple[list[int], list[int]]:
    tokenizer = model.tokenizer
    return tokenizer.encode(prompt), tokenizer.encode(text, add_special_tokens=False)


def scored(model: Any, pairs: list[tuple[list[int], list[int]]], **settings: Any) -> list[Likelihood]:
    found = dict(Scorer(model=model, **settings).score(pairs))
    return [found[number] for number in range(len(pairs))]


def test_a_causal_model_is_scored_as_transformers_computes_it(models) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(ZOO / "tiny-llama", dtype=torch.float32).eval()
    model = models("tiny-llama")
    pairs = [pair(model, text) for text in TEXTS] + [pair(model, " there", "Once"), pair(model, " 17 then", "So")]
    for (context, continuation), found in zip(pairs, scored(model, pairs, batch=4), strict=True):
        with torch.no_grad():
            chances = plain(torch.tensor([context + continuation])).logits[0].log_softmax(-1)
        rows = chances[len(context) - 1 : -1]
        expected = sum(float(row[token]) for row, token in zip(rows, continuation, strict=True))
        assert found.value == pytest.approx(expected, abs=1e-4)
        assert found.error is None
        assert found.greedy == (rows.argmax(-1).tolist() == continuation)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_a_diffusion_model_is_scored_by_its_bound(models, name: str) -> None:
    """One token: exactly its chance under a mask. Several: the bound over single forwards, shifted where it must be."""
    model = models(name)
    for text in (" 17", TEXTS[0]):
        context, continuation = pair(model, text)
        length = len(continuation)

        def log_probabilities(masks: np.ndarray, whole=context + continuation, length=length) -> np.ndarray:
            found = np.zeros(masks.shape)
            for row, mask in enumerate(masks):
                canvas = torch.tensor([whole])
                canvas[0, -length:][torch.from_numpy(mask)] = model.spec.mask_id
                with torch.no_grad():
                    chances = model(canvas)[0].log_softmax(-1)
                for token in range(length):
                    at = len(whole) - length + token
                    found[row, token] = chances[at - model.spec.shift, whole[at]]
            return found

        expected = elbo(log_probabilities, length, draws=6, seed=3)
        (found,) = scored(model, [(context, continuation)], draws=6, seed=3, batch=4)
        assert found.value == pytest.approx(expected.value, abs=1e-3)
        assert found.error == pytest.approx(expected.error, abs=1e-3)


def test_masks_are_places(models) -> None:
    """An answer that contains the mask id is scored for it, not taken for hidden."""
    model = models("tiny-llada")
    context, continuation = pair(model, " 17")
    hidden = model.spec.mask_id
    (found,) = scored(model, [(context, [hidden])])
    with torch.no_grad():
        expected = model(torch.tensor([[*context, hidden]]))[0, -1].log_softmax(-1)[hidden]
    assert found.value == pytest.approx(float(expected), abs=1e-4)
    one, other = scored(model, [(context, [*continuation, 5]), (context, [*continuation, hidden])], draws=2)
    assert one.value != other.value


def written_by(model: Any, length: int) -> tuple[list[int], list[int]]:
    context = model.tokenizer.encode(PROMPT)
    sampler: Any = sl.LLaDASampler(steps=length, length=length, block=length)
    if model.spec.causal:
        sampler = sl.AutoregressiveSampler(length=length)
    made = sl.generate(model, torch.tensor(context), sampler)
    return context, made.ids[0, len(context) :].tolist()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
def test_greedy_is_what_greedy_decoding_writes(models, name: str) -> None:
    model = models(name)
    context, continuation = written_by(model, 8)
    changed = [*continuation[:-1], continuation[-1] + 1]
    found = scored(model, [(context, continuation), (context, changed)], draws=2)
    assert [one.greedy for one in found] == [True, False]


def strongest(model: Any, ids: Int[Tensor, "1 position"]) -> dict[int, Tensor]:
    """By layer: the key of every head that receives most, where nothing is masked."""
    with torch.no_grad(), sl.observe(model, norms=False) as seen:
        model(ids)
    return {layer: received[0].argmax(-1) for layer, received in enumerate(seen.received)}


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_sinks_of_the_same_input_are_hidden(models, name: str) -> None:
    """A bidirectional model: hiding the strongest key of every head by hand gives the same."""
    model = models(name)
    context, (token,) = pair(model, " 17")[0], pair(model, " 17")[1][:1]
    canvas = torch.tensor([[*context, model.spec.mask_id]])
    sinks = strongest(model, canvas)

    def by_hand(call: AttentionCall) -> AttentionCall:
        hidden = torch.nn.functional.one_hot(sinks[call.site.layer], call.key.shape[2]).bool()
        return hide(call, hidden[None, :, None])

    with torch.no_grad(), sl.intervene(model, by_hand):
        logits = model(canvas)[0, -1 - model.spec.shift]
    scorer = Scorer(model=model, condition=parse_condition("sinks:top=1"))
    ((_, found),) = scorer.score([(context, [token])])
    assert found.value == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
    assert scorer.doses.ratio is not None and 0.5 < scorer.doses.ratio <= 1
    (plain,) = scored(model, [(context, [token])])
    assert abs(plain.value - found.value) > 1e-3


def test_sinks_of_a_causal_model_are_hidden_from_every_query_but_the_first(models) -> None:
    model = models("tiny-llama")
    context, continuation = pair(model, TEXTS[0])
    ids = torch.tensor([[*context, *continuation[:-1]]])
    sinks = strongest(model, ids)

    def by_hand(call: AttentionCall) -> AttentionCall:
        hidden = torch.nn.functional.one_hot(sinks[call.site.layer], call.key.shape[2]).bool()
        for_query = hidden[None, :, None].repeat(1, 1, call.query.shape[2], 1)
        for_query[:, :, 0] = False  # it sees nothing else
        return hide(call, for_query)

    with torch.no_grad(), sl.intervene(model, by_hand):
        rows = model(ids)[0].log_softmax(-1)[len(context) - 1 :]
    expected = sum(float(row[token]) for row, token in zip(rows, continuation, strict=True))
    short = pair(model, " there", "Once")  # stands beside it in the batch, behind padding
    found, _ = scored(model, [(context, continuation), short], batch=2, condition=parse_condition("sinks:top=1"))
    assert found.value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llada"])
def test_a_text_has_its_own_draws(models, name: str) -> None:
    """Alone, in a batch, in another order: the same random keys."""
    model = models(name)
    pairs = [pair(model, " 17", prompt) for prompt in ("So Mia has", "Mia", "Twelve and five")]
    settings = {"condition": parse_condition("random:top=2"), "draws": 2}
    together = [one.value for one in scored(model, pairs, batch=3, **settings)]
    alone = [scored(model, [one], **settings)[0].value for one in pairs]
    turned = [one.value for one in scored(model, pairs[::-1], batch=2, **settings)][::-1]
    assert together == pytest.approx(alone, abs=1e-3) and together == pytest.approx(turned, abs=1e-3)
    settings["condition"] = parse_condition("random:top=2,draw=1")
    other = [one.value for one in scored(model, pairs, batch=3, **settings)]
    assert max(abs(a - b) for a, b in zip(together, other, strict=True)) > 1e-2


@pytest.mark.parametrize("causal", [True, False])
def test_a_likelihood_has_no_step_before(causal: bool) -> None:
    found = in_one_pass(parse_condition("sinks:top=5,scope=layer"), causal=causal)
    theirs = "keys=recomputed,source=same_input,rank_by=received,queries=all,prefill=masked"
    ours = "source=same_input,rank_by=received,prefill=masked"
    assert str(found) == f"sinks:top=5,scope=layer,{theirs if causal else ours}"
    assert in_one_pass(Condition(), causal=causal) == Condition()
    for text in ("stale:top=1", "first:top=1"):
        with pytest.raises(UsageError, match="looks back on earlier steps"):
            in_one_pass(parse_condition(text), causal=causal)
    with pytest.raises(UsageError, match=r"source=previous_step in condition .* leave source out"):
        in_one_pass(parse_condition("sinks:top=1,source=previous_step"), causal=causal)
    with pytest.raises(UsageError, match=r"prefill=clean in condition .* leave prefill out"):
        in_one_pass(parse_condition("sinks:top=1,source=same_input,prefill=clean"), causal=causal)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("keys=cached", "keys and values of the whole text are recomputed under the mask; leave keys out"),
        ("queries=generated", "nobody would be denied anything; leave queries out"),
        ("queries=last", "no query is newer than the others, and all are denied the keys; leave queries out"),
        ("queries=last,keys=recomputed", "no query is newer than the others"),
    ],
)
def test_what_a_causal_model_does_in_generation_alone_is_refused(models, setting: str, why: str) -> None:
    name = setting.partition(",")[0]
    with pytest.raises(
        UsageError, match=rf"{name} in condition 'sinks:top=3,.*': in the likelihood of a causal .*{why}"
    ):
        Scorer(model=models("tiny-llama"), condition=parse_condition(f"sinks:top=3,{setting}"))


@pytest.mark.parametrize("setting", ["keys=cached", "queries=generated"])
def test_a_diffusion_model_does_both(models, setting: str) -> None:
    model = models("tiny-llada")
    pairs = [pair(model, TEXTS[0])]
    plain, theirs, own = (
        scored(model, pairs, condition=parse_condition(text), draws=2)[0].value
        for text in ("none", "sinks:top=3", f"sinks:top=3,{setting}")
    )
    assert len({round(value, 3) for value in (plain, theirs, own)}) == 3


def test_what_is_said_out_loud_is_what_is_done(models) -> None:
    """A causal model: the settings that hold, given one by one, change nothing."""
    model = models("tiny-llama")
    pairs = [pair(model, text) for text in TEXTS[:2]]
    own, said = (
        [one.value for one in scored(model, pairs, condition=parse_condition(f"sinks:top=3{rest}"))]
        for rest in ("", ",keys=recomputed,queries=all,source=same_input,rank_by=received,prefill=masked")
    )
    assert own == said


@pytest.mark.parametrize(
    ("name", "text", "kind", "caveat"),
    [
        ("tiny-llama", "none", "exact", None),
        ("tiny-llama", "sinks:top=3", "whole_text", "ranked on the whole text and recomputed: .* not exact"),
        ("tiny-llada", "none", "elbo", "ELBOs of 128 draws"),
        ("tiny-llada", "sinks:top=3", "elbo", "lower bounds"),
    ],
)
def test_it_says_what_its_values_are(models, name: str, text: str, kind: str, caveat: str | None) -> None:
    scorer = Scorer(model=models(name), condition=parse_condition(text))
    assert scorer.kind == kind
    assert scorer.caveat is None if caveat is None else re.search(caveat, scorer.caveat)


@pytest.mark.parametrize(("text", "holds"), [("none", True), ("sinks:top=3", False), ("random:top=3", False)])
def test_the_chain_rule_holds_without_a_mask_alone(models, text: str, holds: bool) -> None:
    model, condition = models("tiny-llama"), parse_condition(text)
    context, continuation = pair(model, TEXTS[0])
    parts = [([*context, *continuation[:at]], [token]) for at, token in enumerate(continuation)]
    (whole,), single = (scored(model, pairs, condition=condition) for pairs in ([(context, continuation)], parts))
    assert (abs(whole.value - sum(one.value for one in single)) < 1e-3) == holds


def test_empty_parts_are_refused(models) -> None:
    with pytest.raises(UsageError, match="pair 1 has an empty part"):
        scored(models("tiny-llama"), [([1], [2]), ([], [2])])
    with pytest.raises(UsageError, match="draws is 0; expected at least 1"):
        Scorer(model=models("tiny-llama"), draws=0)
