"""Updates: from fixed places they compute the same, nothing in them waits for a card, and a graph replays them."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from capturing import NoWaiting, as_if_captured
from sinklens.errors import UsageError
from sinklens.selection.data import Images
from sinklens.selection.recipe import SelectionRecipe, selection_recipe_of
from sinklens.selection.selector import Selector
from sinklens.selection.training import build_selector, train
from sinklens.selection.update import WARM, Batch, CapturedUpdate, CudaRecorder, Losses, Update, update_of

SMALL: dict[str, Any] = {
    "name": "small",
    "shape": {"image": 8, "patch": 2, "width": 16, "blocks": 3, "heads": 2},
    "gating": {"split": 2},
    "schedule": {"steps": 16, "batch": 8, "warmup": 2, "save_every": 4, "plain": 5},
}
KINDS: dict[str, dict[str, Any]] = {
    "gates": {},
    "soft gates": {"gating": {"mode": "soft"}},
    "two budgets": {"gating": {"budgets": 2, "split": 2}, "budget": {"per": "image"}},
    "channel": {"noise": {"snr_low": -5.0, "snr_high": 10.0, "erasure": 0.2}, "codec_rate": 0.5},
    "no codec": {"noise": {"snr_low": -5.0, "snr_high": 10.0}},
    **{name: {"ranking": name} for name in ("random", "norm", "key_norm", "cls", "avit")},
}


def recipe_of(**changes: Any) -> SelectionRecipe:
    return selection_recipe_of({**SMALL, **changes}, source="test")


def images_of(count: int) -> Images:
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=draws)
    return Images(images=images, labels=torch.randint(10, (count,), generator=draws), classes=("",) * 10)


def batches(recipe: SelectionRecipe, count: int) -> Iterator[tuple[Batch, bool]]:
    draws = torch.Generator().manual_seed(1)
    for number in range(count):
        full = number % 3 == 0
        alphas = torch.ones(8, recipe.gating.budgets) if full else torch.rand(8, recipe.gating.budgets, generator=draws)
        snr = torch.rand(8, generator=draws) * 10 if recipe.noise.snr_low is not None else None
        some = images_of(8 * count).take(slice(8 * number, 8 * number + 8))
        yield Batch(images=some.images, labels=some.labels, alphas=alphas, snr=snr), full


def started(recipe: SelectionRecipe) -> tuple[Selector, Update]:
    selector = build_selector(recipe).train()
    return selector, Update(recipe, selector, torch.optim.SGD(selector.parameters(), lr=0.1))  # Adam scales rounding up


class Again:
    """In a card's place: what is recorded runs anew from the same places, as it would be captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.recorded = monkeypatch, 0

    def warm(self, run: Callable[[], Losses]) -> Losses:
        return run()

    def record(self, run: Callable[[], Losses], noise: torch.Generator) -> Callable[[], Losses]:
        self.recorded += 1

        def replay() -> Losses:
            with as_if_captured(self.monkeypatch):
                return run()

        return replay


