"""Steps as a CUDA graph: the same tokens, the same numbers, and what cannot be captured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.attention.capture import capturing
from sinklens.errors import UsageError


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_a_cpu_has_no_graphs(name: str) -> None:
    with pytest.raises(UsageError, match="graph=True on cpu; CUDA graphs are for NVIDIA GPUs"):
        sl.generate(sl.load(name), "Question:", sl.LLaDASampler(steps=2, length=2, block=2), graph=True)


def test_a_trace_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    sampler = sl.LLaDASampler(steps=2, length=2, block=2)
    with pytest.raises(UsageError, match="CUDA graphs are for NVIDIA GPUs"):
        sl.trace(sl.load("tiny-llada"), "Question:", sampler, to=tmp_path / "a", graph=True)
    assert not (tmp_path / "a").exists()


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


def load(name: str, device: str) -> Any:
    return sl.load(name, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)


SAMPLERS = {
    "tiny-llada": sl.LLaDASampler(steps=24, length=24, block=12),
    "tiny-dream": sl.DreamSampler(steps=24, length=24, alg="entropy"),
}
PROMPTS = ["Question: Mia has 12 apples. She finds 5 more.", "Question: Tom has 3 pens."]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "padded"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_tokens_and_the_same_numbers(name: str, prompts: list[str], graphs_on: str) -> None:
    model = load(name, graphs_on)
    options: dict[str, Any] = {"groups": {"masked": lambda step: step.masked}, "hidden_norms": True, "ranks": True}
    plain = sl.generate(model, prompts, SAMPLERS[name])
    assert torch.equal(plain.ids, sl.generate(model, prompts, SAMPLERS[name], graph=True).ids)
    with sl.observe(model, maps=[(1, 2)], **options) as eager:
        sl.generate(model, prompts, SAMPLERS[name])
    with sl.observe(model, maps=[(1, 2)], **options) as replayed:
        again = sl.generate(model, prompts, SAMPLERS[name], graph=True)
    assert torch.equal(plain.canvases, again.canvases)
    assert [step.step for step in replayed.steps] == [step.step for step in eager.steps] == list(range(24))
    for ours, theirs in zip(replayed.steps, eager.steps, strict=True):
        for array in ("received", "expected", "key_norm", "value_norm", "contribution", "output_rank", "hidden_norm"):
            close(getattr(ours, array), getattr(theirs, array))
        close(ours.groups["masked"], theirs.groups["masked"])
        close(ours.maps[1, 2], theirs.maps[1, 2])
        assert {record.site.step for record in ours.calls} == {ours.step}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_forward_that_was_captured_before_is_captured_at_once(name: str, graphs_on: str) -> None:
    model = load(name, graphs_on)
    launched: list[bool] = []
    model.register_forward_pre_hook(lambda *_: launched.append(not capturing()))
    options: dict[str, Any] = {"groups": {"masked": lambda step: step.masked}, "hidden_norms": True, "ranks": True}
    runs = []
    for _ in range(2):
        with sl.observe(model, **options) as seen:
            sl.generate(model, PROMPTS[:1], SAMPLERS[name], graph=True)
        runs.append(seen.steps)
    assert launched == [True, False, False]
    for first, second in zip(*runs, strict=True):
        for array in ("received", "contribution", "output_rank", "hidden_norm"):
            close(getattr(first, array), getattr(second, array))
        close(first.groups["masked"], second.groups["masked"])


def test_groups_that_overlap_are_refused_in_a_graph_too(graphs_on: str) -> None:
    model = load("tiny-llada", graphs_on)
    groups = {"masked": lambda step: step.masked, "all": lambda step: step.masked | True}
    for _ in range(2):
        with pytest.raises(UsageError, match="query group 'all' overlaps"), sl.observe(model, groups=groups):
            sl.generate(model, PROMPTS[:1], SAMPLERS["tiny-llada"], graph=True)


def test_a_rule_of_the_steps_number_is_asked_at_every_step(graphs_on: str) -> None:
    model = load("tiny-llada", graphs_on)
    length = len(model.tokenizer.encode(PROMPTS[0])) + 24
    rule = {"some": lambda step: (torch.arange(length)[None] + int(step)) % 3 == 0}
    seen = []
    for graph in (False, True):
        with sl.observe(model, groups=rule) as found:
            sl.generate(model, PROMPTS[:1], SAMPLERS["tiny-llada"], graph=graph)
        seen.append([step.groups["some"] for step in found.steps])
    for ours, theirs in zip(*seen, strict=True):
        close(ours, theirs)
    assert not torch.equal(seen[1][5], seen[1][6])


def test_a_traced_run_is_the_same(tmp_path: Path, graphs_on: str) -> None:
    model = load("tiny-llada", graphs_on)
    traces = [
        sl.trace(model, PROMPTS, SAMPLERS["tiny-llada"], to=tmp_path / str(graph), graph=graph, exact=True)
        for graph in (False, True)
    ]
    for sample in traces[0].samples:
        assert traces[0].info(sample).text == traces[1].info(sample).text
        for layer in traces[0].layers:
            ours, theirs = (torch.from_numpy(trace.layer(sample, layer).received) for trace in traces)
            close(ours, theirs)


def test_a_part_that_is_observed_alone_is_refused(graphs_on: str) -> None:
    model = load("tiny-llada", graphs_on)
    with sl.observe(model.blocks[1]), pytest.raises(UsageError, match=r"while blocks\.1.* is observed by itself"):
        sl.generate(model, PROMPTS[:1], SAMPLERS["tiny-llada"], graph=True)


@pytest.mark.gpu
def test_a_causal_run_is_traced_on_a_gpu(tmp_path: Path) -> None:
    """Its cache is fed by a part of the model: what was seen must be in host memory before rows are made of it."""
    traces = [
        sl.trace(
            sl.load("tiny-llama", device=device), PROMPTS, sl.AutoregressiveSampler(length=8), to=tmp_path / device
        )
        for device in ("cpu", "cuda")
    ]
    for sample in traces[0].samples:
        ours, theirs = (torch.from_numpy(trace.layer(sample, 1).received) for trace in traces)
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2, equal_nan=True)
