"""The denoising loops where the recorded runs do not reach: quirks, thresholds, early stops, refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import case, cases
from scripted_model import EOS, EOT, MASK, PAD, VOCAB, Scripted, always, random_logits

from sinklens.errors import ModelError, UsageError
from sinklens.sampling import dream
from sinklens.sampling.diffusion import DreamSampler, LLaDASampler
from sinklens.sampling.generate import generate, steps


def row(*proposals: float) -> torch.Tensor:
    """Logits of one position: `proposals` are those of the first ids, the rest is far below."""
    logits = torch.full((VOCAB,), -30.0)
    logits[: len(proposals)] = torch.tensor(proposals)
    return logits


@settings(deadline=None, max_examples=40)
@given(
    block=st.sampled_from([1, 2, 4, 8]),
    each=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 0.7]),
    remasking=st.sampled_from(["low_confidence", "random"]),
    cfg=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
def test_llada_fills_block_by_block_and_never_takes_back(
    *, block: int, each: int, temperature: float, remasking: str, cfg: float, seed: int
) -> None:
    sampler = LLaDASampler(
        steps=8 // block * each,
        length=8,
        block=block,
        temperature=temperature,
        remasking=remasking,
        cfg=cfg,
    )
    before = torch.tensor([[1, 2, 3] + [MASK] * 8] * 2)
    count = 0
    for step in steps(Scripted(random_logits), before[:, :3], sampler, seed=seed):
        kept = before != MASK
        assert torch.equal(step.canvas[kept], before[kept])
        assert step.block is not None
        assert not step.committed[:, step.block.stop :].any()
        assert not (before[:, 3 : step.block.start] == MASK).any()
        before, count = step.canvas, count + 1
    assert count == sampler.steps
    assert not (before == MASK).any()


@settings(deadline=None, max_examples=30)
@given(
    threshold=st.floats(0.05, 1.0),
    block=st.sampled_from([2, 4, 8]),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
def test_threshold_commits_what_exceeds_it_and_at_least_one_a_row(
    threshold: float, block: int, temperature: float, seed: int
) -> None:
    sampler = LLaDASampler(steps=8, length=8, block=block, threshold=threshold, temperature=temperature)
    before = torch.tensor([[1, 2] + [MASK] * 8, [3, 4] + [MASK] * 8])
    for step in steps(Scripted(random_logits), before[:, :2], sampler, seed=seed):
        assert step.block is not None
        waiting = (before == MASK) & (torch.arange(10) < step.block.stop)
        assert torch.equal(step.committed.any(dim=1), waiting.any(dim=1))
        assert bool((step.committed | ~(step.confidence > threshold)).all())
        assert bool(((step.committed & (step.confidence <= threshold)).sum(dim=1) <= 1).all())
        before = step.canvas
    assert not (before == MASK).any()


ONE_A_STEP = [
    found
    for found in cases("llada", "mmada")
    if found.sampler.steps == found.sampler.length and found.seed is None and not found.sampler.stop_at_eos
]


@pytest.mark.parametrize("found", ONE_A_STEP, ids=lambda found: f"{found.family}-{found.name}")
def test_threshold_1_is_one_at_a_time(checkpoint, found) -> None:
    sampler = replace(found.sampler, threshold=1.0)
    out = generate(checkpoint(found.family), found.prompt, sampler, attention_mask=found.attention_mask)
    assert torch.equal(out.canvases, found.canvases)


def test_threshold_takes_fewer_steps_and_says_how_many(checkpoint) -> None:
    found = case("llada", "block8_cfg0")
    sampler = LLaDASampler(steps=16, length=16, block=8, threshold=0.05)
    out = generate(checkpoint("llada"), found.prompt, sampler)
    assert 2 <= out.steps < 16
    assert out.canvases.shape[0] == out.steps + 1
    assert not (out.ids == 125).any()


def test_threshold_ends_although_the_mask_itself_is_likeliest() -> None:
    logits = row(1.0, 0.5)
    logits[MASK] = 5.0
    model = Scripted(lambda ids: logits.expand(*ids.shape, VOCAB))
    out = generate(model, [3], LLaDASampler(steps=4, length=4, block=4, threshold=0.9))
    assert (out.ids.tolist(), out.steps) == ([[3, 0, 0, 0, 0]], 4)
    kept = generate(model, [3], LLaDASampler(steps=4, length=4, block=4))
    assert kept.ids.tolist() == [[3, MASK, MASK, MASK, MASK]]  # as the original: it uses up its slots
    assert kept.lengths.tolist() == [0]


def test_masks_inside_the_prompt_compete_too() -> None:
    model = Scripted(always(1, 2, 3, 4, 5, 6))
    taken = list(steps(model, [7, MASK, 7], LLaDASampler(steps=3, length=3, block=3)))
    # Position 1 is the surest, and takes a slot of the block's three.
    assert [step.canvas[0].tolist() for step in taken] == [
        [7, 2, 7, MASK, MASK, MASK],
        [7, 2, 7, 4, MASK, MASK],
        [7, 2, 7, 4, 5, MASK],
    ]


def test_guidance_masks_all_that_was_given_and_shows_observers_the_first_half() -> None:
    model = Scripted(random_logits)
    taken = list(steps(model, [[1, 2], [3, 4]], LLaDASampler(steps=2, length=2, block=2, cfg=0.5)))
    ids, mask, number = model.seen[1]
    assert mask is None
    assert number == 1 and number.rows == 2 and number.block == range(2, 4)
    assert torch.equal(ids[:2], taken[0].canvas) and torch.equal(number.canvas, ids[:2])
    assert torch.equal(number.masked, ids[:2] == MASK)
    assert bool((ids[2:, :2] == MASK).all())
    assert torch.equal(ids[2:, 2:], ids[:2, 2:])  # what was generated since stays
    conditional, unconditional = random_logits(ids).chunk(2)
    guided = unconditional + 1.5 * (conditional - unconditional)
    last = taken[1].committed
    assert torch.equal(taken[1].canvas[last], guided.argmax(dim=-1)[last])


def test_confidence_of_eos_and_eot_is_0_at_temperature_0() -> None:
    # Position 1 proposes eos, 2 eot, 3 a word that is least sure, yet first.
    words = torch.stack([row(9.0), row(0.0), row(0.0), row(2.0, 1.9)])
    words[1, EOS], words[2, EOT] = 9.0, 9.0
    model = Scripted(lambda ids: words[: ids.shape[1]].expand(len(ids), -1, -1))
    settings = {"steps": 3, "length": 3, "block": 3, "confidence_eos_eot_inf": True}
    first = next(steps(model, [0], LLaDASampler(**settings)))
    assert first.canvas.tolist() == [[0, MASK, MASK, 0]]
    assert first.confidence[0, 1:3].tolist() == [0.0, 0.0]
    # Above temperature 0 only eot is held back, as in the original: eos wins.
    warm = next(steps(model, [0], LLaDASampler(**settings, temperature=1e-3), seed=0))
    assert warm.canvas.tolist() == [[0, EOS, MASK, MASK]]
    assert float(warm.confidence[0, 1]) > 0.9 and float(warm.confidence[0, 2]) == 0.0


def test_eos_can_be_kept_out_of_the_proposals() -> None:
    words = torch.stack([row(9.0), row(1.0)])
    words[1, EOS] = 9.0
    model = Scripted(lambda ids: words[: ids.shape[1]].expand(len(ids), -1, -1))
    settings = {"steps": 1, "length": 1, "block": 1}
    assert generate(model, [0], LLaDASampler(**settings)).ids.tolist() == [[0, EOS]]
    out = generate(model, [0], LLaDASampler(**settings, logits_eos_inf=True))
    assert out.ids.tolist() == [[0, 0]]
    assert words[1, EOS] == 9.0  # the model's own logits are left alone


def test_mmada_measures_confidence_in_float64() -> None:
    # In bfloat16 the two confidences are equal and the first position wins; in float64 the second is surer.
    words = torch.stack([row(0.0), row(3.0, 0.0), row(3.0, 0.0)]).bfloat16()
    words[1, 5] = -4.5
    script = lambda ids: words[: ids.shape[1]].expand(len(ids), -1, -1)  # noqa: E731
    sampler = LLaDASampler(steps=2, length=2, block=2)
    llada = next(steps(Scripted(script), [0], sampler))
    mmada = next(steps(Scripted(script, family="mmada"), [0], sampler))
    assert llada.confidence[0, 1] == llada.confidence[0, 2]
    assert mmada.confidence[0, 1] < mmada.confidence[0, 2]
    assert mmada.canvas.tolist() == [[0, MASK, 0]]


def test_llada_stops_when_every_row_has_an_eos_with_no_mask_before_it() -> None:
    model = Scripted(always(0, 1, EOS, 3, 4, 5, 6, 7, 8))
    settings = {"steps": 8, "length": 8, "block": 4}
    full = generate(model, [9], LLaDASampler(**settings))
    assert (full.steps, full.lengths.tolist()) == (8, [2])
    out = generate(model, [9], LLaDASampler(**settings, stop_at_eos=True))
    assert (out.steps, out.lengths.tolist()) == (2, [2])
    assert out.canvases[-1].tolist() == [[9, 1, EOS] + [MASK] * 6]
    assert out.ids.tolist() == [[9, 1, EOS] + [PAD] * 6]
    # An eos id of one's own ends the row for the lengths too.
    own = generate(model, [9], LLaDASampler(**settings, stop_at_eos=True, eos_id=3))
    assert (own.steps, own.lengths.tolist()) == (3, [3])
    # An eos of the prompt does not end the run.
    assert generate(model, [EOS], LLaDASampler(**settings, stop_at_eos=True)).steps == 2


def test_llada_goes_on_while_a_mask_stands_before_the_eos() -> None:
    # The eos at position 3 commits first; those before it must follow.
    script = always(0, 1, 2, EOS, 4)

    def reversed_script(ids: torch.Tensor) -> torch.Tensor:
        return script(ids) * torch.arange(1, ids.shape[1] + 1)[None, :, None]

    sampler = LLaDASampler(steps=4, length=4, block=4, stop_at_eos=True)
    out = generate(Scripted(reversed_script), [9], sampler)
    assert out.canvases[-1].tolist() == [[9, 1, 2, EOS, 4]]
    assert (out.steps, out.lengths.tolist()) == (4, [3])


def test_mmada_stops_after_a_block_that_ends_in_eot() -> None:
    model = Scripted(always(0, EOT, 2, 3, EOT, 5, 6, 7, 8), family="mmada")
    settings = {"steps": 8, "length": 8, "block": 2}
    out = generate(model, [9], LLaDASampler(**settings, stop_at_eos=True))
    # The eot at position 1 ends no block; the one at position 4 does.
    assert out.ids.tolist() == [[9, EOT, 2, 3, EOT, MASK, MASK, MASK, MASK]]
    assert (out.steps, out.lengths.tolist()) == (4, [4])


def test_the_shift_follows_from_the_model() -> None:
    canvas = torch.tensor([[1, 2, MASK, MASK]])
    logits = random_logits(canvas)
    for sampler in (
        LLaDASampler(steps=1, length=2, block=2),
        DreamSampler(steps=1, length=2, alg="entropy"),
    ):
        plain = generate(Scripted(random_logits), [1, 2], sampler)
        shifted = generate(Scripted(random_logits, shift=True), [1, 2], sampler)
        assert torch.equal(plain.ids[:, 2:], logits[:, 2:].argmax(dim=-1))
        assert torch.equal(shifted.ids[:, 2:], logits[:, 1:3].argmax(dim=-1))


def test_dream_leaves_finished_tokens_alone_where_rows_differ_in_masks() -> None:
    model = Scripted(random_logits)
    prompt = [[1, MASK, MASK, MASK], [1, 2, 3, 4]]
    for alg_temp in (None, 0.5):
        sampler = DreamSampler(steps=1, length=2, alg="entropy", alg_temp=alg_temp)
        out = generate(model, prompt, sampler, seed=0)
        assert out.ids[1, :4].tolist() == [1, 2, 3, 4]
        assert not (out.ids[1] == MASK).any()


@settings(deadline=None, max_examples=30)
@given(
    alg=st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"]),
    count=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 0.8]),
    top_p=st.sampled_from([None, 0.7]),
    top_k=st.sampled_from([None, 3]),
    seed=st.integers(0, 1000),
)
def test_dream_fills_everything_and_never_takes_back(
    *, alg: str, count: int, temperature: float, top_p: float | None, top_k: int | None, seed: int
) -> None:
    sampler = DreamSampler(steps=count, length=8, alg=alg, temperature=temperature, top_p=top_p, top_k=top_k)
    before = torch.tensor([[1, 2, 3] + [MASK] * 8] * 2)
    taken = list(steps(Scripted(random_logits), before[:, :3], sampler, seed=seed))
    for step in taken:
        assert torch.equal(step.canvas[before != MASK], before[before != MASK])
        assert bool(step.confidence.isnan().all()) == (alg == "origin" or not (before == MASK).any())
        before = step.canvas
    assert len(taken) == count
    assert not (before == MASK).any()


@pytest.mark.parametrize("tokens", [24, 256, 512])
def test_dream_commits_nothing_first_and_two_last(tokens: int) -> None:
    model = Scripted(lambda ids: torch.zeros(*ids.shape, VOCAB))
    sampler = DreamSampler(steps=tokens, length=tokens, alg="maskgit_plus")
    counts = [int(step.committed.sum()) for step in steps(model, [1], sampler)]
    assert counts == [0] + [1] * (tokens - 2) + [2]


@pytest.mark.parametrize("alg", ["origin", "maskgit_plus", "entropy"])
def test_dream_draws_nothing_where_a_row_in_bfloat16_does_not_add_up(alg: str) -> None:
    best = 0
    for seed in range(100):
        logits = (4 * torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(seed))).bfloat16()
        sampler = DreamSampler(steps=1, length=6, alg=alg, temperature=0.5)
        torch.manual_seed(0)
        with torch.no_grad():
            (step,) = sampler.run(Scripted(lambda ids, logits=logits: logits, vocab_size=32), torch.tensor([[1]]))
        found = torch.get_rng_state()
        torch.manual_seed(0)
        if alg == "origin":
            torch.rand(6)
        probabilities = (logits[0, 1:] / 0.5).softmax(dim=-1)
        try:
            expected = torch.distributions.Categorical(probs=probabilities, validate_args=True).sample()
        except ValueError:  # which the released code catches, whatever it is
            best += 1
            expected = probabilities.argmax(dim=-1)
        assert step.canvas[0, 1:].tolist() == expected.tolist()
        assert torch.equal(torch.get_rng_state(), found)
    assert 0 < best < 100


def released_order(logits: torch.Tensor, canvas: torch.Tensor, count: int) -> torch.Tensor:
    """`count` positions of a canvas of one row, by entropy and as torch.topk lets them fall."""
    probabilities = logits.softmax(dim=-1)
    confidence = (probabilities * torch.log(probabilities + 1e-10)).sum(dim=-1)
    return torch.where(canvas == MASK, confidence, -torch.inf).topk(count).indices[0]


@pytest.mark.parametrize("windows", [False, True])
def test_entropies_that_float16_does_not_hold_commit_first(windows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There ln(0 + 1e-10) is infinite and 0 times it NaN, which torch.topk takes for the greatest."""

    def script(ids: torch.Tensor) -> torch.Tensor:
        logits = random_logits(ids)
        logits[:, 2:4] *= 12
        return logits.half()

    if windows:
        monkeypatch.setattr(dream, "on_card", lambda _: True)
    before, unknown = torch.tensor([[1] + [MASK] * 6]), []
    taken = steps(Scripted(script), [1], DreamSampler(steps=6, length=6, alg="entropy"))
    for step, count in zip(taken, (0, 1, 1, 1, 1, 2), strict=True):
        logits = script(before)
        places = released_order(logits, before, count)
        expected = before.clone()
        expected[0, places] = logits.argmax(dim=-1)[0, places]
        assert torch.equal(step.canvas, expected)
        unknown.append(int((step.confidence.isnan() & (before == MASK)).sum()))
        before = step.canvas
    assert unknown[0] == 2 and unknown[-1] == 0