@pytest.mark.parametrize("kind", ["gates", "two budgets", "channel", "random", "cls", "avit"])
def test_fixed_places_change_no_number(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, recorder = recipe_of(**KINDS[kind]), Again(monkeypatch)
    selector, plain = started(recipe)
    other, update = started(recipe)
    captured = CapturedUpdate(update, recorder)
    for number, (batch, full) in enumerate(batches(recipe, 3 * (WARM + 2))):
        wanted = plain(batch, full=full, seed=number)
        found = captured(batch, full=full, seed=number)
        assert found.keys() == wanted.keys() == {"task", "budget", "accuracy"}
        torch.testing.assert_close(found, wanted)
    assert recorder.recorded == 2  # at alpha = 1, and elsewhere
    torch.testing.assert_close(dict(other.named_parameters()), dict(selector.named_parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_an_update_waits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(**KINDS[kind])
    selector, update = started(recipe)
    monkeypatch.setattr(update.optimizer, "step", lambda: None)  # of torch; waits on a processor, and not on a card
    for batch, full in batches(recipe, 2):
        with as_if_captured(monkeypatch), NoWaiting():
            losses = update.run(batch, full)
        assert all(bool(value.isfinite()) for value in losses.values())
        assert any(value.grad is not None for value in selector.parameters())


def test_what_waits_is_found() -> None:
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoWaiting():
        bool(torch.ones(2).any())
    with pytest.raises(AssertionError, match="lift_fresh"), NoWaiting():
        torch.tensor([1.0])
    with pytest.raises(AssertionError, match="index"), NoWaiting():
        torch.ones(2)[torch.ones(2) > 0]


def test_on_a_processor_updates_run_as_they_are() -> None:
    selector, update = started(recipe_of(ranking="tome"))
    assert isinstance(update_of(update.recipe, selector, update.optimizer), Update)


def test_what_cannot_be_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def refusing(graph: Any) -> Iterator[None]:
        yield
        raise RuntimeError("not permitted when stream is capturing\nand more")

    monkeypatch.setattr("sinklens.selection.update.capture", refusing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(register_generator_state=lambda noise: None))
    recorder = CudaRecorder.__new__(CudaRecorder)  # without a stream, which needs a card
    with pytest.raises(UsageError, match=r"a CUDA graph \(not permitted .* capturing\); set graph = false"):
        recorder.record(dict, torch.Generator())


def moved(start: dict[str, Tensor], end: Selector) -> Tensor:
    """What training did to the weights; without key biases, whose gradient is nothing but rounding."""
    parts = [(name, value.detach().cpu() - start[name]) for name, value in end.named_parameters()]
    return torch.cat([change.flatten() for name, change in parts if not name.endswith("qkv.bias")])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_computes_what_launches_do(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[object] = []
    record = CudaRecorder.record
    monkeypatch.setattr(CudaRecorder, "record", lambda *args: recorded.append(args) or record(*args))
    recipe, data = recipe_of(**KINDS[kind]), images_of(40).to("cuda")
    start = {name: value.detach().clone() for name, value in build_selector(recipe).named_parameters()}
    wanted = train(replace(recipe, graph=False), data, to=tmp_path / "launched", device="cuda")
    assert not recorded
    found = train(recipe, data, to=tmp_path / "graph", device="cuda")
    assert len(recorded) == 2
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("launched", "graph")
    ]
    for one, other in zip(*logs, strict=True):
        assert other["task"] == pytest.approx(one["task"], rel=1e-3)
        assert other["budget"] == pytest.approx(one["budget"], rel=0.02, abs=1e-3)
    way, other_way = moved(start, wanted), moved(start, found)
    assert float((way - other_way).norm()) < 0.1 * float(way.norm())


@pytest.mark.gpu
def test_a_graph_goes_on_after_a_kill(tmp_path: Path) -> None:
    recipe, data = recipe_of(), images_of(40).to("cuda")
    whole = train(recipe, data, to=tmp_path / "whole", device="cuda")

    def kill(step: int, entry: Any) -> None:
        if step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, data, to=tmp_path / "killed", device="cuda", stepped=kill)
    resumed = train(recipe, data, to=tmp_path / "killed", device="cuda", resume=True)
    start = {name: value.detach().clone() for name, value in build_selector(recipe).named_parameters()}
    way, other_way = moved(start, whole), moved(start, resumed)
    assert float((way - other_way).norm()) < 0.1 * float(way.norm())


@pytest.mark.gpu
def test_merging_is_launched(tmp_path: Path) -> None:
    data = images_of(40).to("cuda")
    with pytest.raises(UsageError, match=r"'tome' merges in as many rounds as a batch needs, .* set graph = false"):
        train(recipe_of(ranking="tome"), data, to=tmp_path, device="cuda")
    train(recipe_of(ranking="tome", graph=False), data, to=tmp_path, device="cuda")
