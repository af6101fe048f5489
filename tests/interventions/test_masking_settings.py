"""Every other way to rank, to share and to deny, on whole runs, against the rule replayed in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinklens as sl
from interventions.replayed import Probe, Replay, probed, truth_of
from interventions.test_masking_models import ARM, DLM, LLADA, ROWS, Uncached, arm, assert_follows
from interventions.test_masking_rule import logits_call, model, step_through
from sinklens.attention.clock import StepNumber, at_step
from sinklens.errors import UsageError
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.random_keys import RandomKeys

DREAM = sl.DreamSampler(steps=5, length=8, alg="entropy")
LONG = [[17, 42, 8, 59, 23, 61, 9, 31], [5, 6, 7, 1]]


def denied(one: Any) -> np.ndarray:
    """What a call lost, [row, head, query, key]."""
    return truth_of(one.incoming).visible & ~truth_of(one.effective).visible  # type: ignore[no-any-return]


SETTINGS: list[dict[str, Any]] = [
    {"top": 2, "source": "same_step"},
    {"top": 2, "source": "same_step", "prefill": "masked"},
    {"positions": [0, 3]},
    {"positions": [7, 9], "prefill": "clean"},
    {"top": 2, "scope": "layer"},
    {"top": 2, "scope": "model"},
    {"epsilon": 0.2},
    {"epsilon": 0.1, "scope": "layer"},
    {"epsilon": 0.3, "source": "same_step"},
    {"top": 2, "queries": "generated"},
    {"top": 2, "queries": "masked"},
    {"top": 2, "queries": "unmasked", "measure": "after"},
]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *(("llada", settings) for settings in (*SETTINGS, {"top": 2, "queries": "block"})),
        *(("dream", settings) for settings in SETTINGS),
    ],
    ids=str,
)
def test_diffusion_models(golden: Path, family: str, settings: dict[str, Any]) -> None:
    speaker = sl.load(golden / family)
    with probed(speaker, MaskSinks(**settings)) as (lab, seen):
        sl.generate(speaker, ROWS, LLADA if family == "llada" else DREAM)
    fixed = {"source": "fixed", "prefill": settings.get("prefill", "masked")} if "positions" in settings else {}
    assert_follows(lab, seen, Replay(**({"top": None} | DLM | settings | fixed)))


@pytest.mark.parametrize(
    "settings",
    [
        {"top": 2, "source": "same_step"},
        {"top": 2, "source": "same_step", "prefill": "masked", "rank_by": "received"},
        {"positions": [0, 4]},
        {"positions": [0], "prefill": "masked"},
        {"top": 2, "scope": "layer", "rank_by": "received"},
        {"top": 2, "scope": "model"},
        {"epsilon": 0.5},
    ],
    ids=str,
)
def test_decoders_with_a_cache(settings: dict[str, Any]) -> None:
    speaker = arm()
    with probed(speaker, MaskSinks(**settings)) as (lab, seen):
        sl.generate(speaker, ROWS, sl.AutoregressiveSampler(length=6))
    fixed = {"source": "fixed"} if "positions" in settings else {}
    assert_follows(lab, seen, Replay(**({"top": None} | ARM | settings | fixed)))


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"top": 2, "queries": "generated"}, {"queries": "generated", "keys": "recomputed"}),
        ({"top": 2, "source": "same_step"}, {}),
        ({"top": 2, "source": "same_step", "prefill": "masked"}, {}),
        ({"positions": [0], "keys": "recomputed"}, {"source": "fixed", "prefill": "masked", "queries": "all"}),
        ({"top": 1, "source": "same_step", "queries": "all", "prefill": "masked"}, {"keys": "recomputed"}),
    ],
    ids=str,
)
def test_decoders_without_a_cache(settings: dict[str, Any], meant: dict[str, Any]) -> None:
    speaker = arm()
    with probed(speaker, MaskSinks(**settings)) as (lab, seen):
        sl.generate(Uncached(speaker), ROWS, sl.AutoregressiveSampler(length=5))
    assert_follows(lab, seen, Replay(**({"top": None} | ARM | settings | meant)))


def test_a_masked_prefill_is_masked_as_a_whole_and_then_kept() -> None:
    """Fixed positions: cached or recomputed, the same queries were denied the same keys."""
    speaker, sampler = arm(), sl.AutoregressiveSampler(length=8)
    runs = []
    for where, settings in ((speaker, {"prefill": "masked"}), (Uncached(speaker), {"keys": "recomputed"})):
        with sl.intervene(speaker, MaskSinks(positions=[4, 5, 6], **settings)):
            runs.append(sl.generate(where, LONG, sampler).ids.tolist())
    with sl.intervene(speaker, MaskSinks(positions=[4, 5, 6])):
        clean = sl.generate(speaker, LONG, sampler).ids.tolist()
    assert runs[0] == runs[1] != clean


def test_a_global_mask_of_the_first_token_deletes_it() -> None:
    """Causal, recomputed, every layer and head: the model computes what it computes without the token."""
    speaker, ids = arm("gpt2").model, torch.tensor([[5, 17, 42, 8, 9]])
    places = torch.arange(5)[None]
    with torch.no_grad():
        without = speaker(ids[:, 1:], position_ids=places[:, 1:], use_cache=False).logits
        with sl.intervene(speaker, MaskSinks(positions=[0], keys="recomputed")):
            masked = speaker(ids, position_ids=places, use_cache=False).logits
    torch.testing.assert_close(masked[:, 1:], without, atol=1e-4, rtol=1e-4)


# --- the shadow pass --------------------------------------------------------------------------------------------------


def clean_calls(speaker: Any, canvas: Tensor, mask: Tensor | None) -> list[Any]:
    """The attention calls of an unmasked forward."""
    probe = Probe()
    with sl.intervene(speaker, probe), torch.no_grad():
        speaker(canvas, attention_mask=mask)
    return probe.seen


def clean_tops(call: Any, top: int, rank_by: str = "received") -> list[list[set[int]]]:
    truth = truth_of(call)
    real = np.ones(call.query.shape[::2], dtype=bool) if call.real_queries is None else call.real_queries.numpy()
    if rank_by == "last_row":
        real = real & (np.arange(real.shape[1]) == real.shape[1] - 1)
    scores = truth.received(real)
    if call.real_keys is not None:
        scores = np.where(call.real_keys.numpy()[:, None], scores, -1.0)
    return [[set(np.argsort(-head, kind="stable")[:top].tolist()) for head in row] for row in scores]


def lists_of(one: Any) -> list[list[set[int]]]:
    return [[set(np.flatnonzero(head[-1]).tolist()) for head in row] for row in denied(one)]


@pytest.mark.parametrize(("settings", "back"), [({"measure": "shadow"}, 1), ({"source": "same_input"}, 0)], ids=str)
@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_a_shadow_pass_ranks_the_model_as_if_nothing_were_masked(
    golden: Path, family: str, settings: dict[str, str], back: int
) -> None:
    """Read again from canvases, unmasked, outside the run."""
    speaker = arm() if family == "llama" else sl.load(golden / family)
    samplers: dict[str, Any] = {"llada": LLADA, "dream": DREAM, "llama": sl.AutoregressiveSampler(length=5)}
    with probed(speaker, MaskSinks(top=2, **settings)) as (lab, seen):
        out = sl.generate(speaker, LONG, samplers[family])
    steps = [dose.step for dose in lab.doses]
    assert len(seen) == len(steps)  # nobody else heard of the shadow passes
    mask = torch.ones_like(out.ids)
    mask[1, :4] = 0
    compared = 0
    for one, step in zip(seen, steps, strict=True):
        layer = one.incoming.site.layer
        if step == 0:
            assert not denied(one).any()
            continue
        canvas = out.ids[:, : out.prompt_length + step - back] if family == "llama" else out.canvases[step - back]
        clean = clean_calls(speaker, canvas, mask[:, : canvas.shape[1]])[layer].incoming
        assert lists_of(one) == clean_tops(clean, 2, "last_row" if family == "llama" else "received")
        compared += 1
    assert compared > 4


@pytest.mark.parametrize("scope", ["layer", "model"])
@pytest.mark.parametrize(
    ("settings", "back"), [({"measure": "shadow"}, 1), ({"source": "same_input", "prefill": "masked"}, 0)], ids=str
)
def test_a_shadow_pass_can_rank_heads_and_layers_together(
    golden: Path, settings: dict[str, str], back: int, scope: str
) -> None:
    speaker = sl.load(golden / "llada")
    with probed(speaker, MaskSinks(top=6, scope=scope, **settings)) as (_, seen):
        out = sl.generate(speaker, LONG[0], LLADA)
    for one in seen:
        step, layer = int(one.incoming.site.step), one.incoming.site.layer
        if step < back:
            continue
        clean = clean_calls(speaker, out.canvases[step - back], None)
        meant = [clean[layer]] if scope == "layer" else clean
        total = sum(truth_of(each.incoming).weights.sum((1, 2)) for each in meant)
        tops = [set(np.argsort(-row, kind="stable")[:6].tolist()) for row in total]
        assert lists_of(one) == [[tops[0]] * one.incoming.query.shape[1]]


def test_cached_keys_of_a_diffusion_model_are_those_of_a_pass_without_the_mask(golden: Path) -> None:
    speaker = sl.load(golden / "llada")
    mask = torch.ones(2, 8 + LLADA.length, dtype=torch.long)
    mask[1, :4] = 0
    with probed(speaker, MaskSinks(top=2, keys="cached")) as (lab, seen):
        out = sl.generate(speaker, LONG, LLADA)
    far = 0.0
    for one in seen:
        step, layer = int(one.incoming.site.step), one.incoming.site.layer
        clean = clean_calls(speaker, out.canvases[step], mask)[layer].incoming
        torch.testing.assert_close(one.effective.key, clean.key, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(one.effective.value, clean.value, atol=1e-5, rtol=1e-5)
        far = max(far, float((one.incoming.key - clean.key).abs().max()))
    assert far > 0.01  # the masked run itself has others
    kept = [replace_seen(one) for one in seen]
    replay = Replay(top=2, **DLM)
    replay.follow(kept)
    assert [dose.removed for dose in lab.doses] == pytest.approx([row[3] for row in replay.doses], abs=2e-5)


def replace_seen(one: Any) -> Any:
    """The call as if it had come with the keys it was computed with."""
    return replace(one, incoming=replace(one.incoming, key=one.effective.key, value=one.effective.value))


def test_likelihoods_rank_the_same_input(golden: Path) -> None:
    """One forward, no step before it: the ids are announced, and step 0 is masked on request."""
    speaker, ids = sl.load(golden / "llada"), torch.tensor([[5, 6, 7, 8, 9, 1, 2, 3]])
    settings = MaskSinks(top=2, source="same_input", prefill="masked")
    with torch.no_grad():
        plain = speaker(ids)
        with probed(speaker, settings) as (_, seen), at_step(StepNumber(0, canvas=ids)):
            masked = speaker(ids)
        assert torch.equal(speaker(ids), plain)
    assert not torch.allclose(masked, plain, atol=1e-3)
    assert [denied(one).sum() for one in seen] == [2 * 8 * one.incoming.query.shape[1] for one in seen]


def test_a_shadow_is_not_seen_by_observers_and_leaves_nothing_behind(golden: Path) -> None:
    speaker = sl.load(golden / "llada")
    with sl.observe(speaker) as outside, sl.intervene(speaker, MaskSinks(top=1, measure="shadow")):
        out = sl.generate(speaker, LONG[0], LLADA)
    assert len(outside.steps) == out.steps
    assert all(step.received.shape[0] == speaker.spec.layers for step in outside.steps)
    before = sl.generate(speaker, LONG[0], LLADA).ids
    with sl.intervene(speaker, MaskSinks(top=1, measure="shadow")):
        pass
    assert sl.generate(speaker, LONG[0], LLADA).ids.tolist() == before.tolist()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in speaker.modules())


@pytest.mark.parametrize(
    ("settings", "causal", "message"),
    [
        ({"queries": "masked"}, True, "queries='masked' is for masked diffusion models, but this one is causal"),
        ({"queries": "all", "keys": "cached"}, True, "queries='all' with keys='cached'"),
        ({"queries": "generated", "keys": "cached"}, True, "which denies every generated query when it is the newest"),
        ({"measure": "shadow"}, None, "has no spec; take what sinklens.load or"),
    ],
)
def test_what_a_family_cannot_do(settings: dict[str, str], causal: bool | None, message: str) -> None:
    for kind in (MaskSinks, RandomKeys):
        lab = torch.nn.Linear(1, 1) if causal is None else model(causal)
        with pytest.raises(UsageError, match=message):
            started = kind(top=1, **settings).start(lab)  # type: ignore[call-arg]
            step_through(started, [logits_call(torch.zeros(1, 1, 3, 3))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "top is None and epsilon is None; expected one of them"),
        ({"top": 1, "epsilon": 3}, "top is 1 and epsilon is 3; expected one of them"),
        ({"epsilon": -1}, "epsilon is -1; expected a finite number, 0 or more"),
        ({"epsilon": "3"}, "epsilon is '3'; expected a finite number"),
        ({"top": 1, "drop": 1}, "drop is 1; expected True or False"),
        ({"top": 1, "follow": None}, "follow is None; expected True or False"),
        ({"top": 1, "source": "now"}, "unknown source 'now'; expected one of 'previous_step', 'same_step'"),
        ({"top": 1, "source": "fixed"}, "source='fixed' needs positions"),
        ({"top": 1, "scope": "row"}, "unknown scope 'row'; expected one of 'head', 'layer', 'model'"),
        ({"top": 1, "source": "same_step", "measure": "after"}, "measure='after' with source='same_step'"),
        ({"top": 1, "source": "same_input", "measure": "before"}, "measure='before' with source='same_input'"),
        ({"top": 1, "source": "same_step", "scope": "model"}, "the later layers have not run yet"),
        ({"top": 1, "prefill": "masked"}, "before step 0 nothing was ranked"),
        ({"positions": []}, r"positions is \[\]; expected a list of canvas positions"),
        ({"positions": [0.5]}, r"positions is \[0.5\]; expected a list"),
        ({"positions": [0], "top": 1}, r"top=1 with positions=\[0\]: nothing is ranked"),
        ({"positions": [0], "scope": "layer"}, r"scope='layer' with positions=\[0\]"),
        ({"positions": [0], "source": "same_step"}, r"source='same_step' with positions=\[0\]; expected 'fixed'"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MaskSinks(**settings)


def test_queries_that_only_a_sampler_knows() -> None:
    for queries, message in (("block", "needs a sampler with blocks"), ("masked", "says which positions are masked")):
        with pytest.raises(UsageError, match=message):
            step_through(MaskSinks(top=1, queries=queries).start(model(False)), [logits_call(torch.zeros(1, 1, 3, 3))])


def test_a_shadow_needs_the_ids_of_a_sampler(golden: Path) -> None:
    speaker = sl.load(golden / "llada")
    message = "needs the ids of the step, which a sampler announces"
    with pytest.raises(UsageError, match=message), sl.intervene(speaker, MaskSinks(top=1, source="same_input")):
        speaker(torch.tensor([[1, 2, 3]]))


def test_a_shadow_of_a_model_that_calls_sdpa_itself() -> None:
    """No door of ours in it: its calls are overheard, in the shadow as outside."""
    speaker = OwnAttention()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    settings = MaskSinks(top=2, source="same_input", prefill="masked")
    with torch.no_grad(), sl.observe(speaker) as outside, probed(speaker, settings) as (_, seen):
        for step in range(2):
            with at_step(StepNumber(step, canvas=ids)):
                speaker(ids)
    assert len(outside.steps) == 2
    (first, _), clean = seen, clean_calls(speaker, ids, None)
    assert lists_of(first) == clean_tops(clean[0].incoming, 2)


class OwnAttention(torch.nn.Module):
    """One layer of two heads, with a spec and nothing else of ours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10)
        self.spec = replace(model(False).spec, heads=2, kv_heads=2, vocab_size=10)  # type: ignore[type-var]
        self.tokenizer = None

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids).view(*ids.shape, 2, 4).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        logits: Tensor = self.out(mixed.transpose(1, 2).reshape(*ids.shape, 8))
        return logits
