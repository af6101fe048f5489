"""Observers of steps that a card runs alone: numbers of the right step, limits, errors in words, memory let go."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.attention import capture, observe
from sinklens.attention.outputs import OutputMeter
from sinklens.attention.seam import scopes_of
from sinklens.errors import ObservationError, SinklensError, UsageError
from sinklens.models.layers import Rotary
from sinklens.sampling import graphs
from sinklens.sampling.graphs import CapturedModel

PROMPT = [[1, 5, 9, 3]]
STEPS = 8
SAMPLER = sl.LLaDASampler(steps=STEPS, length=STEPS, block=4)


def load(device: str = "cpu") -> Any:
    return sl.load("tiny-llada", device=device)


def runs(model: Any, **options: Any) -> list[list[Any]]:
    """The steps of a run that is launched, and of one that is a graph."""
    found = []
    for graph in (False, True):
        with sl.observe(model, **options) as seen:
            sl.generate(model, PROMPT, SAMPLER, graph=graph)
        found.append(seen.steps)
    return found


@pytest.mark.parametrize("detail", ["full", "sinks"])
def test_maps_of_steps_one_behind_the_other_are_their_own(detail: str, tmp_path: Path, graphs_on: str) -> None:
    model, maps = load(graphs_on), [(1, 2, step) for step in range(STEPS)]
    options: dict[str, Any] = {"maps": maps, "exact": True, "detail": detail}
    made = [sl.trace(model, PROMPT, SAMPLER, to=tmp_path / str(g), graph=g, **options) for g in (False, True)]
    launched, replayed = ({tuple(where): weights for *where, weights in trace.maps(0)} for trace in made)
    assert launched.keys() == replayed.keys() and len(launched) == STEPS
    for where, weights in launched.items():
        torch.testing.assert_close(torch.from_numpy(replayed[where]), torch.from_numpy(weights), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("graph_runs_before", [False, True])
def test_a_mask_that_the_observer_was_given(graph_runs_before: bool, graphs_on: str) -> None:
    """Padding is known to the graph alone, which has to run before queries can be told apart."""
    model = load(graphs_on)
    if graph_runs_before:
        runs(model)
    launched, replayed = runs(model, attention_mask=torch.tensor([[0, 1, 1, 1]]))  # on the host
    for ours, theirs in zip(replayed, launched, strict=True):
        torch.testing.assert_close(ours.received, theirs.received, atol=1e-5, rtol=1e-5)
        assert (ours.received[..., 0] == 0).all()


def test_what_is_made_ahead_does_not_listen_to_autocast() -> None:
    weight, meter = torch.nn.Parameter(torch.rand(8, 8)), OutputMeter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert meter.prepare([(weakref.ref(weight), 2)])
    (gram,) = meter._grams.values()
    assert gram.whole.dtype == torch.float32 and not gram.whole.requires_grad


@pytest.mark.parametrize("from_step", [0, 5])
def test_groups_that_come_to_overlap_are_refused(from_step: int, graphs_on: str) -> None:
    groups = {"a": lambda step: step.masked, "b": lambda step: ~step.masked | (int(step) >= from_step)}
    model = load(graphs_on)
    with pytest.raises(UsageError, match="query group 'b' overlaps an earlier one"), sl.observe(model, groups=groups):
        sl.generate(model, PROMPT, SAMPLER, graph=True)


def test_maps_of_every_run_count(graphs_on: str) -> None:
    one = 4 * 12 * 12
    for graph in (False, True):
        model = load(graphs_on)
        with sl.observe(model, maps=[(0, 1)], map_bytes=STEPS * one) as seen:
            sl.generate(model, PROMPT, SAMPLER, graph=graph)
        assert len(seen.steps) == STEPS
        refused = pytest.raises(ObservationError, match=rf"{4 * one:,} bytes by .*step 3.* over the limit of")
        with refused, sl.observe(model, maps=[(0, 1)], map_bytes=3 * one):
            sl.generate(model, PROMPT, SAMPLER, graph=graph)


def test_layers_that_are_not_there(graphs_on: str) -> None:
    model = load(graphs_on)
    for _ in range(2):
        refused = pytest.raises(ObservationError, match=r"no self-attention layer is among layers=\[99\]")
        with refused, sl.observe(model, layers=[99]):
            sl.generate(model, PROMPT, SAMPLER, graph=True)


def test_a_sampler_that_does_not_announce_its_steps(graphs_on: str) -> None:
    model = load(graphs_on)
    ids = torch.tensor(PROMPT, device=graphs_on)
    captured = CapturedModel(model)
    with torch.no_grad(), pytest.raises(UsageError, match="a sampler that does not announce its steps"):
        for _ in range(3):
            captured(ids)


class Unfinished:
    """A graph whose capture cannot be ended, as on a card where a branch has not joined."""

    def capture_begin(self, **_: Any) -> None:
        pass

    def capture_end(self) -> None:
        raise RuntimeError("capturing stream has unjoined work")


@pytest.mark.usefixtures("card")
def test_an_error_inside_a_capture_keeps_its_words() -> None:
    with pytest.raises(SinklensError, match="why it failed"), capture.capture(Unfinished()):
        raise SinklensError("why it failed")
    assert not capture.capturing()
    with pytest.raises(RuntimeError, match="unjoined work"), capture.capture(Unfinished()):
        pass


def test_captures_share_a_stream(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    stream = torch.cuda.Stream
    monkeypatch.setattr(torch.cuda, "Stream", lambda *where: made.append(1) or stream(*where))
    for _ in range(3):
        sl.generate(load(), PROMPT, SAMPLER, graph=True)
    assert card() and len(made) == 1


def test_graphs_of_observers_that_have_ended_are_let_go(graphs_on: str) -> None:
    model = load(graphs_on)
    captured = CapturedModel(model)
    run = SAMPLER.run(captured, torch.tensor(PROMPT, device=graphs_on))
    with torch.no_grad():
        for _ in range(4):
            with sl.observe(model):
                for _ in range(2):
                    next(run)
            assert len(captured._graphs) == 1


def test_steps_that_were_read_do_not_hold_the_graph(graphs_on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = load(graphs_on), []
    sent = observe.Outbox
    monkeypatch.setattr(observe, "Outbox", lambda tensors: made.extend(map(weakref.ref, tensors)) or sent(tensors))
    with sl.observe(model) as seen:
        sl.generate(model, PROMPT, SAMPLER, graph=True)
    kept = [step.received for step in seen.steps]
    gc.collect()
    assert made and kept and all(tensor() is None for tensor in made)


def test_what_a_forward_needs_to_be_captured_at_once(card: Any) -> None:
    """Another mask, another autocast, another thread: kernels and libraries that nobody has used yet."""
    model = load()
    ids, captured = torch.tensor(PROMPT), CapturedModel(model)
    known = set()
    for mask in (None, torch.ones(1, 4)):
        for cast in (False, True):
            with sl.observe(model, attention_mask=mask), torch.autocast("cpu", enabled=cast):
                model(ids)
                known.add(captured._kernels(ids, scopes_of(model)))
    assert len(known) == 4
    assert captured._kernels(ids, ()) != CapturedModel(torch_free())._kernels(ids, ())
    assert card() == 0


def torch_free() -> Any:
    """A model without parameters."""

    class Bare(torch.nn.Module):
        tokenizer, spec, device = None, None, torch.device("cpu")

    return Bare()


def test_a_table_that_a_graph_may_read_is_kept() -> None:
    rotary = Rotary(8, 10_000.0)
    short = rotary.at(torch.arange(4)[None], 4)
    (table,) = rotary._tables[torch.device("cpu")]
    longer = rotary.at(torch.arange(9)[None], 9)
    assert rotary._tables[torch.device("cpu")][0] is table
    assert torch.equal(longer[0][:, :4], short[0]) and torch.equal(longer[1][:, :4], short[1])


def test_a_step_that_is_lent_can_be_read_and_the_run_go_on(graphs_on: str) -> None:
    model = load(graphs_on)
    launched, _ = runs(model)
    with sl.observe(model) as seen:
        run = sl.steps(model, PROMPT, SAMPLER, graph=True)
        next(run)
        next(run)
        held = seen.steps[-1]
        with held.lent() as lent:
            before = lent.received
            torch.testing.assert_close(held.received, before)
            for _ in run:  # more steps than there are places
                pass
            torch.testing.assert_close(lent.received, before)
    torch.testing.assert_close(before, launched[1].received, atol=1e-5, rtol=1e-5)


def test_after_a_rule_that_failed_the_next_forward_is_seen(graphs_on: str) -> None:
    model = load(graphs_on)

    def rule(step: Any) -> torch.Tensor:
        if int(step) == graphs.WARM_OBSERVED and asked.pop(0):
            raise ValueError("at the first run")
        return torch.zeros(1, 12, dtype=torch.bool)

    asked = [True, False]
    with sl.observe(model, groups={"some": rule}) as seen:
        with pytest.raises(ValueError, match="at the first run"):
            sl.generate(model, PROMPT, SAMPLER, graph=True)
        before = len(seen.steps)
        with torch.no_grad():
            model(torch.zeros(1, 12, dtype=torch.long, device=graphs_on))
        assert len(seen.steps) == before + 1
