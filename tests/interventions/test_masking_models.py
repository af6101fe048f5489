"""Sinks masked during generation, on every kind of model, against the rule replayed in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sinklens as sl
from attention.zoo import rows
from interventions.replayed import Replay, probed
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys

ROWS = [[17, 42, 8, 59, 23, 61], [5, 6], [11, 12, 13, 14]]
DLM = {"causal": False, "rank_by": "received", "queries": "all", "keys": "recomputed"}
ARM = {"causal": True, "rank_by": "last_row", "queries": "last", "keys": "cached"}
LLADA = sl.LLaDASampler(steps=6, length=12, block=6)
CASES: dict[str, tuple[str, Any]] = {
    "llada": ("llada", LLADA),
    "llada-cfg": ("llada", sl.LLaDASampler(steps=4, length=8, block=8, cfg=1.0)),
    "mmada": ("mmada", LLADA),
    "dream": ("dream", sl.DreamSampler(steps=6, length=10, alg="entropy")),
}


class Uncached(nn.Module):
    """A language model that keeps no cache: every step runs all ids."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner, self.spec, self.tokenizer = model, model.spec, None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.inner(ids, attention_mask=attention_mask)


def zoo(name: str, implementation: str = "sdpa") -> Any:
    return next(row for row in rows() if row.name == name).build(implementation)


def arm(name: str = "llama", implementation: str = "sdpa") -> Any:
    """A random decoder with grouped kv heads that never stops by itself."""
    model = zoo(name, implementation)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return sl.wrap(model)


def assert_follows(lab: Any, seen: Any, replay: Replay) -> None:
    replay.follow(seen)
    assert any(hidden.any() for hidden in replay.hidden)
    assert len(lab.doses) == len(replay.doses)
    for got, (run, step, layer, removed, largest) in zip(lab.doses, replay.doses, strict=True):
        assert (got.run, got.step, got.layer) == (run, step, layer)
        assert got.removed == pytest.approx(removed, abs=2e-5, nan_ok=True)
        assert got.largest == pytest.approx(largest, abs=2e-5, nan_ok=True)


@pytest.mark.parametrize("measure", ["before", "after"])
@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_diffusion_models_follow_the_rule(golden: Path, case: str, top: int, measure: str) -> None:
    family, sampler = CASES[case]
    model = sl.load(golden / family)
    with probed(model, MaskSinks(top=top, measure=measure)) as (lab, seen):
        sl.generate(model, ROWS, sampler)
    assert_follows(lab, seen, Replay(top=top, measure=measure, **DLM))


@pytest.mark.parametrize("top", [1, 4])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("llama", "sdpa"),
        ("llama", "eager"),
        ("gpt2", "sdpa"),
        ("gemma2", "eager"),
        ("gemma3", "sdpa"),
        ("gpt_oss", "eager"),
    ],
)
def test_decoders_with_a_cache_follow_the_rule(name: str, implementation: str, top: int) -> None:
    """Left-padded rows, grouped kv heads, sliding windows that forget, soft caps, learned sinks."""
    model = arm(name, implementation)
    with probed(model, MaskSinks(top=top)) as (lab, seen):
        sl.generate(model, ROWS, sl.AutoregressiveSampler(length=8))
    assert any(one.incoming.query.shape[2] == 1 for one in seen)
    assert_follows(lab, seen, Replay(top=top, **ARM))


@pytest.mark.parametrize(
    "settings",
    [
        {"rank_by": "received"},
        {"measure": "after"},
        {"rank_by": "received", "measure": "after"},
        {"queries": "last", "keys": "cached"},
    ],
)
def test_settings_of_a_cached_run(settings: dict[str, str]) -> None:
    model = arm()
    with probed(model, MaskSinks(top=2, **settings)) as (lab, seen):
        sl.generate(model, ROWS, sl.AutoregressiveSampler(length=7))
    assert_follows(lab, seen, Replay(top=2, **(ARM | settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"keys": "recomputed"},
        {"queries": "all"},
        {"queries": "last", "keys": "recomputed"},
        {"keys": "recomputed", "rank_by": "received"},
    ],
)
@pytest.mark.parametrize(("name", "implementation"), [("llama", "sdpa"), ("gemma3", "sdpa"), ("gpt_oss", "eager")])
def test_settings_of_a_run_without_a_cache(settings: dict[str, str], name: str, implementation: str) -> None:
    model = arm(name, implementation)
    with probed(model, MaskSinks(top=2, **settings)) as (lab, seen):
        sl.generate(Uncached(model), ROWS, sl.AutoregressiveSampler(length=5))
    assert all(one.incoming.query.shape[2] > 1 for one in seen)
    meant = ARM | ({"queries": "all", "keys": "recomputed"} if settings else {}) | settings
    assert_follows(lab, seen, Replay(top=2, **meant))


