"""Positions to be decided: what a boolean index would give, without a question behind the forward."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import Scripted, random_logits
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

import sinklens as sl
from capturing import NoWaiting
from sinklens.attention.outbox import Courier
from sinklens.errors import ModelError
from sinklens.sampling import undecided
from sinklens.sampling.undecided import Deciding

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@given(rows=st.integers(1, 3), width=st.integers(1, 9), seed=st.integers(0, 1000))
def test_it_is_a_boolean_index(rows: int, width: int, seed: int) -> None:
    compare(rows, width, seed, device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 7, 300, 5000])
def test_it_is_a_boolean_index_on_a_card(width: int) -> None:
    for rows, seed in ((1, 0), (2, 1), (3, 2)):
        compare(rows, width, seed, device="cuda")


def compare(rows: int, width: int, seed: int, *, device: str) -> None:
    draws = torch.Generator().manual_seed(seed)
    where = (torch.rand(rows, width, generator=draws) < torch.rand((), generator=draws)).to(device)
    values = torch.randn(rows, width, 3, generator=draws).to(device)
    asked = Deciding().ask(where)
    assert asked.count == int(where.sum())
    assert torch.equal(asked.of(values), values[where])
    each = torch.arange(asked.count, dtype=torch.float32, device=device)
    expected = torch.full((rows, width), -1.0, device=device)
    expected[where] = each
    assert torch.equal(asked.spread(each, outside=-1.0), expected)
    canvas = torch.zeros(rows, width, device=device)
    assert torch.equal(asked.put(each, canvas), expected.clamp(min=0))
    assert not canvas.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_ends_with_the_step_that_cannot_be_used(device: str, bad: float) -> None:
    deciding, where = Deciding(), torch.ones(1, 2, dtype=torch.bool, device=device)
    message = "the logits of step 4 hold NaN or infinite values at positions to be decided"
    deciding.look(torch.tensor([1.0, -3e38], device=device), 3)
    assert deciding.ask(where).count == 2
    with pytest.raises(ModelError, match=message):
        deciding.look(torch.tensor([1.0, bad], device=device), 4)
        _ = deciding.ask(where).count
    with pytest.raises(ModelError, match=message):
        deciding.look(torch.tensor([1.0, bad], device=device), 4)
        deciding.end()
    with pytest.raises(ModelError, match=message):
        deciding.look(torch.tensor([bad], device=device), 4, now=True)
    deciding.end()


SAMPLERS: dict[str, Any] = {
    "llada": sl.LLaDASampler(steps=6, length=6, block=3),
    "random": sl.LLaDASampler(steps=6, length=6, block=3, remasking="random"),
    "warm": sl.LLaDASampler(steps=6, length=6, block=3, temperature=0.7),
    "entropy": sl.DreamSampler(steps=6, length=6, alg="entropy"),
    "origin": sl.DreamSampler(steps=6, length=24, alg="origin"),  # by chance: more, so that some are left for the last
}


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [0, 3, 5])
@pytest.mark.parametrize("name", SAMPLERS)
def test_unusable_logits_on_a_card_name_their_step(name: str, wrong: int) -> None:
    forwards = iter(range(100))

    def script(ids: Tensor) -> Tensor:
        logits = random_logits(ids.cpu())
        return (logits * torch.nan if next(forwards) == wrong else logits).cuda()

    model: Any = Scripted(script)
    model.device = torch.device("cuda")
    with pytest.raises(ModelError, match=f"logits of step {wrong} hold NaN"):
        sl.generate(model, [1], SAMPLERS[name], seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SAMPLERS)
def test_nothing_behind_a_forward_waits_for_the_card(name: str) -> None:
    model = sl.load("tiny-dream" if name in ("entropy", "origin") else "tiny-llada", device="cuda")
    prompt = torch.tensor([[5, 6, 7]], device="cuda")
    expected = sl.generate(model, prompt, SAMPLERS[name], seed=0).ids
    run = SAMPLERS[name].run(model, prompt)
    with waiting_is_an_error(), torch.no_grad():
        torch.manual_seed(0)
        taken = list(run)
    assert torch.equal(taken[-1].canvas, expected)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    try:
        with warnings.catch_warnings(action="ignore"):  # it says that it does not see everything
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["llada", "random", "warm"])
def test_nothing_waits_on_a_processor_in_a_cards_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the host learns comes by courier, and is sent before the forward it is needed behind."""
    told: list[str] = []

    def script(ids: Tensor) -> Tensor:
        told.append("forward")
        with _disable_current_modes():
            return random_logits(ids)

    def send(self: Courier, *tensors: Tensor) -> Any:
        told.append("asked")
        return lambda: [tensor.numpy().item() for tensor in tensors]

    expected = sl.generate(Scripted(script), [1], SAMPLERS[name], seed=0).ids
    monkeypatch.setattr(undecided, "_on_card", lambda _: True)
    monkeypatch.setattr(Courier, "send", send)
    told.clear()
    with torch.no_grad():
        torch.manual_seed(0)
        run = SAMPLERS[name].run(Scripted(script), torch.tensor([[1]]))
        with NoWaiting():
            taken = [next(run) for _ in range(6)]
        assert next(run, None) is None
    assert told == ["asked", "forward"] * 6
    assert torch.equal(taken[-1].canvas, expected)
