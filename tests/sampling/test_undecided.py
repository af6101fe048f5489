"""Positions to be decided: picked out, or in a window as on a card; the same run, and nothing that waits."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import EOS, EOT, MASK, VOCAB, Scripted, random_logits
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

import sinklens as sl
from capturing import NoWaiting
from sinklens.errors import ModelError
from sinklens.sampling import dream, llada, undecided, unmask
from sinklens.sampling.predicted import Predicted
from sinklens.sampling.undecided import Undecided, Usable, asked

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@given(rows=st.integers(1, 3), width=st.integers(2, 9), seed=st.integers(0, 1000), shift=st.booleans())
def test_a_window_holds_what_is_picked_out(rows: int, width: int, seed: int, shift: bool) -> None:
    draws = torch.Generator().manual_seed(seed)
    start = int(torch.randint(0, width - 1, (), generator=draws))
    where = torch.rand(rows, width, generator=draws) < 0.5
    where[:, :start] = False
    logits = torch.randn(rows, width, 3, generator=draws)
    predicted = Predicted(logits=logits, positions=range(width), shift=shift)
    one, other = Undecided(where=where, window=None), Undecided(where=where, window=range(start, width))
    moved = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if shift else logits
    assert torch.equal(one.logits(predicted), moved[where])
    assert torch.equal(other.logits(predicted)[where[:, start:]], moved[where])
    assert torch.equal(one.of(moved), other.of(moved)[where[:, start:]])
    canvas = torch.randn(rows, width, generator=draws)
    before = canvas.clone()
    sums = [each.logits(predicted).sum(-1) for each in (one, other)]
    assert torch.equal(one.put(sums[0], canvas), other.put(sums[1], canvas))
    assert torch.equal(one.spread(sums[0], outside=-torch.inf), other.spread(sums[1], outside=-torch.inf))
    assert torch.equal(canvas, before)


def test_logits_of_part_of_a_canvas() -> None:
    logits = torch.arange(24.0).view(1, 4, 6)
    part = Predicted(logits=logits, positions=range(5, 9))
    where = torch.zeros(1, 10, dtype=torch.bool)
    where[0, [6, 8]] = True
    assert torch.equal(part.at(where), logits[0, [1, 3]])
    assert torch.equal(part.within(range(6, 9)), logits[:, 1:])
    shifted = Predicted(logits=logits, positions=range(5, 9), shift=True)
    assert (part.targets, shifted.targets) == (range(5, 9), range(6, 9))  # nothing here is for position 5
    assert torch.equal(shifted.at(where), logits[0, [0, 2]])
    assert torch.equal(shifted.within(range(6, 9)), logits[:, :3])


@pytest.mark.parametrize("start", [0, 1])
def test_no_more_is_copied_than_the_window(start: int) -> None:
    """Nothing behind position 0, which keeps its own."""
    logits = torch.arange(24.0).view(1, 4, 6)
    found = Predicted(logits=logits, positions=range(4), shift=True).within(range(start, 3))
    assert torch.equal(found, logits[:, [0, 0, 1]][:, start:])
    copied = 0 if start else found.numel()
    assert found.untyped_storage().size() == 4 * (copied or logits.numel())
    assert (found.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()) == (copied == 0)


LLADA: dict[str, Any] = {"steps": 6, "length": 6, "block": 3}
DREAM: dict[str, Any] = {"steps": 6, "length": 6}
SAMPLERS: dict[str, Any] = {
    "llada": sl.LLaDASampler(**LLADA),
    "random": sl.LLaDASampler(**LLADA, remasking="random"),
    "warm": sl.LLaDASampler(**LLADA, temperature=0.7),
    "guided": sl.LLaDASampler(**LLADA, cfg=0.5),
    "no eos": sl.LLaDASampler(**LLADA, logits_eos_inf=True, eos_id=EOS),
    "no eos, random": sl.LLaDASampler(**LLADA, logits_eos_inf=True, eos_id=EOS, remasking="random"),
    "eos last": sl.LLaDASampler(**LLADA, confidence_eos_eot_inf=True, eos_id=EOS, eot_id=EOT),
    "eos last, warm": sl.LLaDASampler(**LLADA, confidence_eos_eot_inf=True, eos_id=EOS, eot_id=EOT, temperature=0.7),
    "threshold": sl.LLaDASampler(**LLADA, threshold=0.3),
    "entropy": sl.DreamSampler(**DREAM, alg="entropy"),
    "margin": sl.DreamSampler(**DREAM, alg="topk_margin", top_p=0.9),
    "maskgit": sl.DreamSampler(**DREAM, alg="maskgit_plus", top_k=3),
    "drawn": sl.DreamSampler(**DREAM, alg="entropy", temperature=0.5, alg_temp=0.3),
    "origin": sl.DreamSampler(steps=6, length=24, alg="origin"),  # many, so that chance leaves some for the last step
}
WINDOWED = [name for name in SAMPLERS if name not in ("threshold", "drawn")]  # those that ask nothing in between


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("prompt", [[[1]], [[1, MASK, 3], [4, 5, 6]]], ids=["plain", "masks in the prompt"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_in_windows_is_the_same(
    name: str, prompt: list[list[int]], shift: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        with torch.no_grad():
            return list(SAMPLERS[name].run(Scripted(random_logits, shift=shift), torch.tensor(prompt)))

    expected = run()
    for module in (llada, dream):
        monkeypatch.setattr(module, "on_card", lambda _: True)
    for ours, theirs in zip(run(), expected, strict=True):
        assert torch.equal(ours.canvas, theirs.canvas) and torch.equal(ours.committed, theirs.committed)
        torch.testing.assert_close(ours.confidence, theirs.confidence, equal_nan=True)


CACHED: dict[str, tuple[str, Any]] = {
    "every block": ("llada", sl.LLaDASampler(steps=16, length=16, block=4, cache=sl.BlockCache(refresh=3))),
    "suffix": ("mmada", sl.LLaDASampler(steps=16, length=16, block=4, cache=sl.BlockCache(suffix=True))),
    "shifted": ("dream", sl.LLaDASampler(steps=16, length=16, block=4, cache=sl.BlockCache(suffix=True))),
    "no blocks": ("dream", sl.DreamSampler(steps=16, length=16, alg="entropy", cache=sl.BlockCache(refresh=3))),
}


@pytest.mark.parametrize("prompt", [[[1, 2, 3, 4, 5]], [[1, 2, None, 4, 5], [6, 7, 8, 9, 10]]], ids=["plain", "masks"])
@pytest.mark.parametrize("name", CACHED)
def test_a_cached_run_in_windows_is_the_same(
    name: str, prompt: list[list[int | None]], golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only part of the canvas is computed there."""
    family, sampler = CACHED[name]
    model = sl.load(golden / family)
    ids = [[model.spec.mask_id if token is None else token for token in row] for row in prompt]
    expected = sl.generate(model, ids, sampler).canvases
    for module in (llada, dream):
        monkeypatch.setattr(module, "on_card", lambda _: True)
    assert torch.equal(sl.generate(model, ids, sampler).canvases, expected)