def test_a_row_that_has_ended_counts_no_longer() -> None:
    model = arm()
    with sl.intervene(model, MaskSinks(top=2)):
        free = sl.generate(model, ROWS, sl.AutoregressiveSampler(length=7))
    end = int(free.ids[1, free.prompt_length + 2])
    ending = zoo("llama")
    ending.config.eos_token_id = ending.generation_config.eos_token_id = end
    model = sl.wrap(ending)
    with probed(model, MaskSinks(top=2)) as (lab, seen):
        out = sl.generate(model, ROWS, sl.AutoregressiveSampler(length=7))
    assert out.lengths.min() < out.lengths.max()
    assert not seen[-1].incoming.real_queries.all()
    assert_follows(lab, seen, Replay(top=2, **ARM))


def test_a_trace_of_a_masked_run(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    with sl.intervene(model, MaskSinks(top=1)) as lab:
        sl.trace(model, ROWS[:2], LLADA, to=tmp_path / "masked")
    assert [dose.step for dose in lab.doses if dose.layer == 0] == [0, 1, 2, 3, 4, 5] * 2
    assert len(sl.open_trace(tmp_path / "masked").samples) == 2


def test_dropping_the_cache_changes_nothing() -> None:
    """An earlier query that runs again is denied what it was denied as the newest."""
    model, sampler = arm(), sl.AutoregressiveSampler(length=10)
    with sl.intervene(model, MaskSinks(top=2)) as cached:
        first = sl.generate(model, ROWS, sampler)
    with sl.intervene(model, MaskSinks(top=2)) as anew:
        second = sl.generate(Uncached(model), ROWS, sampler)
    assert first.ids.tolist() == second.ids.tolist()
    assert first.ids.tolist() != sl.generate(model, ROWS, sampler).ids.tolist()
    for a, b in zip(cached.doses, anew.doses, strict=True):
        assert (a.step, a.layer, a.masked) == (b.step, b.layer, b.masked)
        assert (a.removed, a.largest) == pytest.approx((b.removed, b.largest), abs=1e-5)


@pytest.mark.parametrize("use_cache", [True, False])
def test_transformers_own_generate(use_cache: bool) -> None:
    """No sampler of ours, and no spec: steps are forwards, and the first call tells that the model is causal."""
    model = zoo("llama")
    ids = torch.tensor([[17, 42, 8, 9, 23, 60]])
    run = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "use_cache": use_cache}
    with probed(model, MaskSinks(top=2)) as (lab, seen):
        out = model.generate(ids, **run)
    assert_follows(lab, seen, Replay(top=2, **ARM))
    wrapped = sl.wrap(model)
    with sl.intervene(wrapped, MaskSinks(top=2)):
        ours = sl.generate(wrapped, ids, sl.AutoregressiveSampler(length=6))
    ended = (out[0, 6:] == 2).nonzero()
    assert not ended.numel()
    assert out.tolist() == ours.ids.tolist()
    with sl.intervene(model, MaskSinks(top=2)) as again:  # two runs in one context: the second starts anew
        model.generate(ids, **run)
        assert model.generate(ids, **run).tolist() == out.tolist()
    assert {dose.run for dose in again.doses} == {0, 1}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_make_a_decoder_look_ahead(side: str) -> None:
    model = zoo("llama")
    ids = torch.tensor([[17, 42, 8, 9], [5, 6, 7, 3]])
    real = torch.ones_like(ids)
    real[1, slice(0, 2) if side == "left" else slice(2, 4)] = 0
    with probed(model, MaskSinks(top=1)) as (lab, seen), torch.no_grad():
        for length in (4, 5, 6):
            more = F.pad(ids, (0, length - 4), value=30 + length)
            model(more, attention_mask=F.pad(real, (0, length - 4), value=1), use_cache=False)
    assert_follows(lab, seen, Replay(top=1, **ARM))


