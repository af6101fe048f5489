"""The controls: the budget, the steps and the queries of MaskSinks, other keys."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sinklens as sl
from interventions.rankings import ranking, scored
from interventions.replayed import probed, truth_of
from interventions.test_masking_models import ROWS, arm
from interventions.test_masking_rule import at, hidden_keys, logits_call, model, step_through
from sinklens.attention.clock import StepNumber, at_step
from sinklens.errors import UsageError
from sinklens.interventions.first_token import FirstToken
from sinklens.interventions.mask_sinks import MaskSinks
from sinklens.interventions.mass_matched import SHORT, MassMatched
from sinklens.interventions.next_ranked import NextRanked
from sinklens.interventions.other_head import OtherHead
from sinklens.interventions.position_matched import PositionMatched
from sinklens.interventions.random_keys import RandomKeys
from sinklens.interventions.stale_step import StaleStep

LONG = [[17, 42, 8, 59, 23, 61, 9, 31], [5, 6, 7, 1, 3], [11, 12, 13, 14, 15, 16]]
CONTROLS: dict[str, Any] = {
    "random": RandomKeys,
    "next": NextRanked,
    "position": PositionMatched,
    "other-head": OtherHead,
    "stale": lambda **more: StaleStep(lag=2, **more),
    "first": FirstToken,
    "mass": MassMatched,
}


def denied(one: Any) -> np.ndarray:
    return truth_of(one.incoming).visible & ~truth_of(one.effective).visible  # type: ignore[no-any-return]


def run(name: str, golden: Path, settings: Any) -> tuple[Any, Any, Any]:
    speaker = arm() if name == "llama" else sl.load(golden / name)
    samplers: dict[str, Any] = {
        "llada": sl.LLaDASampler(steps=6, length=12, block=6),
        "dream": sl.DreamSampler(steps=5, length=10, alg="entropy"),
        "llama": sl.AutoregressiveSampler(length=5),
    }
    with probed(speaker, settings) as (lab, seen):
        out = sl.generate(speaker, LONG, samplers[name])
    return lab, seen, out


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_the_same_steps_queries_and_number_of_keys(golden: Path, name: str, control: str) -> None:
    _, sinks, _ = run(name, golden, MaskSinks(top=2))
    lab, seen, out = run(name, golden, CONTROLS[control](top=2))
    for one, other in zip(seen, sinks, strict=True):
        late = control == "stale" and one.incoming.site.step < 2
        queries, meant = denied(one).any(-1), denied(other).any(-1)
        assert (queries == (meant & (not late))).all()
        if control != "mass":
            assert (denied(one).sum(-1) == denied(other).sum(-1) * (not late)).all()
    assert 0 < lab.dose < 2  # masses are matched at the step before
    again = run(name, golden, CONTROLS[control](top=2))
    assert (again[2].ids.tolist(), again[0].doses) == (out.ids.tolist(), lab.doses)


@pytest.mark.parametrize("control", ["random", "next", "position", "other-head"])
def test_a_threshold_is_a_budget_too(control: str) -> None:
    """As many keys as stand out, head by head."""
    some = scored([[[9, 0.4, 0.6, 5, 0.5, 0.5, 0.1, 0.1, 0.2], [0, 0, 9, 0, 0, 0, 0, 0, 0.1], [1] * 9]])
    assert (MaskSinks(epsilon=2.0).choose(some) >= 0).sum(-1).tolist() == [[2, 1, 0]]
    meant = [[1, 0, 2]] if control == "other-head" else [[2, 1, 0]]
    assert (CONTROLS[control](epsilon=2.0).choose(some) >= 0).sum(-1).tolist() == meant


@pytest.mark.parametrize("scope", ["layer", "model"])
@pytest.mark.parametrize("control", ["random", "next", "position", "first", "mass"])
def test_shared_targets_are_the_same_in_every_head(golden: Path, control: str, scope: str) -> None:
    _, seen, _ = run("llada", golden, CONTROLS[control](top=2, scope=scope))
    taken = [denied(one) for one in seen if one.incoming.site.step == 3]
    assert all((one == one[:, :1]).all() for one in taken)
    assert (scope == "layer") != all((one == taken[0]).all() for one in taken[1:]) or control == "first"


# --- next ranked ------------------------------------------------------------------------------------------------------


def test_next_ranked_are_the_keys_behind_the_sinks() -> None:
    some = scored([[[5, 1, 4, 3, 2], [0, 0, 7, 0, 0]]])
    assert NextRanked(top=2).choose(some).tolist() == [[[3, 4], [1, 3]]]  # of equals the lower position
    assert NextRanked(top=3).choose(some).tolist() == [[[4, 1, -1], [3, 4, -1]]]
    assert NextRanked(top=7).choose(some).amax() == -1
    assert NextRanked(epsilon=4.0).choose(some).tolist()[0][1] == [0]


# --- mass matched -----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(3, 40), st.floats(0.1, 4.0))
def test_masses_match_as_closely_as_one_more_key_can(seed: int, top: int, keys: int, spread: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    weights = torch.softmax(torch.randn(2, 3, keys, generator=draws, dtype=torch.float64) * spread, -1)
    some = ranking(rows=2, heads=3, keys=keys, scores=weights)
    sinks, taken = some.marks(some.highest(top)), some.marks(MassMatched(top=top, seed=seed).choose(some))
    assert not (sinks & taken).any()
    wanted, reached = (weights * sinks).sum(-1), (weights * taken).sum(-1)
    gap = (wanted - reached).abs()[..., None]
    more = (wanted - reached)[..., None] - weights.masked_fill(sinks | taken, torch.inf)
    assert bool((more.abs() >= gap - 1e-9).all())
    left = (weights * ~sinks).sum(-1)
    everything = (taken | sinks).all(-1)
    assert bool((everything | (left > wanted - 1e-9)).all())  # out of reach: all that is left is taken


def test_mass_matched_draws_and_records_what_it_reached() -> None:
    masses = torch.tensor([[0.2] + [0.05] * 16, [0.8] + [0.0125] * 16]).double()  # within reach, and not
    call = logits_call(masses.log()[None, :, None].expand(1, 2, 4, 17))
    lab = MassMatched(top=1, seed=1).start(model(False))
    _, masked = step_through(lab, [call, call])
    (heads,) = hidden_keys(masked)
    assert [len(keys) for keys in heads] == [4, 16]
    assert 0 not in heads[0] | heads[1]
    match = lab.matches[0]
    assert (match.run, match.step, match.layer) == (0, 0, 0)
    assert (match.wanted, match.reached) == pytest.approx((4 * (0.2 + 0.8) / 2, 4 * (0.2 + 0.2) / 2), abs=1e-6)
    assert match.short == 0.5
    assert SHORT < 0.1
    other = step_through(MassMatched(top=1, seed=2).start(model(False)), [call, call])[1]
    assert hidden_keys(other)[0][0] != heads[0]
    assert [dose.keys for dose in lab.doses] == [0.0, 10.0]
    assert lab.doses[1].ratio == pytest.approx(0.4, abs=1e-6)  # of what one key could take


# --- position matched -------------------------------------------------------------------------------------------------


def partners(scores: list[float], anchor: int, state: list[bool] | None = None, top: int = 1) -> set[tuple[int, ...]]:
    """All draws of 60 seeds."""
    some = scored([[scores]], anchor=torch.tensor([anchor]))
    if state is not None:
        some = scored([[scores]], anchor=torch.tensor([anchor]), mask_state=torch.tensor([state]))
    return {tuple(PositionMatched(top=top, seed=seed).choose(some)[0, 0].tolist()) for seed in range(60)}


def test_a_partner_is_about_as_far_from_where_the_model_writes() -> None:
    """Buckets from the anchor: 0 | 1, 2 | 3 to 6 | 7 to 14, each side on its own."""
    flat = [0.0] * 24
    assert partners([*flat[:14], 9.0, *flat[15:]], anchor=8) == {(11,), (12,), (13,)}
    assert partners([*flat[:7], 9.0, *flat[8:]], anchor=8) == {(6,)}
    assert partners([9.0, *flat[1:]], anchor=8) == {(1,)}


def test_a_partner_has_the_same_mask_state_before_the_same_distance() -> None:
    scores = [0.0] * 8 + [9.0] + [0.0] * 7
    state = [True] * 3 + [False] * 5 + [True] + [False] * 7
    assert partners(scores, anchor=8, state=state) == {(2,)}  # bucket -2 is nearer than -3
    everything_else = [False] * 8 + [True] + [False] * 7
    assert partners(scores, anchor=8, state=everything_else) == {(7,), (9,), (10,), (6,)}  # the nearest buckets


def test_partners_are_no_sinks_and_no_two_the_same() -> None:
    found = partners([9.0, 8.0, 7.0, 0.0, 0.0, 0.0, 0.0], anchor=0, top=3)
    assert all(len(set(row)) == 3 and not set(row) & {0, 1, 2} for row in found)
    assert partners([9.0, 8.0, 1.0], anchor=0, top=2) == {(2, -1)}


def test_the_anchor_is_the_block_the_first_mask_or_the_newest_query() -> None:
    logits = torch.zeros(2, 1, 12, 12)
    logits[..., 9] = 5.0
    masked = torch.zeros(2, 12, dtype=torch.bool)
    masked[0, 6:], masked[1, 8:] = True, True
    for causal, clock, meant in (
        (False, {"block": range(8, 12)}, [{10}, {10}]),  # bucket 1: positions 9, 10
        (False, {"masked": masked}, [{10, 11}, {10}]),  # bucket 2 of anchor 6, bucket 1 of anchor 8
        (True, {}, [{10}, {10}]),  # bucket -1 of the newest query, 11
    ):
        found: list[set[int]] = [set(), set()]
        for seed in range(40):
            lab = PositionMatched(top=1, seed=seed).start(model(causal))
            for step in range(2):
                with at_step(StepNumber(step, **clock)):  # type: ignore[arg-type]
                    call = logits_call(logits[:, :, -1:] if causal else logits)
                    changed = lab(at(call, step))
            for row, heads in enumerate(hidden_keys(changed)):
                found[row] |= heads[0]
        assert found == meant


# --- other head, stale step, first token ------------------------------------------------------------------------------


def test_other_head_is_denied_what_its_neighbour_attends_to() -> None:
    some = scored([[[9, 0, 0], [0, 9, 0], [0, 0, 9]]])
    assert OtherHead(top=1).choose(some).tolist() == [[[1], [2], [0]]]
    assert OtherHead(top=1, shift=2).choose(some).tolist() == [[[2], [0], [1]]]
    with pytest.raises(UsageError, match="shift 3 leads every head of a layer of 3 back to itself"):
        OtherHead(top=1, shift=3).choose(some)


def test_a_stale_step_is_denied_the_sinks_of_long_ago() -> None:
    rows = [[9.0, 0, 0, 0, 0], [0, 9.0, 0, 0, 0], [0, 0, 9.0, 0, 0], [0, 0, 0, 9.0, 0], [0, 0, 0, 0, 9.0]]
    calls = [logits_call(torch.tensor(row).view(1, 1, 1, 5)) for row in rows]
    for lag in (2, 3):
        lab = StaleStep(top=1, lag=lag).start(model(False))
        changed = step_through(lab, calls)
        assert [call.mask is None for call in changed] == [step < lag for step in range(5)]
        assert [hidden_keys(call) for call in changed[lag:]] == [[[{step}]] for step in range(5 - lag)]
        assert [dose.masked for dose in lab.doses] == [step >= lag for step in range(5)]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_first_token_is_the_first_that_is_not_padding(name: str) -> None:
    """Under a sliding window too, where the newest query may no longer see it: then nothing is lost."""
    speaker = arm(name)
    with probed(speaker, FirstToken()) as (_, seen):
        sl.generate(speaker, ROWS, sl.AutoregressiveSampler(length=6))
    firsts = [0, 4, 2]  # ROWS have 6, 2 and 4 ids
    lost = 0
    for one in seen:
        where, taken = one.incoming.where_keys().numpy(), denied(one)
        for row, first in enumerate(firsts):
            keys = {int(at) for at in where[taken[row].any((0, 1))]}
            visible = truth_of(one.incoming).visible[row, :, -1][:, where == first].any()
            assert keys == ({first} if one.incoming.site.step > 0 and visible else set())
            lost += len(keys)
    assert lost > 10


def test_the_first_token_is_not_the_first_of_a_window() -> None:
    """The newest query of the prefill no longer sees it, but earlier ones do."""
    window = (torch.ones(6, 6).tril() - torch.ones(6, 6).tril(-3)).bool()
    prefill, newest = logits_call(torch.zeros(1, 1, 6, 6), mask=window), logits_call(torch.zeros(1, 1, 1, 7))
    _, masked = step_through(FirstToken().start(model(True)), [prefill, newest])
    assert hidden_keys(masked) == [[{0}]]


def test_a_key_that_few_queries_see_is_not_above_a_threshold() -> None:
    viewers = torch.full((1, 1, 10), 10.0)
    viewers[..., 0] = 4.0
    some = scored([[[9.0] + [0.1] * 9]], viewers=viewers)
    assert MaskSinks(epsilon=3.0).choose(some).tolist() == [[[0]]]
    strict = scored([[[9.0] + [0.1] * 9]], viewers=viewers, least_viewers=8)
    assert MaskSinks(epsilon=3.0).choose(strict).tolist() == [[[-1]]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaleStep(top=1, lag=1), "lag is 1; expected an integer of at least 2"),
        (
            lambda: StaleStep(top=1, source="same_step"),
            "for StaleStep, whose ranking is 8 steps old",
        ),
        (lambda: OtherHead(top=1, shift=0), "shift is 0; expected an integer of at least 1"),
        (lambda: OtherHead(top=1, scope="layer"), "scope='layer' for OtherHead: heads that share their sinks"),
        (lambda: FirstToken(top=0), "top is 0; expected an integer of at least 1"),
        (lambda: FirstToken(measure="after"), "measure='after' for FirstToken, which ranks nothing"),
        (lambda: FirstToken(source="same_step"), "source='same_step' for FirstToken, which ranks nothing"),
        (lambda: MassMatched(epsilon=3.0), "epsilon=3.0 for MassMatched, whose dose is relative to top keys"),
        (lambda: MassMatched(top=1, seed="a"), "seed is 'a'; expected an integer"),
        (lambda: PositionMatched(top=1, seed=None), "seed is None; expected an integer"),
        (lambda: NextRanked(top=1, source="fixed"), "source='fixed' needs positions, which only MaskSinks takes"),
        (NextRanked, "top is None and epsilon is None"),
    ],
)
def test_what_cannot_be_meant(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_draws_of_every_random_control_depend_on_the_seed() -> None:
    scores = torch.rand(1, 4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    some = ranking(rows=1, heads=4, keys=40, scores=scores)

    def chosen(kind: Any, seed: int) -> Tensor:
        return some.marks(kind(top=3, seed=seed).choose(some))

    for kind in (RandomKeys, PositionMatched, MassMatched):
        assert torch.equal(chosen(kind, 0), chosen(kind, 0))
        assert not torch.equal(chosen(kind, 0), chosen(kind, 1))