@pytest.mark.parametrize(("bad", "token"), [*product([torch.nan, torch.inf], [4, EOS, EOT]), (-torch.inf, None)])
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_unusable_logits_name_their_step(
    name: str, windows: bool, bad: float, token: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever token they are for; at a position that is decided anything may stand."""
    forwards, wrong = iter(range(100)), 0 if name == "threshold" else 2

    def script(ids: Tensor) -> Tensor:
        logits = random_logits(ids)
        logits[ids != MASK] = torch.nan
        if next(forwards) == wrong:
            spoiled = logits.clone()
            spoiled[..., slice(None) if token is None else token] = bad
            logits = torch.where((ids == MASK)[..., None], spoiled, logits)
        return logits

    if windows:
        for module in (llada, dream):
            monkeypatch.setattr(module, "on_card", lambda _: True)
    with pytest.raises(ModelError, match=f"logits of step {wrong} hold NaN"):
        sl.generate(Scripted(script), [1], SAMPLERS[name], seed=0)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("name", ["no eos", "no eos, random", "eos last"])
def test_only_eos_is_as_good_as_nothing_where_it_may_not_be(
    name: str, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(ids: Tensor) -> Tensor:
        return torch.full((*ids.shape, VOCAB), -torch.inf).index_fill(-1, torch.tensor(EOS), 1.0)

    if windows:
        monkeypatch.setattr(llada, "on_card", lambda _: True)
    with pytest.raises(ModelError, match="logits of step 0 hold NaN or infinite values"):
        sl.generate(Scripted(script), [1], SAMPLERS[name], seed=0)


def test_only_what_commits_by_chance_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole window would be sorted at every step."""
    sampler = sl.DreamSampler(steps=6, length=24, alg="origin", top_p=0.6, top_k=3)
    expected = sl.generate(Scripted(random_logits), [1], sampler, seed=0).canvases
    filtered, positions = unmask.filtered_probabilities, []

    def counted(logits: Tensor, *given: Any) -> Tensor:
        positions.append(logits.shape[:-1].numel())
        return filtered(logits, *given)

    monkeypatch.setattr(dream, "on_card", lambda _: True)
    monkeypatch.setattr(unmask, "filtered_probabilities", counted)
    assert torch.equal(sl.generate(Scripted(random_logits), [1], sampler, seed=0).canvases, expected)
    assert sum(positions) == 24


@pytest.mark.parametrize("name", WINDOWED)
def test_nothing_waits_on_a_processor_in_a_cards_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the host learns is asked for; what is needed behind a forward, before it."""
    told: list[str] = []

    def script(ids: Tensor) -> Tensor:
        told.append("forward")
        with _disable_current_modes():
            return random_logits(ids)

    def ask(value: Tensor) -> Any:
        told.append("asked")

        def answer() -> Any:
            return value.numpy().item()

        answer.ready = lambda: True  # type: ignore[attr-defined]
        return answer

    expected = sl.generate(Scripted(script), [1], SAMPLERS[name], seed=0).ids
    for module in (llada, dream, undecided):
        monkeypatch.setattr(module, "on_card", lambda _: True)
    for module in (dream, undecided):
        monkeypatch.setattr(module, "asked", ask)
    is_dream = isinstance(SAMPLERS[name], sl.DreamSampler)
    monkeypatch.setattr(torch, "tensor", lambda value: torch.full((), value))  # a number of the host's, for the host
    told.clear()
    with torch.no_grad():
        torch.manual_seed(0)
        run = SAMPLERS[name].run(Scripted(script), torch.full((1, 1), 1))
        taken = [next(run)]  # the prompt is looked at once
        with NoWaiting(allowed=("_local_scalar_dense",) if is_dream else ()):
            taken += [next(run) for _ in range(5)]
        assert next(run, None) is None
    assert told == ["asked", "forward", "asked"] * 6 if is_dream else told == ["forward", "asked"] * 6
    assert torch.equal(taken[-1].canvas, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_that_is_asked_for(device: str) -> None:
    answers = [asked(torch.tensor(number, device=device)) for number in (3, 4.5)]
    assert [answer() for answer in answers] == [3, 4.5]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_ends_with_the_step_that_cannot_be_used(device: str) -> None:
    usable = Usable()
    usable.look(torch.tensor([1.0, -torch.inf], device=device), 3)
    usable.look(torch.zeros(0, device=device), 3)
    usable.end()
    with pytest.raises(ModelError, match="the logits of step 4 hold NaN or infinite values at positions to be decided"):
        usable.look(torch.tensor([[1.0, torch.nan]], device=device), 4)
        usable.end()
    usable.end()


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [0, 3, 5])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "threshold"])  # which ends when it has all
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
@pytest.mark.parametrize("name", ["llada", "random", "warm", "entropy", "origin"])
def test_nothing_waits_for_the_card_between_steps(name: str) -> None:
    model = sl.load("tiny-dream" if name in ("entropy", "origin") else "tiny-llada", device="cuda")
    expected = sl.generate(model, [5, 6, 7], SAMPLERS[name], seed=0).ids
    run = sl.steps(model, [5, 6, 7], SAMPLERS[name], seed=0, graph=True)
    taken = [next(run), next(run)]  # one is launched, one is captured
    with waiting_is_an_error():
        taken += [next(run) for _ in range(4)]
    assert next(run, None) is None
    assert torch.equal(taken[-1].canvas, expected)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    try:
        with warnings.catch_warnings(action="ignore"):  # it says that it does not see everything
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
