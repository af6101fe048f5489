"""Calls of several layers that are summed as one: the same numbers, in order, and there whenever somebody reads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.attention import observe
from sinklens.kernels import chunked

IDS = torch.randint(4, 4000, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Any:
    return sl.load("tiny-llada")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every pass that is made."""
    made, received = [], chunked.received

    def counted(scores: Any, **options: Any) -> Any:
        made.append(scores.shape[0])
        return received(scores, **options)

    monkeypatch.setattr(chunked, "received", counted)
    return made


@torch.no_grad()
def run(model: Any, **options: Any) -> Any:
    with sl.observe(model, groups={"first": torch.arange(40).expand(2, -1) < 7}, **options) as seen:
        model(IDS)
    return seen


def test_the_same_numbers_as_one_by_one(model: Any, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"entropy": True, "hidden_norms": True}
    ours = run(model, **options)
    assert passes == [2 * 8]
    monkeypatch.setattr(observe, "may_wait", lambda *_: False)
    theirs = run(model, **options)
    assert passes[1:] == [2] * 8 and ours.layers == theirs.layers == list(range(8))
    for name in ("received", "expected", "viewers", "entropy", "key_norm", "contribution", "hidden_norm"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.groups["first"], theirs.groups["first"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{"ranks": True}, {"maps": [(2, 1)]}])
def test_what_may_change_or_has_a_limit_does_not_wait(model: Any, passes: list[int], options: dict[str, Any]) -> None:
    run(model, **options)
    assert passes == [2] * 8


@pytest.mark.parametrize("name", ["key", "query", "value"])
def test_an_intervention_with_one_buffer_for_all_layers(model: Any, passes: list[int], name: str) -> None:
    places: list[torch.Tensor] = []
    seen = []
    for reuse in (False, True):

        def change(call: Any, reuse: bool = reuse) -> Any:
            own = getattr(call, name)
            place = torch.empty_like(own) if not (reuse and places) else places[0]
            places[:] = [place]
            place.copy_(own)
            place[:, :, 0] = 0
            return replace(call, **{name: place})

        with torch.no_grad(), sl.intervene(model, change), sl.observe(model) as found:
            model(IDS)
        seen.append(found)
    assert passes == [2] * 16
    for array in ("received", "key_norm", "value_norm"):
        assert torch.equal(getattr(seen[0], array), getattr(seen[1], array))


def test_a_hook_that_changes_what_a_head_puts_out(model: Any) -> None:
    sizes = []
    for ablated in (False, True):

        def ablate(_: Any, given: tuple[torch.Tensor], ablated: bool = ablated) -> None:
            if ablated:
                given[0].zero_()

        handle = model.blocks[0].attention.o.register_forward_pre_hook(ablate)
        with torch.no_grad(), sl.observe(model, ranks=True) as seen:
            model(IDS)
        handle.remove()
        sizes.append(seen.output_size[0])
    assert torch.equal(*sizes)


def test_another_thread_reads_meanwhile(model: Any) -> None:
    with torch.no_grad(), sl.observe(model, norms=False) as seen:
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                _ = [len(step.calls) for step in seen.steps[-1:]]

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            model(IDS)
        done.set()
        reader.join()
    assert [[call.site.layer for call in step.calls] for step in seen.steps] == [list(range(8))] * 20


def test_no_more_wait_than_a_slab_holds(model: Any, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "SLAB_ELEMENTS", 3 * 2 * 4 * 40 * 40)
    assert run(model).layers == list(range(8)) and passes == [6, 6, 4]


def test_under_an_intervention_that_masks_every_call_is_its_own(model: Any, passes: list[int]) -> None:
    hidden = torch.arange(40) != 3
    with torch.no_grad(), sl.intervene(model, lambda call: masked(call, hidden)), sl.observe(model) as seen:
        model(IDS)
    assert passes == [2] * 8 and (seen.received[..., 3] == 0).all()


def masked(call: Any, visible: torch.Tensor) -> Any:
    return replace(call, mask=visible.view(1, 1, 1, -1))


def test_whoever_reads_in_the_middle_finds_what_has_run(model: Any) -> None:
    counts: list[int] = []
    with torch.no_grad(), sl.observe(model) as seen:
        look: Callable[..., None] = lambda *_: counts.append(len(seen.steps[-1].calls))  # noqa: E731
        handles = [model.blocks[i].register_forward_hook(look) for i in (0, 3)]
        model(IDS)
        [handle.remove() for handle in handles]
        assert counts == [1, 4] and seen.layers == list(range(8))


def test_steps_thrown_away_in_the_middle(model: Any) -> None:
    with torch.no_grad(), sl.observe(model) as seen:
        handle = model.blocks[2].register_forward_hook(lambda *_: seen.steps.clear())
        model(IDS)
        handle.remove()
        assert not seen.steps
        model(IDS)
    assert seen.layers == list(range(8))


def test_a_forward_that_failed_leaves_nothing_for_the_next(model: Any) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with torch.no_grad(), sl.observe(model) as seen:
        handle = model.blocks[2].register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            model(IDS)
        handle.remove()
        model(IDS)
    assert [len(step.calls) for step in seen.steps] == [3, 8]
