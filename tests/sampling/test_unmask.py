"""Properties of the pure functions that decide what commits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens.sampling import unmask

seeds = st.integers(0, 2**31)


def confidences(seed: int, batch: int, width: int) -> torch.Tensor:
    """Uniform confidences, about a third of them closed (-inf)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(batch, width, generator=generator)
    return values.masked_fill(torch.rand(batch, width, generator=generator) < 0.3, -torch.inf)


@given(masks=st.integers(1, 20), steps=st.integers(1, 25))
def test_schedule_commits_all_masks_evenly_and_early(masks: int, steps: int) -> None:
    schedule = unmask.transfer_schedule(masks, steps)
    assert (len(schedule), sum(schedule)) == (steps, masks)
    assert schedule[0] - schedule[-1] <= 1
    assert schedule == sorted(schedule, reverse=True)


def test_schedule_gives_the_remainder_to_the_first_steps() -> None:
    assert unmask.transfer_schedule(8, 6) == [2, 2, 1, 1, 1, 1]


@given(seed=seeds, batch=st.integers(1, 4), width=st.integers(1, 20), data=st.data())
def test_select_top_takes_the_most_confident_open_positions(seed: int, batch: int, width: int, data) -> None:
    confidence = confidences(seed, batch, width)
    count = data.draw(st.integers(0, width))
    chosen = unmask.select_top(confidence, count)
    is_open = confidence > -torch.inf
    assert not (chosen & ~is_open).any()
    for row in range(batch):
        assert int(chosen[row].sum()) == min(count, int(is_open[row].sum()))
        left = confidence[row][is_open[row] & ~chosen[row]]
        if chosen[row].any() and len(left):
            assert confidence[row][chosen[row]].min() >= left.max()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("width", [5, 64, 300, 5000])
def test_equal_confidences_fall_as_if_every_row_stood_alone(device: str, width: int) -> None:
    draws = torch.Generator().manual_seed(width)
    confidence = torch.randint(0, 4, (40, width), generator=draws).float().to(device)  # ties everywhere
    for count in (1, 2, min(width, 20)):
        chosen = unmask.select_top(confidence, count)
        for row, found in zip(confidence, chosen, strict=True):
            assert sorted(row.topk(count).indices.tolist()) == found.nonzero().flatten().tolist()


@given(seed=seeds, batch=st.integers(1, 4), width=st.integers(1, 20), threshold=st.floats(0.01, 1.0))
def test_select_above_commits_at_least_one_a_row(seed: int, batch: int, width: int, threshold: float) -> None:
    confidence = confidences(seed, batch, width)
    chosen = unmask.select_above(confidence, threshold)
    is_open = confidence > -torch.inf
    assert not (chosen & ~is_open).any()
    assert torch.equal(chosen.any(dim=1), is_open.any(dim=1))
    assert bool(chosen[is_open & (confidence > threshold)].all())
    extra = chosen & (confidence <= threshold)
    assert bool((extra.sum(dim=1) <= 1).all())
    if threshold == 1.0:
        assert torch.equal(chosen, unmask.select_top(confidence, 1))


@given(seed=seeds, top_p=st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_head_that_exceeds_the_mass(seed: int, top_p: float) -> None:
    logits = 3 * torch.randn(5, 12, generator=torch.Generator().manual_seed(seed))
    kept = unmask.keep_top_p(logits, top_p) > torch.finfo(torch.float32).min
    for row, keeps in zip(logits.softmax(dim=-1), kept, strict=True):
        ordered = row.sort(descending=True).values
        count = int(keeps.sum())
        assert count >= 1
        assert set(row[keeps].tolist()) == set(ordered[:count].tolist())
        assert float(ordered[: count - 1].sum()) <= top_p + 1e-6  # without the last one it was not exceeded
        if count < len(row):
            assert float(ordered[:count].sum()) > top_p - 1e-6


@settings(deadline=None)
@given(seed=seeds, top_k=st.integers(1, 20))
def test_top_k_keeps_k_unless_fewer_exist(seed: int, top_k: int) -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(seed))
    kept = unmask.keep_top_k(logits, top_k) > torch.finfo(torch.float32).min
    assert kept.sum(dim=1).tolist() == [min(top_k, 12)] * 5
    assert bool(kept.gather(1, logits.argmax(dim=1, keepdim=True)).all())


