"""A trace of a real run: what is on disk is what observing and generating give, for canvases and for causal models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sinklens as sl
import sinklens.run
from attention.zoo import rows
from sampling.tiny_causal import tiny_causal
from sinklens.attention.clock import StepNumber, at_step
from sinklens.attention.seam import scopes_of
from sinklens.errors import ObservationError, UsageError
from sinklens.models.load import wrap
from sinklens.recording.plan import plan_trace
from sinklens.recording.rows import RowMaker, StepNumbers
from sinklens.recording.steps import Recorder
from sinklens.recording.wanted import Wanted
from sinklens.verification.certificate import describe_files, write_certificate

PROMPT = [17, 42, 8, 99, 23]
LLADA = sl.LLaDASampler(steps=8, length=16, block=8)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run warns of. Not by catch_warnings, which is no matter for two threads: types are checked in the one that
    writes, too, and what makes those checks catches warnings of its own."""
    texts: list[str] = []
    monkeypatch.setattr(sinklens.run, "warnings", SimpleNamespace(warn=lambda text, **_: texts.append(text)))
    return texts


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", LLADA),
        ("llada", sl.LLaDASampler(steps=4, length=8, block=8, cfg=0.5, temperature=0.7)),
        ("mmada", sl.LLaDASampler(steps=4, length=8, block=4)),
        ("dream", sl.DreamSampler(steps=6, length=10, alg="entropy", temperature=0.3)),
    ],
)
def test_a_trace_holds_what_observing_gives(golden: Path, tmp_path: Path, family: str, sampler: Any) -> None:
    model = sl.load(golden / family)
    made = sl.trace(model, [PROMPT], sampler, to=tmp_path / "t", seed=3, exact=True)
    groups = {"masked": lambda step: step.masked}
    with sl.observe(model, groups=groups, hidden_norms=True, ranks=True) as seen:
        out = sl.generate(model, [PROMPT], sampler, seed=3)
    assert made.complete and made.samples == [0]
    canvases = made.canvases(0)
    assert out.canvases is not None
    np.testing.assert_array_equal(canvases.ids, out.canvases[:-1, 0])
    np.testing.assert_array_equal(canvases.masked, out.canvases[:-1, 0] == model.spec.mask_id)
    decided = (out.canvases[:-1, 0] == model.spec.mask_id) & (out.canvases[1:, 0] != model.spec.mask_id)
    np.testing.assert_array_equal(canvases.committed, decided)  # a proposed mask is no commit: it stays a mask
    np.testing.assert_array_equal(made.info(0).ids, out.ids[0])
    for number in range(model.spec.layers):
        layer = made.layer(0, number, groups=True, norms=True)
        stacked = {
            name: np.stack([getattr(step, name)[number, 0].numpy() for step in seen.steps])
            for name in ("received", "expected", "viewers", "key_norm", "value_norm", "output_norm", "output_rank",
                         "output_size", "hidden_norm")
        }  # fmt: skip
        for name, values in stacked.items():
            np.testing.assert_allclose(getattr(layer, name), values, rtol=1e-6, atol=1e-7, err_msg=name)
        masked = np.stack([step.groups["masked"][number, 0].numpy() for step in seen.steps])
        np.testing.assert_allclose(layer.groups["masked"].received, masked, rtol=1e-5, atol=1e-6)
        both = layer.groups["masked"].received + layer.groups["unmasked"].received
        np.testing.assert_allclose(both, layer.received, rtol=1e-5, atol=1e-5)
        counts = canvases.masked.sum(-1)[:, None, None]
        assert (layer.groups["masked"].viewers == counts).all()


