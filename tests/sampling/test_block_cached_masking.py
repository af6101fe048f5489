"""Keys denied in a run with a block cache: clean entries are held, and what is denied gets no weight at all."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.attention.call import AttentionCall
from sinklens.attention.clock import current_step
from sinklens.errors import UsageError
from sinklens.evaluation.answering import Answering, sampler_of
from sinklens.evaluation.conditions import REFRESH, parse_condition
from sinklens.evaluation.grid import Grid
from sinklens.interventions.views import hide

PROMPT = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
KEYS = "block_cached"
FAMILIES = ("llada", "dream")


def sampler_for(family: str, refresh: int | None) -> Any:
    cache = None if refresh is None else sl.BlockCache(refresh=refresh)
    if family == "dream":
        return sl.DreamSampler(steps=8, length=8, alg="entropy", cache=cache)
    return sl.LLaDASampler(steps=8, length=8, block=4, cache=cache)


def run(model: Any, sampler: Any) -> list[Tensor]:
    return [step.canvas for step in sl.steps(model, PROMPT, sampler)]


@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_refresh_at_every_step_nothing_is_denied(checkpoint: Any, family: str) -> None:
    model = checkpoint(family)
    with sl.intervene(model, sl.MaskSinks(top=2, keys=KEYS)) as lab:
        found = list(sl.steps(model, PROMPT, sampler_for(family, 1)))
    plain = list(sl.steps(model, PROMPT, sampler_for(family, None)))
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one.canvas, other.canvas)
        assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))
    assert not any(dose.masked for dose in lab.doses)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_denied_key_gets_no_weight_between_refreshes_and_its_own_at_them(checkpoint: Any, family: str) -> None:
    model = checkpoint(family)
    with sl.intervene(model, sl.MaskSinks(positions=[4], keys=KEYS)) as lab, sl.observe(model) as seen:
        run(model, sampler_for(family, 4))
    refreshes = [0, 4]
    for number, step in enumerate(seen.steps):
        for record in step.calls:
            assert bool((record.received[..., 4] == 0).all()) == (number not in refreshes)
            assert (record.received[..., 5] > 0).all()
    assert sorted({dose.step for dose in lab.doses if not dose.masked}) == refreshes
    assert {dose.keys for dose in lab.doses if dose.masked} == {1.0}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_held_is_the_models_own(checkpoint: Any, family: str) -> None:
    """The keys and values that queries read outside the span, against a forward without the mask at the refresh."""
    model, canvases = checkpoint(family), list[Tensor]()
    held, clean = (dict[tuple[int, int], tuple[Tensor, Tensor]]() for _ in range(2))

    def look(call: AttentionCall) -> AttentionCall:
        step = current_step()
        assert step is not None and step.canvas is not None and step.computed is not None and call.site is not None
        if len(step.computed) == call.key.shape[2] and call.site.layer == 0:
            canvases.append(step.canvas)
        elif len(step.computed) < call.key.shape[2]:
            held[len(canvases), call.site.layer] = call.key[:, :, :4], call.value[:, :, :4]
        return call

    with sl.intervene(model, look), sl.intervene(model, sl.MaskSinks(top=1, keys=KEYS)) as lab:
        run(model, sampler_for(family, 4))

    padding = torch.ones_like(canvases[0])
    padding[1, :3] = 0

    def keep(call: AttentionCall) -> AttentionCall:
        assert call.site is not None
        clean[call.site.step + 1, call.site.layer] = call.key[:, :, :4], call.value[:, :, :4]
        return call

    with torch.no_grad(), sl.intervene(model, keep):
        for canvas in canvases:
            model(canvas, attention_mask=padding)
    assert held.keys() == clean.keys() and lab.dose > 0.2
    for place, (key, value) in held.items():
        torch.testing.assert_close(key, clean[place][0])
        torch.testing.assert_close(value, clean[place][1])


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_a_mask_on_the_calls_between_refreshes(checkpoint: Any, family: str) -> None:
    """Against the same thing written by hand; and it differs from masking at every step."""
    model, sampler = checkpoint(family), sampler_for(family, 4)

    def by_hand(call: AttentionCall) -> AttentionCall:
        if call.query.shape[2] == call.key.shape[2]:
            return call
        hidden = torch.zeros((*call.scores.shape[:2], 1, call.scores.shape[3]), dtype=torch.bool)
        hidden[..., [4, 5]] = True
        return hide(call, hidden)

    confidences = []
    for settings in (sl.MaskSinks(positions=[4, 5], keys=KEYS), by_hand, sl.MaskSinks(positions=[4, 5])):
        with sl.intervene(model, settings):
            confidences.append(torch.stack([one.confidence for one in sl.steps(model, PROMPT, sampler)]).nan_to_num(-1))
    torch.testing.assert_close(confidences[0], confidences[1])
    assert (confidences[0] - confidences[2]).abs().max() > 1e-4


def test_runs_that_have_no_such_cache(checkpoint: Any) -> None:
    model, none = checkpoint("llada"), "this run has none; give the sampler one"
    with sl.intervene(model, sl.MaskSinks(top=1, keys=KEYS)), pytest.raises(UsageError, match=none):
        run(model, sampler_for("llada", None))
    with pytest.raises(UsageError, match="a causal model's own cache is keys='cached'"):
        sl.MaskSinks(top=1, keys=KEYS).plan(causal=True)


def test_the_lab_gives_the_cache_to_the_cells_that_ask_for_it(checkpoint: Any) -> None:
    condition = parse_condition("sinks:top=1,keys=block_cached")
    assert condition.label == "1 sink, block cached"
    answering = Answering(task="word_problems", length=8)
    for family in FAMILIES:
        assert sampler_of(checkpoint(family), answering, condition).cache == sl.BlockCache(refresh=REFRESH)  # type: ignore[attr-defined]
        assert sampler_of(checkpoint(family), answering).cache is None  # type: ignore[attr-defined]
    grid = Grid(tops=(1,), keys=("cached", "block_cached"), draws=1)
    own = ["none", "sinks:top=1", "random:top=1"]
    assert [str(cell) for cell in grid.cells(causal=True)] == own
    both = [f"{keys}:top=1,keys={how}" for how in ("cached", "block_cached") for keys in ("sinks", "random")]
    assert [str(cell) for cell in grid.cells(causal=False)] == own + both