def test_filters_act_at_temperature_0_and_temperature_sharpens() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    plain = logits.softmax(dim=-1)
    assert torch.equal(unmask.filtered_probabilities(logits, 0.0, None, None), plain)
    assert unmask.filtered_probabilities(logits, 0.0, None, 2)[0, 2] == 0
    assert unmask.filtered_probabilities(logits, 0.0, 0.5, None).tolist() == [[1.0, 0.0, 0.0]]
    assert unmask.filtered_probabilities(logits, 0.5, None, None)[0, 0] > plain[0, 0]


def test_confidences_are_those_of_their_definitions() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    assert unmask.maskgit_plus(p, torch.tensor([1])).tolist() == pytest.approx([0.3])
    assert unmask.topk_margin(p).tolist() == pytest.approx([0.2])
    entropy = -(0.5 * 0.693147 + 0.3 * 1.203973 + 0.2 * 1.609438)
    assert unmask.negative_entropy(p).tolist() == pytest.approx([entropy], abs=1e-5)


def test_gumbel_proposals_are_draws_from_the_tempered_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[1.0, 0.0, -1.0]]).expand(20_000, 3)
    noise = unmask.gumbel_noise(logits.shape, logits.device)
    tokens = unmask.propose_tokens(logits, 0.5, noise)
    shares = torch.bincount(tokens, minlength=3) / len(tokens)
    assert torch.allclose(shares, (logits[0] / 0.5).softmax(dim=-1), atol=0.015)
    assert torch.equal(unmask.propose_tokens(logits, 0.0, None), torch.zeros(20_000, dtype=torch.long))


def test_token_probability_keeps_the_dtype() -> None:
    logits = torch.tensor([[1.0, 0.0]])
    token = torch.tensor([1])
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        found = unmask.token_probability(logits.to(dtype), token)
        assert found.dtype == dtype
        assert float(found) == pytest.approx(0.2689, abs=2e-3)


@given(seed=seeds, alg_temp=st.sampled_from([1e-4, 0.1, 1.0, 50.0]), count=st.integers(1, 8))
def test_select_drawn_draws_open_positions_without_replacement(seed: int, alg_temp: float, count: int) -> None:
    confidence = confidences(seed, 3, 8)
    torch.manual_seed(seed)
    chosen = unmask.select_drawn(confidence, count, alg_temp)
    is_open = confidence > -torch.inf
    assert not (chosen & ~is_open).any()
    if bool(is_open.any(dim=1).all()):  # an empty row has no softmax, and nothing is drawn from it below
        assert chosen.sum(dim=1).tolist() == is_open.sum(dim=1).clamp(max=count).tolist()


def test_select_drawn_follows_the_weights() -> None:
    torch.manual_seed(0)
    confidence = torch.tensor([[0.9, 0.1, -torch.inf]]).expand(20_000, 3)
    share = unmask.select_drawn(confidence, 1, 0.5).float().mean(dim=0)
    expected = torch.tensor([0.9 / 0.5, 0.1 / 0.5]).softmax(dim=-1)
    assert torch.allclose(share[:2], expected, atol=0.015)
    assert share[2] == 0


@pytest.mark.parametrize("checked", [True, False])
def test_all_rows_take_their_best_where_one_in_bfloat16_does_not_add_up(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the released code of Dream, which catches what torch.distributions raises; then nothing is drawn.

    Whatever else is imported: some libraries switch its checks off for the whole process.
    """
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", checked)
    drawn, best = 0, 0
    for seed in range(120):
        logits = 4 * torch.randn(6, 32, generator=torch.Generator().manual_seed(seed))
        probabilities = unmask.filtered_probabilities(logits.bfloat16(), 0.5, None, None)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        try:
            expected = torch.distributions.Categorical(probs=probabilities, validate_args=True).sample()
            drawn += 1
        except ValueError:
            expected = probabilities.argmax(dim=-1)
            best += bool((expected != unmask.draw_tokens(probabilities, 0.5)).any())
            torch.set_rng_state(before)
        after = torch.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(unmask.draw_or_take_best(probabilities, 0.5), expected)
        assert torch.equal(torch.get_rng_state(), after)
    assert drawn > 0 and best > 0


@pytest.mark.parametrize("draw", [unmask.draw_tokens, unmask.draw_or_take_best])
def test_draw_tokens_takes_no_draw_at_temperature_0_or_without_rows(draw) -> None:
    before = torch.get_rng_state()
    assert draw(torch.tensor([[0.2, 0.8]]), 0.0).tolist() == [1]
    assert draw(torch.zeros(0, 2), 1.0).tolist() == []
    assert torch.equal(torch.get_rng_state(), before)
