"""Interventions inside a CUDA graph: the tokens and doses of steps that are launched, and nothing that waits.

Without a card a processor stands in its place (tests/card.py), and whatever would make a card wait is refused.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.errors import UsageError
from sinklens.sampling import graphs

STEPS = 8
SAMPLERS = {
    "tiny-llada": sl.LLaDASampler(steps=STEPS, length=STEPS, block=STEPS // 2),
    "tiny-dream": sl.DreamSampler(steps=STEPS, length=STEPS, alg="entropy"),
}
PROMPTS = ["Question: Mia has 12 apples. She finds 5 more.", "Question: Tom has 3 pens."]
CAPTURED: dict[str, Callable[[], Any]] = {
    "one sink": lambda: sl.MaskSinks(top=1),
    "five sinks, dropped": lambda: sl.MaskSinks(top=5, drop=True),
    "by layer": lambda: sl.MaskSinks(top=2, scope="layer"),
    "after the mask": lambda: sl.MaskSinks(top=2, measure="after"),
    "random keys": lambda: sl.RandomKeys(top=3, seed=5),
    "random keys, a seed a row": lambda: sl.RandomKeys(top=1, seed=(5, 6), drop=True),
    "next ranked": lambda: sl.NextRanked(top=3),
    "value zero": lambda: sl.ZeroValue(top=1),
    "value mean": lambda: sl.MeanValue(of=sl.RandomKeys(top=2)),
}
LAUNCHED: dict[str, Callable[[], Any]] = {
    "epsilon": lambda: sl.MaskSinks(epsilon=3),
    "fixed": lambda: sl.MaskSinks(positions=[0]),
    "same step": lambda: sl.MaskSinks(top=1, source="same_step"),
    "same input": lambda: sl.MaskSinks(top=1, source="same_input"),
    "whole model": lambda: sl.MaskSinks(top=1, scope="model"),
    "clean keys": lambda: sl.MaskSinks(top=1, keys="cached"),
    "masked queries": lambda: sl.MaskSinks(top=1, queries="masked"),
    "followed": lambda: sl.MaskSinks(top=1, follow=True),
    "stale": lambda: sl.StaleStep(top=1, lag=3),
    "a function": lambda: lambda call: call,
}


def doses(lab: Any) -> list[tuple[Any, ...]]:
    return [(dose.run, dose.step, dose.layer, dose.masked, dose.dropped) for dose in lab.doses]


def assert_the_same(model: Any, name: str, prompts: list[str], settings: Callable[[], Any]) -> None:
    made, labs = [], []
    for graph in (False, True):
        with sl.intervene(model, settings()) as lab:
            made.append(sl.generate(model, prompts, SAMPLERS[name], graph=graph).canvases)
            made.append(sl.generate(model, prompts[:1] * len(prompts), SAMPLERS[name], graph=graph).canvases)
        labs.append(lab)
    assert torch.equal(made[0], made[2]) and torch.equal(made[1], made[3])
    assert doses(labs[0]) == doses(labs[1]) and {dose.run for dose in labs[1].doses} == {0, 1}
    for ours, theirs in zip(labs[1].doses, labs[0].doses, strict=True):
        assert (ours.removed, ours.largest, ours.keys) == pytest.approx(
            (theirs.removed, theirs.largest, theirs.keys), rel=1e-3, abs=1e-5
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("tiny-llada", kind) for kind in CAPTURED), *(("tiny-dream", kind) for kind in ("one sink", "random keys"))],
)
def test_choices_lie_where_the_next_run_reads_them(name: str, kind: str, card: Callable[[], int]) -> None:
    prompts = PROMPTS if "row" in kind else PROMPTS[:1]
    assert_the_same(sl.load(name), name, prompts, CAPTURED[kind])
    trial = len(prompts) > 1  # of rows behind padding
    assert card() == 2 * (STEPS - graphs.WARM) + trial


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tiny-llada", "one sink"), ("tiny-dream", "random keys, a seed a row"), ("tiny-dream", "value mean")],
)
def test_rows_behind_padding(name: str, kind: str, card: Callable[[], int]) -> None:
    assert_the_same(sl.load(name), name, PROMPTS, CAPTURED[kind])
    assert card()


@pytest.mark.parametrize("kind", LAUNCHED)
def test_what_is_decided_on_the_host_is_refused(kind: str, card: Callable[[], int]) -> None:
    model = sl.load("tiny-llada")
    refused = pytest.raises(UsageError, match="graph=True under an intervention that decides anew at every step")
    with sl.intervene(model, LAUNCHED[kind]()), refused:
        sl.generate(model, PROMPTS[:1], SAMPLERS["tiny-llada"], graph=True)
    assert not card()


def test_a_step_of_its_own_between_two_runs() -> None:
    """What the host chooses reaches the graph, and the other way round."""
    from sinklens.interventions.memory import Memory, Span

    plan = sl.MaskSinks(top=1).plan(causal=False)
    span = Span(rows=1, heads=2, first=0, end=4, keys=4)
    memory = Memory(
        plan=plan, run=0, step=1, span=span, masked_at_first=None, real_at_first=None, prompt_end=4, first=False
    )
    memory.chosen = memory.place = torch.tensor([[[1], [2]]])
    memory.advance(2, span)
    assert memory.targets is not None and memory.targets.tolist() == [[[1], [2]]]
    memory.chosen = torch.tensor([[[3], [0]]])
    memory.settle()
    assert memory.chosen is memory.place and memory.place.tolist() == [[[3], [0]]]
    assert memory.targets.tolist() == [[[1], [2]]]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", CAPTURED)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "padded"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_tokens_and_doses_on_a_card(name: str, prompts: list[str], kind: str) -> None:
    if "row" in kind and len(prompts) == 1:
        pytest.skip("two seeds for one row")
    assert_the_same(sl.load(name, device="cuda", dtype=torch.float32), name, prompts, CAPTURED[kind])


@pytest.mark.gpu
def test_observed_under_an_intervention() -> None:
    model = sl.load("tiny-llada", device="cuda", dtype=torch.float32)
    seen = []
    for graph in (False, True):
        with sl.intervene(model, sl.MaskSinks(top=1)), sl.observe(model) as found:
            sl.generate(model, PROMPTS[:1], SAMPLERS["tiny-llada"], graph=graph)
        seen.append(found)
    for ours, theirs in zip(seen[1].steps, seen[0].steps, strict=True):
        torch.testing.assert_close(ours.received, theirs.received, atol=1e-4, rtol=1e-4)