def test_a_model_without_a_spec_is_known_by_its_first_call() -> None:
    bert = zoo("bert")
    ids = torch.tensor([[1, 5, 6, 7, 8, 2], [1, 9, 10, 2, 0, 0]])
    mask = (ids != 0).long()
    with probed(bert, MaskSinks(top=2)) as (lab, seen), torch.no_grad():
        for _ in range(3):
            bert(ids, attention_mask=mask)
    assert_follows(lab, seen, Replay(top=2, **DLM))


@pytest.mark.parametrize("settings", [MaskSinks(top=2), RandomKeys(top=2, seed=3)], ids=["sinks", "random"])
@pytest.mark.parametrize("case", ["llada", "dream", "llama"])
def test_every_generation_starts_with_nothing(golden: Path, case: str, settings: Any) -> None:
    family, sampler = CASES.get(case, ("", sl.AutoregressiveSampler(length=6)))
    model = sl.load(golden / family) if family else arm()
    other = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]

    def alone(prompt: Any) -> tuple[Any, Any]:
        with sl.intervene(model, settings) as lab:
            return sl.generate(model, prompt, sampler).ids.tolist(), lab.doses

    with sl.intervene(model, settings) as lab:
        first = sl.generate(model, ROWS, sampler).ids.tolist()
        second = sl.generate(model, other, sampler).ids.tolist()
    assert (first, second) == (alone(ROWS)[0], alone(other)[0])
    together = [(dose.step, dose.layer, dose.removed, dose.largest) for dose in lab.doses]
    apart = [(dose.step, dose.layer, dose.removed, dose.largest) for dose in alone(ROWS)[1] + alone(other)[1]]
    assert together == apart
    assert [dose.run for dose in lab.doses] == sorted(dose.run for dose in lab.doses)
    assert all(dose.masked == (dose.step > 0) for dose in lab.doses)
    assert all(dose.removed == 0 for dose in lab.doses if dose.step == 0)


@pytest.mark.parametrize("case", ["llada", "mmada", "dream", "llama"])
def test_rows_of_a_batch_are_masked_on_their_own(golden: Path, case: str) -> None:
    family, sampler = CASES.get(case, ("", sl.AutoregressiveSampler(length=8)))
    model = sl.load(golden / family) if family else arm()
    with sl.intervene(model, MaskSinks(top=2)):
        together = sl.generate(model, ROWS, sampler)
        for number, row in enumerate(ROWS):
            alone = sl.generate(model, row, sampler)
            assert together.ids[number, together.prompt_length :].tolist() == alone.ids[0, len(row) :].tolist()
    assert together.ids.tolist() != sl.generate(model, ROWS, sampler).ids.tolist()


def test_step_0_has_the_bits_of_the_model_itself_and_nothing_stays_behind(golden: Path) -> None:
    model, ids = sl.load(golden / "dream"), torch.tensor([ROWS[0]])
    with torch.no_grad():
        plain = model(ids)
        with sl.intervene(model, MaskSinks(top=1)):
            assert torch.equal(model(ids), plain)
            assert not torch.allclose(model(ids), plain, atol=1e-3)
        assert torch.equal(model(ids), plain)


def test_observers_see_that_a_masked_key_receives_nothing(golden: Path) -> None:
    model = sl.load(golden / "llada")
    ids = torch.tensor([ROWS[0]])
    with torch.no_grad():
        with sl.observe(model) as clean:
            model(ids)
        with sl.intervene(model, MaskSinks(top=1)), sl.observe(model) as seen:
            model(ids)
            model(ids)
    sinks = clean.received.argmax(-1, keepdim=True)
    assert not seen.steps[1].received.gather(-1, sinks).any()
    assert (seen.steps[1].received > 0).sum() == sinks.numel() * (ids.shape[1] - 1)