def test_entropies_that_float16_does_not_hold_cannot_be_drawn_by() -> None:
    sampler = DreamSampler(steps=2, length=4, alg="entropy", alg_temp=0.5)
    model = Scripted(lambda ids: (12 * random_logits(ids)).half())
    with pytest.raises(ModelError, match=r"float16 .* load the model in bfloat16 or float32, or leave alg_temp out"):
        generate(model, [1], sampler, seed=0)


@pytest.mark.parametrize("alg", ["origin", "maskgit_plus"])
def test_a_temperature_that_makes_logits_infinite_is_no_draw(alg: str) -> None:
    sampler = DreamSampler(steps=2, length=4, alg=alg, temperature=1e-5)
    with pytest.raises(ModelError, match="logits of step 0 hold NaN or infinite values"):
        generate(Scripted(lambda ids: random_logits(ids).half()), [1], sampler, seed=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "sampler", [LLaDASampler(steps=2, length=2, block=1), DreamSampler(steps=2, length=2, alg="entropy")]
)
def test_unusable_logits_name_the_step(sampler: Any, bad: float) -> None:
    def script(ids: torch.Tensor) -> torch.Tensor:
        logits = random_logits(ids)
        if (ids == MASK).sum() == 1 or isinstance(sampler, DreamSampler):
            logits[:, -1] = bad if bad == -torch.inf else logits[:, -1].index_fill(-1, torch.tensor(4), bad)
        logits[:, 0] = torch.nan  # a position that is not decided may hold anything
        return logits

    wrong = 0 if isinstance(sampler, DreamSampler) else 1
    with pytest.raises(ModelError, match=f"logits of step {wrong} hold NaN or infinite values"):
        generate(Scripted(script), [1], sampler)