def uncached(model: Any) -> Any:
    """The same causal model without a cache: every step runs on all ids."""
    whole = wrap(model)
    whole.__class__ = type("Whole", (type(whole),), {"decode": None})
    return whole


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_causal_trace_sums_over_all_queries_so_far(tmp_path: Path, name: str, cached: bool) -> None:
    row = next(row for row in rows() if row.name == name)
    model = row.build("sdpa")
    traced = wrap(model) if cached else uncached(model)
    made = sl.trace(
        traced, [PROMPT[:2], [5, 6, 7, 9]], sl.AutoregressiveSampler(length=9), to=tmp_path / "t", exact=True
    )
    ids = torch.tensor(made.info(1).ids)[None].long()
    eager = row.build("eager")
    steps = made.canvases(1).ids.shape[0]
    assert steps == 9 or made.info(1).ids[-1] == model.config.pad_token_id
    with torch.no_grad():
        output = eager(ids, output_attentions=True, output_hidden_states=True)
    for number in range(model.config.num_hidden_layers):
        maps = output.attentions[number][0].numpy()  # [head, query, key]; causal, so rows do not change later
        layer = made.layer(1, number, groups=True, norms=True)
        for step in range(steps):
            keys = 4 + step
            np.testing.assert_allclose(layer.received[step, :, :keys], maps[:, :keys, :keys].sum(1), atol=2e-5)
            np.testing.assert_allclose(
                layer.groups["last_row"].received[step, :, :keys], maps[:, keys - 1, :keys], atol=2e-5
            )
            assert np.isnan(layer.received[step, :, keys:]).all()
            assert layer.viewers[step, 0, 0] == (keys if name != "gemma3" or number else min(keys, 5))
            assert layer.groups["last_row"].viewers[step, 0, keys - 1] == 1
        assert layer.hidden_norm is not None
        if number + 1 < model.config.num_hidden_layers:  # the last hidden state is behind a final norm
            norms = output.hidden_states[number + 1][0].norm(dim=-1).numpy()
            np.testing.assert_allclose(layer.hidden_norm[-1, :keys], norms[:keys], rtol=1e-4)
    canvases = made.canvases(1)
    assert not canvases.masked.any() and canvases.prompt_length == 4
    assert (canvases.committed.argmax(-1)[: steps - 1] == np.arange(4, 4 + steps - 1)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_what_a_step_has_handed_over_is_not_changed_by_those_behind_it(golden: Path, causal: bool) -> None:
    """The writer keeps arrays as they are until their row group is made, many steps later."""
    window = next(row for row in rows() if row.name == "gemma3")
    model = wrap(window.build("sdpa")) if causal else sl.load(golden / "llada")
    sampler = sl.AutoregressiveSampler(length=6) if causal else LLADA
    wanted = Wanted(layers=tuple(range(model.spec.layers)), heads=tuple(range(model.spec.heads)))
    kept, copies = [], []
    maker = RowMaker(model.spec, wanted, np.array(PROMPT[:3]))
    for made in Recorder(model, PROMPT[:3], sampler, wanted=wanted, seed=0).numbers():
        with made as numbers:
            attention = maker.rows(numbers).attention
        assert attention is not None
        parts = {"all": attention, **attention.groups}
        arrays = [value for part in parts.values() for value in vars(part).values() if isinstance(value, np.ndarray)]
        kept.append(arrays)
        copies.append([array.copy() for array in arrays])
    assert len(kept) > 2
    for now, then in zip(kept, copies, strict=True):
        for one, other in zip(now, then, strict=True):
            np.testing.assert_array_equal(one, other)


def test_layers_heads_and_every_nth_step(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    whole = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "whole")
    part = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "part", layers=[2], heads=[1, 3], every=3, norms=False)
    assert part.layers == [2] and part.heads == [1, 3]
    layer = part.layer(0, 2)
    np.testing.assert_array_equal(layer.steps, [0, 3, 6])
    np.testing.assert_array_equal(layer.received, whole.layer(0, 2).received[::3][:, [1, 3]])
    np.testing.assert_array_equal(part.canvases(0).ids, whole.canvases(0).ids)
    assert part.layer(0, 2, norms=True).key_norm is None


def test_every_nth_step_of_a_causal_run_still_sums_all(tmp_path: Path) -> None:
    model = tiny_causal("llama")
    sampler = sl.AutoregressiveSampler(length=8)
    whole = sl.trace(model, [[5, 6, 7]], sampler, to=tmp_path / "whole")
    part = sl.trace(model, [[5, 6, 7]], sampler, to=tmp_path / "part", every=3)
    np.testing.assert_array_equal(part.layer(0, 1).received, whole.layer(0, 1).received[::3])


def test_maps_are_kept_where_asked(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    made = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t", maps=[(1, 2, 3), (1, 2, 4)], exact=True)
    found = {(step, layer, head): values for step, layer, head, values in made.maps(0)}
    assert set(found) == {(3, 1, 2), (4, 1, 2)}
    with sl.observe(model, maps=[(1, 2)]) as seen:
        model(torch.tensor(made.canvases(0).ids[3:4]).long())
    np.testing.assert_allclose(found[3, 1, 2], seen.maps[1, 2][0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found[3, 1, 2].sum(0), made.layer(0, 1).received[3, 2], rtol=1e-4)


@pytest.mark.parametrize("detail", ["full", "sinks"])
def test_nothing_is_kept_of_arrays_that_are_gone(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detail: str
) -> None:
    """Those of a step on a card lie where those of a later one will."""
    model, lent = sl.load(golden / "llada"), Recorder._numbers
    options: dict[str, Any] = {"maps": [(1, 2, step) for step in range(4)], "detail": detail}

    @contextmanager
    def taken_back(*given: Any, **named: Any) -> Iterator[StepNumbers]:
        with lent(*given, **named) as numbers:
            seen = numbers.attention
            assert seen is not None
            maps = {site: np.ascontiguousarray(values) for site, values in seen.maps.items()}
            yield replace(numbers, attention=replace(seen, maps=maps))
            for array in (*seen.arrays.values(), *maps.values(), seen.hidden):
                assert array is not None
                array[...] = -1

    whole = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "whole", **options)
    monkeypatch.setattr(Recorder, "_numbers", taken_back)
    made = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t", **options)
    for table in ("attention", "uniform", "norms", "hidden", "maps"):
        assert made.table(table).equals(whole.table(table)), table
    assert len(made.table("maps")) == 4


def test_a_map_of_a_step_that_never_ran_is_said(golden: Path, tmp_path: Path, told: list[str]) -> None:
    sl.trace(sl.load(golden / "llada"), [PROMPT], LLADA, to=tmp_path / "t", maps=[(0, 0, 99)])
    assert told == ["no map of layer 0, head 0 at step 99 in prompt 0: the run was not that long"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": [3]}, r"layers is \[3\]; expected numbers from 0 to 2"),
        ({"heads": []}, "heads is"),
        ({"every": 0}, "every is 0"),
        ({"detail": "some"}, "unknown detail 'some'"),
        ({"maps": [(0, 9, 0)]}, "head 9"),
        ({"maps": [(0, 1, 1)], "every": 2}, "multiples of 2"),
        ({"maps": [(0, 1)]}, r"expected \(layer, head, step\)"),
        ({"seed": -(2**70)}, "seed is"),
        ({"chat": True}, "chat format is for text"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    golden: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        sl.trace(sl.load(golden / "llada"), [PROMPT], LLADA, to=tmp_path / "t", **wrong)
    assert not (tmp_path / "t").exists()


def test_resuming_needs_the_same_run_and_says_what_differs(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t")
    again = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t", resume=True)  # nothing is left to do
    assert again.complete
    with pytest.raises(UsageError, match="seed: 0 there, 1 now"):
        sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t", resume=True, seed=1)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    with pytest.raises(UsageError, match="weights_sha256"):
        sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t", resume=True)
    with pytest.raises(UsageError, match="already holds a trace"):
        sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t")


def test_what_a_sliding_window_forgets_keeps_its_norms_and_null_terms_add_up(tmp_path: Path) -> None:
    sampler = sl.AutoregressiveSampler(length=9)
    model = next(row for row in rows() if row.name == "gemma3").build("sdpa")
    layer = sl.trace(model, [[5, 6, 7, 9]], sampler, to=tmp_path / "gemma3", exact=True).layer(0, 0, norms=True)
    assert layer.key_norm is not None and layer.output_norm is not None
    there = ~np.isnan(layer.received[:, 0])
    for norms in (layer.key_norm, layer.output_norm):
        for head in range(norms.shape[1]):
            assert (norms[:, head][there] > 0).all()  # of keys outside the window too
            np.testing.assert_allclose(norms[-1, head, :4], norms[0, head, :4], rtol=1e-5)  # cached keys do not change
    oss = next(row for row in rows() if row.name == "gpt_oss").build("eager")
    layer = sl.trace(oss, [[5, 6, 7, 9]], sampler, to=tmp_path / "oss", exact=True).layer(0, 1)
    assert layer.null_mass is not None
    sums = np.nansum(layer.received, axis=-1) + layer.null_mass
    np.testing.assert_allclose(sums, 4 + np.arange(len(layer.steps))[:, None] + np.zeros(4), rtol=1e-4)


def test_a_sample_that_ends_before_a_map_has_none(tmp_path: Path, told: list[str]) -> None:
    model = tiny_causal("llama")
    first = sl.generate(model, [[5, 6, 7]], sl.AutoregressiveSampler(length=8)).ids[0, 3:].tolist()
    model = tiny_causal("llama", eos_token_id=first[2])
    sampler = sl.AutoregressiveSampler(length=8)
    made = sl.trace(model, [[5, 6, 7], [9, 10, 12]], sampler, to=tmp_path / "t", maps=[(0, 0, 6)])
    assert [made.info(sample).steps for sample in (0, 1)] == [3, 8]
    assert any("at step 6 in prompt 0: the run was not that long" in text for text in told)
    assert made.info(0).positions <= 6 < len(made.info(0).ids)  # what is filled in behind the end is no position
    assert made.maps(0) == [] and len(made.maps(1)) == 1
    assert made.table("maps").num_rows == made.dataset("maps").count_rows() == 1


def test_samples_have_seeds_of_their_own(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    sampler = sl.LLaDASampler(steps=8, length=8, block=8, temperature=1.0)
    both = sl.trace(model, [PROMPT, PROMPT], sampler, to=tmp_path / "both", seed=7)
    second = sl.trace(model, [PROMPT], sampler, to=tmp_path / "second", seed=8)
    assert both.info(0).ids.tolist() != both.info(1).ids.tolist()
    assert both.info(1).ids.tolist() == second.info(0).ids.tolist()


def test_text_is_encoded_and_tokens_are_named(talking_llada: Path, tmp_path: Path) -> None:
    model = sl.load(talking_llada)
    made = sl.trace(model, ["one two", "three"], LLADA, to=tmp_path / "t")
    assert [made.info(sample).prompt for sample in made.samples] == ["one two", "three"]
    canvases = made.canvases(0)
    assert canvases.classes[model.spec.mask_id] == "mask"
    first = int(canvases.ids[0, 0])
    assert canvases.tokens[first] == model.tokenizer.decode([first])
    assert made.info(0).text == sl.generate(model, "one two", LLADA, seed=0).text[0]


class Silent:
    """A sampler that does not announce its steps."""

    length = 4

    def run(self, model: Any, prompt: Any, attention_mask: Any = None) -> Iterator[sl.Step]:
        canvas = torch.cat([prompt, prompt.new_full((1, 4), model.spec.mask_id)], 1)
        for place in range(prompt.shape[1], canvas.shape[1]):
            tokens = model(canvas).argmax(-1)
            canvas = canvas.clone()
            canvas[:, place] = tokens[:, place]
            committed = torch.zeros_like(canvas, dtype=torch.bool)
            committed[:, place] = True
            yield sl.Step(index=0, canvas=canvas, committed=committed, confidence=torch.zeros(canvas.shape))


class Announcing(Silent):
    def run(self, model: Any, prompt: Any, attention_mask: Any = None) -> Iterator[sl.Step]:
        canvas = torch.cat([prompt, prompt.new_full((1, 4), model.spec.mask_id)], 1)
        run = super().run(model, prompt)
        for index in range(4):
            with at_step(StepNumber(index, canvas=canvas)):
                step = next(run)
            canvas = step.canvas
            yield step


def test_a_sampler_of_ones_own_must_say_what_it_reads(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")
    with pytest.raises(ObservationError, match="does not say what its forwards read"):
        sl.trace(model, [PROMPT], Silent(), to=tmp_path / "silent")
    made = sl.trace(model, [PROMPT], Announcing(), to=tmp_path / "spoken")
    assert made.manifest["sampler"] == {"name": "Announcing"}
    assert made.canvases(0).masked.sum(-1).tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("said", [{}, {"steps": "all"}, {"steps": [4, 4]}, {"steps": True}])
def test_a_sampler_of_ones_own_may_say_anything(golden: Path, tmp_path: Path, said: dict[str, Any]) -> None:
    """Of its steps, which a built-in sampler tells in numbers."""
    sampler = SimpleNamespace(run=LLADA.run, **said)
    model = sl.load(golden / "llada")
    plan = plan_trace(model, [PROMPT], sampler)
    assert (plan.steps, plan.keys) == (1, [len(PROMPT)]) and plan.estimate() > 0
    assert sl.trace(model, [PROMPT], sampler, to=tmp_path / "t").complete


def test_a_samplers_numbers_are_taken(golden: Path) -> None:
    model = sl.load(golden / "llada")
    for said, steps in (({"steps": np.int64(6)}, 6), ({"length": 9}, 9), ({"steps": 0, "length": 9}, 9)):
        plan = plan_trace(model, [PROMPT], SimpleNamespace(run=LLADA.run, **said))
        assert plan.steps == steps and plan.keys == [len(PROMPT) + said.get("length", 0)]


class SideAttention(torch.nn.Identity):
    """What makes a block of whoever has it."""


class Aside(torch.nn.Module):
    """A block that the model runs beside its own, of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = SideAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(x)


def test_blocks_that_are_no_layers_have_no_hidden_norms(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sl.load(golden / "llada")
    model.aside = torch.nn.ModuleList([Aside()])
    forward = model.forward

    def both(ids: torch.Tensor, *given: Any, **named: Any) -> Any:
        model.aside[0](torch.ones(len(ids), 2, 4))
        return forward(ids, *given, **named)

    monkeypatch.setattr(model, "forward", both)
    made = sl.trace(model, [PROMPT], LLADA, to=tmp_path / "t")
    assert made.complete and made.layer(0, 1, norms=True).hidden_norm is None


def test_a_trace_carries_the_certificate_of_its_model(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "verify-llada").mkdir(parents=True)
    files = describe_files(golden / "llada")
    write_certificate(tmp_path / "runs" / "verify-llada", {"verdict": "agrees", "files": files})
    for family, verdict in (("llada", "agrees"), ("mmada", None)):
        made = sl.trace(sl.load(golden / family), [PROMPT], LLADA, to=tmp_path / family)
        found = made.manifest["certificate"]
        assert (None if found is None else found["verdict"]) == verdict


def test_nothing_stays_behind_when_something_goes_wrong_on_the_way(golden: Path, tmp_path: Path) -> None:
    model = sl.load(golden / "llada")

    def stop(sample: int, samples: int, step: int) -> None:
        if (sample, step) == (1, 3):
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as caught:
        sl.trace(model, [PROMPT, PROMPT], LLADA, to=tmp_path / "t", progress=stop)
    assert caught.value.__traceback__ is not None  # and with it every frame on the way
    assert not any(scopes_of(module) for module in model.modules())
    half = sl.open_trace(tmp_path / "t")
    assert half.samples == [0] and not half.complete
    assert not list((tmp_path / "t" / "samples").glob("*.part"))


def test_the_manifest_says_what_ran(golden: Path, tmp_path: Path) -> None:
    manifest = sl.trace(
        sl.load(golden / "dream"), [PROMPT], sl.DreamSampler(steps=4, length=4, alg="origin"), to=tmp_path / "t"
    ).manifest
    assert manifest["model"]["name"] == "dream" and manifest["model"]["family"] == "dream"
    assert manifest["sampler"]["alg"] == "origin" and manifest["seed"] == 0
    assert manifest["impl"] == ["chunked"] and manifest["kernel"] == ["sdpa"]
    assert manifest["versions"]["torch"] == torch.__version__
    assert len(manifest["model"]["weights_sha256"]) == 64 and manifest["certificate"] is None