def test_a_model_without_a_mask_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"DreamSampler needs a mask id, .* set ModelSpec.mask_id"):
        steps(Scripted(random_logits, mask_id=None), [1], DreamSampler(steps=2, length=2))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llada", {"logits_eos_inf": True}, "need eos_id, which neither"),
        ("llada", {"stop_at_eos": True}, "need eos_id, which neither"),
        ("llada", {"confidence_eos_eot_inf": True, "eos_id": 1}, "need eot_id, .*; set it in the sampler"),
        ("mmada", {"stop_at_eos": True}, "need eot_id, which neither"),
        (
            "llada",
            {"logits_eos_inf": True, "eos_id": VOCAB},
            "eos_id is 16; this model's ids go from 0 to 15",
        ),
    ],
)
def test_ids_that_are_needed_must_be_known(family: str, changes: dict[str, Any], message: str) -> None:
    model = Scripted(random_logits, family=family, eos_id=None, eot_id=None)
    with pytest.raises(UsageError, match=message):
        steps(model, [1], LLaDASampler(steps=2, length=2, block=2, **changes))


SIZES = {"steps": 8, "length": 8, "block": 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0; expected an integer of at least 1"),
        ({"block": -4}, "block is -4; expected an integer of at least 1"),
        ({"block": 3}, "length 8 is not a multiple of block 3; choose one that divides it"),
        ({"steps": 7}, "steps 7 cannot be shared by 2 blocks .* choose a multiple of 2"),
        ({"temperature": -0.1}, "temperature is -0.1; expected a finite number of at least 0"),
        ({"cfg": float("nan")}, "cfg is nan; expected a finite number"),
        ({"threshold": 0.0}, "threshold is 0.0; expected a number above 0 and at most 1"),
        ({"remasking": "best"}, "unknown remasking 'best'; expected one of 'low_confidence', 'random'"),
        ({"remasking": "random", "threshold": 0.5}, "threshold compares confidences"),
    ],
)
def test_llada_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LLaDASampler(**{**SIZES, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": True}, "steps is True; expected an integer of at least 1"),
        ({"alg": "margin"}, "unknown alg 'margin'; expected one of 'origin', 'maskgit_plus'"),
        ({"top_p": 1.1}, "top_p is 1.1; expected a number above 0"),
        ({"top_k": 0}, "top_k is 0; expected an integer of at least 1"),
        ({"alg": "entropy", "alg_temp": -1.0}, "alg_temp is -1.0; expected a finite number of at least 0"),
        ({"alg_temp": 0.5}, "alg 'origin' has none; choose another alg"),
        ({"eps": 1.0}, "eps is 1.0; expected a number above 0 and below 1"),
    ],
)
def test_dream_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DreamSampler(**{"steps": 8, "length": 8, **changes})
